//! The engine's errors in the words of the command line.

use engine::EngineError;
use engine::sampling::SamplingError;
use kernels::pages::{KvType, PageError};
use model::ModelError;

/// The message for an option or field that is out of range, which is a matter of usage: with the flag as it is
/// typed in place of the engine's name.
pub(crate) fn out_of_range(error: &anyhow::Error) -> Option<String> {
    let (name, message) = if let Some(error) = error.downcast_ref::<EngineError>() {
        (error.parameter()?, error.to_string())
    } else {
        let error = error.downcast_ref::<SamplingError>()?;
        (error.parameter(), error.to_string())
    };
    let problem = message.strip_prefix(name)?;
    Some(format!("{}{problem}", flag(name)))
}

/// The flag that sets an option, where the message of an error ends with what to do about the option.
pub(crate) fn remedy(error: &anyhow::Error) -> Option<&'static str> {
    match error.downcast_ref() {
        Some(EngineError::PromptTooLong { .. } | EngineError::TextTooShort { .. }) => Some("--ctx"),
        Some(EngineError::Model(error)) => remedy_of_model(error),
        _ => remedy_of_model(error.downcast_ref()?),
    }
}

fn remedy_of_model(error: &ModelError) -> Option<&'static str> {
    match error {
        ModelError::Pages {
            source:
                PageError::Overflow {
                    kv_type: KvType::F16,
                    value,
                    ..
                },
            ..
        } if value.is_finite() => Some("--kv f32"),
        _ => None,
    }
}

/// The flag for one of the engine's names.
fn flag(name: &str) -> String {
    match name {
        "context" | "window" => "--ctx".to_owned(),
        "chunk" => "--prefill-chunk".to_owned(),
        "limit" => "--chunks".to_owned(),
        name => format!("--{}", name.replace('_', "-")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use engine::sampling::Sampling;

    use super::*;

    /// The error of these parameters.
    fn error(sampling: &Sampling) -> anyhow::Error {
        sampling.validate(10).unwrap_err().into()
    }

    #[test]
    fn parameters_are_told_by_their_flags() {
        let plain = Sampling::default;
        let top_p = Sampling {
            top_p: 1.5,
            ..plain()
        };
        assert_eq!(
            out_of_range(&error(&top_p)).unwrap(),
            "--top-p is 1.5: it must be above 0 and at most 1"
        );
        let twice = Sampling {
            logit_bias: vec![(1, 0.0), (1, 0.0)],
            ..plain()
        };
        let told = out_of_range(&error(&twice)).unwrap();
        assert_eq!(told, "--logit-bias is given twice for token 1");
        let of_engine = EngineError::Option {
            name: "prefill_chunk",
            value: 0,
            range: "from 1 to 8192".to_owned(),
        };
        let told = out_of_range(&of_engine.into()).unwrap();
        assert_eq!(told, "--prefill-chunk is 0: it must be from 1 to 8192");
        assert_eq!(out_of_range(&EngineError::EmptyPrompt.into()), None);
        assert_eq!(out_of_range(&anyhow::anyhow!("other")), None);
    }
}
