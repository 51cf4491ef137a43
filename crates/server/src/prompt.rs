//! From texts and conversations to the tokens of a prompt.

use serde_json::{Value, json};
use text::{EncodeOptions, RenderInput, TemplateError, TokenId};

use crate::app::Shared;
use crate::errors::ApiError;
use crate::options::Served;
use crate::wire::chat::Message;

/// A prompt as the model reads it.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The tokens.
    pub(crate) tokens: Vec<TokenId>,
    /// The text that they came from.
    pub(crate) text: String,
}

/// Does work on text away from the threads that serve connections.
pub(crate) async fn work<T: Send + 'static>(
    app: &Shared,
    work: impl FnOnce(&Served) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let app = std::sync::Arc::clone(app);
    tokio::task::spawn_blocking(move || work(&app.served))
        .await
        .unwrap_or_else(|error| Err(ApiError::internal(error.to_string())))
}

/// The prompt of a conversation.
pub(crate) fn encode_chat(
    served: &Served,
    messages: Vec<Message>,
    add_generation_prompt: bool,
) -> Result<Encoded, ApiError> {
    if messages.is_empty() {
        let message = "`messages` is empty: send at least one message";
        return Err(ApiError::field("messages", message));
    }
    let Some(template) = &served.template else {
        let message = "this model has no chat template: use /v1/completions";
        return Err(ApiError::field("messages", message).with_code("no_chat_template"));
    };
    let mut values: Vec<Value> = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let text = message.content.into_text();
        refuse_lost(served, &text, || format!("messages[{index}].content"))?;
        values.push(json!({ "role": message.role.name(), "content": text }));
    }
    let mut input = RenderInput::new(&values);
    input.add_generation_prompt = add_generation_prompt;
    let text = template.render(&input).map_err(|error| {
        let message = error.to_string();
        match error {
            TemplateError::NoThread { .. } => ApiError::internal(message),
            _ => ApiError::field("messages", message).with_code("chat_template_failed"),
        }
    })?;
    Ok(Encoded {
        tokens: served.tokenizer.encode_chat(&text),
        text,
    })
}

/// The tokens of a text that came in the field `param`.
pub(crate) fn encode_text(
    served: &Served,
    text: String,
    options: EncodeOptions,
    param: impl FnOnce() -> String,
) -> Result<Encoded, ApiError> {
    refuse_lost(served, &text, param)?;
    Ok(Encoded {
        tokens: served.tokenizer.encode(&text, options),
        text,
    })
}

/// Leaving characters out in silence would answer another prompt.
fn refuse_lost(
    served: &Served,
    text: &str,
    param: impl FnOnce() -> String,
) -> Result<(), ApiError> {
    match served.tokenizer.lost_character(text) {
        None => Ok(()),
        Some(lost) => {
            let param = param();
            let message = format!(
                "`{param}` has {:?} at byte {}, which the model's vocabulary can't write",
                lost.character, lost.offset
            );
            Err(ApiError::field(param, message))
        }
    }
}
