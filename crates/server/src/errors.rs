//! Errors as clients of the OpenAI API expect them.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::EngineError;
use engine::sampling::SamplingError;
use serde::Serialize;
use utoipa::ToSchema;

/// The body of every answer that reports an error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// The error.
    pub(crate) error: ErrorObject,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorObject {
    /// For people.
    pub(crate) message: String,
    /// The kind of error.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The field of the request that is wrong, as `messages[0].content`.
    pub(crate) param: Option<String>,
    /// For programs.
    pub(crate) code: Option<&'static str>,
}

/// An answer that reports an error.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    error: ErrorObject,
    retry_after_s: Option<u64>,
    /// The request was not read to its end, so nothing more can come on this connection.
    closes: bool,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let error = ErrorObject {
            message: message.into(),
            kind,
            param: None,
            code: None,
        };
        Self {
            status,
            error,
            retry_after_s: None,
            closes: false,
        }
    }

    /// 400: the request can't be honoured as it is.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 for a field.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(message)
            .with_param(param)
            .with_code("invalid_value")
    }

    /// An error of the request with another status than 400.
    pub(crate) fn refused(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self::new(status, "invalid_request_error", message).with_code(code)
    }

    /// 401.
    pub(crate) fn unauthorized(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
            .with_code("invalid_api_key")
    }

    /// 429: later it may work.
    pub(crate) fn busy(code: &'static str, message: impl Into<String>, retry_after_s: u64) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .with_code(code)
            .retry_after(retry_after_s)
    }

    /// 503.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
            .with_code(code)
            .retry_after(1)
    }

    /// 500.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Names the field.
    #[must_use]
    pub(crate) fn with_param(mut self, param: impl Into<String>) -> Self {
        self.error.param = Some(param.into());
        self
    }

    /// Sets the code.
    #[must_use]
    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.error.code = Some(code);
        self
    }

    /// Ends the connection after the answer.
    #[must_use]
    pub(crate) fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The body, as a stream that has begun reports it.
    pub(crate) fn into_body(self) -> ErrorBody {
        ErrorBody { error: self.error }
    }

    /// What the engine says to a request; `prompt` is the field that its tokens come from.
    pub(crate) fn of_engine(error: &EngineError, prompt: &str) -> Self {
        let message = error.to_string();
        match error {
            EngineError::QueueFull { retry_after_s, .. } => {
                Self::busy("queue_full", message, *retry_after_s)
            }
            EngineError::PromptTooLong { .. } | EngineError::NeverFits { .. } => {
                Self::field(prompt, message).with_code("context_length_exceeded")
            }
            EngineError::EmptyPrompt | EngineError::NoSuchToken { .. } => {
                Self::field(prompt, message)
            }
            EngineError::Option { name, .. } => Self::field(*name, message),
            EngineError::Stop(_) => Self::field("stop", message),
            EngineError::Sampling(error) => Self::of_sampling(error),
            EngineError::OutOfMemory { .. } => Self::unavailable("out_of_memory", message),
            _ => Self::internal(message),
        }
    }

    /// A sampling parameter that is out of range.
    pub(crate) fn of_sampling(error: &SamplingError) -> Self {
        Self::field(error.parameter(), error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, retry, closes) = (self.status, self.retry_after_s, self.closes);
        let mut response = (status, Json(self.into_body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
