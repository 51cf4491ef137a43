//! `/tokenize`: the tokens of a text or a conversation.

use axum::extract::State;
use text::EncodeOptions;

use crate::app::Shared;
use crate::body::Json;
use crate::errors::{ApiError, ErrorBody};
use crate::generate::check_model;
use crate::prompt::{self, encode_chat, encode_text};
use crate::token_text::token_text;
use crate::wire::tokens::{TokenizeAnswer, TokenizeRequest};

/// The tokens of a text or a conversation.
#[utoipa::path(post, path = "/tokenize", tag = "tokens", security((), ("key" = [])),
    request_body = TokenizeRequest,
    responses(
        (status = 200, description = "The tokens.", body = TokenizeAnswer),
        (status = "4XX", description = "The request is refused.", body = ErrorBody),
        (status = "5XX", description = "The server can't do it.", body = ErrorBody),
    )
)]
pub(crate) async fn tokenize(
    State(app): State<Shared>,
    Json(request): Json<TokenizeRequest>,
) -> Result<axum::Json<TokenizeAnswer>, ApiError> {
    if let Some(model) = &request.model {
        check_model(&app, model)?;
    }
    let context = app.context;
    let answer = prompt::work(&app, move |served| {
        let with_strs = request.return_token_strs.unwrap_or(false);
        let tokens = match (request.prompt, request.messages) {
            (Some(text), None) => {
                if request.add_generation_prompt.is_some() {
                    let message = "`add_generation_prompt` goes with `messages`, not with `prompt`";
                    return Err(ApiError::field("add_generation_prompt", message));
                }
                let options = EncodeOptions {
                    add_special: request.add_special_tokens.unwrap_or(true),
                    parse_special: request.parse_special_tokens.unwrap_or(true),
                };
                encode_text(served, text, options, || "prompt".to_owned())?.tokens
            }
            (None, Some(messages)) => {
                for (name, is_set) in [
                    ("add_special_tokens", request.add_special_tokens.is_some()),
                    (
                        "parse_special_tokens",
                        request.parse_special_tokens.is_some(),
                    ),
                ] {
                    if is_set {
                        let message = format!("`{name}` goes with `prompt`, not with `messages`");
                        return Err(ApiError::field(name, message));
                    }
                }
                let begin = request.add_generation_prompt.unwrap_or(true);
                encode_chat(served, messages, begin)?.tokens
            }
            _ => {
                let message = "send either `prompt` or `messages`";
                return Err(ApiError::field("prompt", message));
            }
        };
        let texts = || tokens.iter().map(|&id| token_text(&served.tokenizer, id));
        let token_strs = with_strs.then(|| texts().collect());
        Ok(TokenizeAnswer {
            count: tokens.len(),
            max_model_len: context,
            token_strs,
            tokens,
        })
    });
    answer.await.map(axum::Json)
}
