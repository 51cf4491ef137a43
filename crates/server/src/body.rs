//! Request bodies: read within limits, parsed strictly.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::app::Shared;
use crate::errors::ApiError;

/// A JSON body. What can't be read as `T` to the last field is refused with the field's name.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Shared> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, ApiError> {
        check_headers(request.headers())?;
        let (limit, timeout) = (app.options.body_bytes_max, app.options.read_timeout);
        let bytes = read(request.into_body(), limit, timeout).await?;
        parse(&bytes).map(Self)
    }
}

/// Only JSON, so that no web page can post a form to a server on the same machine.
fn check_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|value| value.trim().eq_ignore_ascii_case("application/json"));
    if !is_json {
        let message = "the request's content-type must be application/json";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(ApiError::refused(status, "unsupported_media_type", message).closing());
    }
    if headers.contains_key(header::CONTENT_ENCODING) {
        let message = "compressed requests are not supported: leave content-encoding out";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(ApiError::refused(status, "unsupported_media_type", message).closing());
    }
    Ok(())
}

async fn read(body: Body, limit: usize, timeout: Duration) -> Result<Bytes, ApiError> {
    let too_large = || {
        let message = format!("the request's body has more than {limit} bytes");
        ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message).closing()
    };
    let declared = axum::body::HttpBody::size_hint(&body).lower();
    if declared > limit as u64 {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(timeout, Limited::new(body, limit).collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => {
            Err(ApiError::invalid(format!("the request's body can't be read: {error}")).closing())
        }
        Err(_) => {
            let message = format!(
                "the request's body did not come to its end within {} seconds",
                timeout.as_secs_f64()
            );
            let status = StatusCode::REQUEST_TIMEOUT;
            Err(ApiError::refused(status, "request_timeout", message).closing())
        }
    }
}

/// Reads JSON as `T`.
///
/// # Errors
/// Says what is wrong, and with which field.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        explain(&path, error.inner())
    })?;
    json.end().map_err(|error| explain(".", &error))?;
    Ok(value)
}

/// What is wrong, in words that name the field.
fn explain(path: &str, error: &serde_json::Error) -> ApiError {
    if error.classify() != Category::Data {
        let refused = ApiError::invalid(format!("the body is not valid JSON: {error}"));
        let refused = refused.with_code("invalid_json");
        return if path == "." {
            refused
        } else {
            refused.with_param(path)
        };
    }
    let message = error.to_string();
    // The place in the text says less than the path.
    let problem = message.split(" at line ").next().unwrap_or(&message);
    let named = |prefix: &str| problem.strip_prefix(prefix)?.split('`').next();
    if let Some(name) = named("unknown field `") {
        let param = joined(path, name);
        let message = format!("`{param}` is not supported: leave it out");
        return ApiError::field(param, message).with_code("unknown_parameter");
    }
    if let Some(name) = named("missing field `") {
        let param = joined(path, name);
        let message = format!("`{param}` is missing");
        return ApiError::field(param, message).with_code("missing_required_parameter");
    }
    if path == "." {
        return ApiError::invalid(format!("the body is wrong: {problem}"))
            .with_code("invalid_value");
    }
    ApiError::field(path, format!("`{path}` is wrong: {problem}"))
}

/// The path of a field inside what is at `path`.
fn joined(path: &str, name: &str) -> String {
    let is_there = path == name || path.ends_with(&format!(".{name}"));
    match path {
        "." => name.to_owned(),
        _ if is_there => path.to_owned(),
        _ => format!("{path}.{name}"),
    }
}
