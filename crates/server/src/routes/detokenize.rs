//! `/detokenize`: the text of tokens.

use axum::extract::State;
use text::DetokenizerOptions;

use crate::app::Shared;
use crate::body::Json;
use crate::errors::{ApiError, ErrorBody};
use crate::generate::check_model;
use crate::prompt;
use crate::wire::tokens::{DetokenizeAnswer, DetokenizeRequest};

/// The text of tokens.
#[utoipa::path(post, path = "/detokenize", tag = "tokens", security((), ("key" = [])),
    request_body = DetokenizeRequest,
    responses(
        (status = 200, description = "The text.", body = DetokenizeAnswer),
        (status = "4XX", description = "The request is refused.", body = ErrorBody),
        (status = "5XX", description = "The server can't do it.", body = ErrorBody),
    )
)]
pub(crate) async fn detokenize(
    State(app): State<Shared>,
    Json(request): Json<DetokenizeRequest>,
) -> Result<axum::Json<DetokenizeAnswer>, ApiError> {
    if let Some(model) = &request.model {
        check_model(&app, model)?;
    }
    let vocabulary = app.vocabulary;
    let text = prompt::work(&app, move |served| {
        let known = vocabulary.min(served.tokenizer.vocab_size());
        let mut tokens = request.tokens.iter().enumerate();
        if let Some((index, token)) = tokens.find(|(_, token)| **token as usize >= known) {
            let param = format!("tokens[{index}]");
            let message = format!("`{param}` is {token}: the vocabulary has {known} tokens");
            return Err(ApiError::field(param, message));
        }
        let options = DetokenizerOptions {
            show_control: request.show_control.unwrap_or(true),
            at_text_start: true,
        };
        Ok(served.tokenizer.decode(&request.tokens, options))
    });
    text.await
        .map(|prompt| axum::Json(DetokenizeAnswer { prompt }))
}
