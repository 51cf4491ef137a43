//! API keys: who sends a request.

use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::TenantId;
use subtle::ConstantTimeEq;

use crate::app::Shared;
use crate::errors::ApiError;
use crate::record::Recorder;

/// Keys that a file may have: each request compares with all of them.
const KEYS_MAX: usize = 10_000;
/// Bytes that a file of keys may have.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Characters that a key must have.
const KEY_CHARACTERS_MIN: usize = 16;

/// A file of keys can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It can't be read.
    #[error("can't read the file of API keys {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not as it should be. The line itself may hold a key and is not told.
    #[error("line {line} of the API keys {problem}: each line is a name, a space and a key")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// There are too few or too many.
    #[error("the file of API keys has {count} keys: it must have from 1 to {KEYS_MAX}")]
    Count {
        /// Their number.
        count: usize,
    },
    /// It is too large.
    #[error("the file of API keys has {bytes} bytes: it may have {FILE_BYTES_MAX}")]
    Size {
        /// Its size.
        bytes: u64,
    },
}

/// One who may use the server.
#[derive(Clone, Debug)]
struct Key {
    name: Arc<str>,
    tenant: TenantId,
    /// BLAKE3 of the key: all of one length, and worth nothing to a thief.
    digest: [u8; 32],
}

/// All who may use the server.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys(Arc<[Key]>);

impl ApiKeys {
    /// Reads a file of keys.
    ///
    /// # Errors
    /// When it can't be read, or a line is wrong.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Read {
            path: path.display().to_string(),
            source,
        };
        let bytes = std::fs::metadata(path).map_err(failed)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(KeyError::Size { bytes });
        }
        Self::parse(&std::fs::read_to_string(path).map_err(failed)?)
    }

    /// Reads keys: on each line a name, white space and a key. Empty lines and those that begin with `#` are
    /// left out. Several keys may have one name: they are one tenant.
    ///
    /// # Errors
    /// When a line is wrong.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys: Vec<Key> = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let wrong = |problem| KeyError::Line { line, problem };
            let mut words = content.split_whitespace();
            let (Some(name), Some(key), None) = (words.next(), words.next(), words.next()) else {
                return Err(wrong("does not have two words"));
            };
            if key.len() < KEY_CHARACTERS_MIN {
                return Err(wrong("has a key of fewer than 16 characters"));
            }
            let digest = *blake3::hash(key.as_bytes()).as_bytes();
            if keys.iter().any(|other| other.digest == digest) {
                return Err(wrong("has a key for the second time"));
            }
            let known = keys.iter().find(|other| &*other.name == name);
            // 0 is nobody in particular.
            let tenant = known.map_or(TenantId(line as u64), |other| other.tenant);
            keys.push(Key {
                name: name.into(),
                tenant,
                digest,
            });
        }
        match keys.len() {
            1..=KEYS_MAX => Ok(Self(keys.into())),
            count => Err(KeyError::Count { count }),
        }
    }

    /// Whether everybody may use the server.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose key this is. Takes as long for a wrong key as for a right one.
    fn find(&self, key: &[u8]) -> Option<&Key> {
        let digest = *blake3::hash(key).as_bytes();
        let mut found = None;
        for known in self.0.iter() {
            if bool::from(known.digest.ct_eq(&digest)) {
                found = Some(known);
            }
        }
        found
    }

    /// Who sent a request with these headers.
    fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        if self.is_empty() {
            return Ok(Caller::ANYBODY);
        }
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            let message = "this server needs an API key: send `Authorization: Bearer KEY`";
            return Err(ApiError::unauthorized(message));
        };
        let key = value.as_bytes();
        let bearer = key
            .split_at_checked(7)
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        let key = bearer.map(|(_, key)| key.trim_ascii());
        match key.and_then(|key| self.find(key)) {
            Some(key) => Ok(Caller {
                tenant: key.tenant,
                name: Some(Arc::clone(&key.name)),
            }),
            None => Err(ApiError::unauthorized("the API key is not known here")),
        }
    }
}

/// Who sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// For fairness, and so that nobody sees another's prefixes.
    pub(crate) tenant: TenantId,
    /// The name beside the key.
    pub(crate) name: Option<Arc<str>>,
}

impl Caller {
    /// Anybody, where there are no keys.
    const ANYBODY: Self = Self {
        tenant: TenantId::LOCAL,
        name: None,
    };
}

/// Lets a request pass if its key is known and its tenant has not sent too many.
pub(crate) async fn check(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    let caller = match app.options.keys.caller(request.headers()) {
        Ok(caller) => caller,
        Err(error) => return error.closing().into_response(),
    };
    if let Some(recorder) = request.extensions().get::<Recorder>() {
        recorder.update(|record| record.tenant = caller.name.clone());
    }
    if let Err(error) = app.rate.take(caller.tenant) {
        return error.closing().into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const KEYS: &str =
        "# ours\nann 0123456789abcdef\n\nbob fedcba9876543210\nann aaaaaaaaaaaaaaaa\n";

    fn caller(value: Option<&str>) -> Result<Caller, ApiError> {
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        }
        ApiKeys::parse(KEYS).unwrap().caller(&headers)
    }

    #[test]
    fn a_key_names_its_tenant() {
        let ann = caller(Some("Bearer 0123456789abcdef")).unwrap();
        assert_eq!(ann.name.as_deref(), Some("ann"));
        let second = caller(Some("bearer aaaaaaaaaaaaaaaa")).unwrap();
        assert_eq!(ann.tenant, second.tenant);
        let bob = caller(Some("Bearer fedcba9876543210")).unwrap();
        assert_ne!(ann.tenant, bob.tenant);
        assert_ne!(ann.tenant, TenantId::LOCAL);
    }

    #[test]
    fn other_keys_are_refused() {
        for wrong in [
            None,
            Some(""),
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer 0123456789abcde"),
            Some("Bearer 0123456789abcdef0"),
            Some("Basic 0123456789abcdef"),
            Some("0123456789abcdef"),
        ] {
            let answer = caller(wrong).unwrap_err().into_response();
            assert_eq!(answer.status(), 401, "{wrong:?}");
        }
    }

    #[test]
    fn wrong_files_are_refused_without_telling_a_key() {
        for (text, line) in [
            ("a", 1),
            ("ok 0123456789abcdef\na b c", 2),
            ("a short", 1),
            ("a 0123456789abcdef\nb 0123456789abcdef", 2),
        ] {
            let error = ApiKeys::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line {line} ")), "{error}");
            assert!(!error.contains("0123456789abcdef"), "{error}");
        }
        assert!(matches!(
            ApiKeys::parse("# none"),
            Err(KeyError::Count { count: 0 })
        ));
    }
}
