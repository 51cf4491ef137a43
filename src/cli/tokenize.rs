//! Flags of `tokenize`.

use clap::Args;

use super::shared::ModelArg;

/// Flags of `tokenize`.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// The text; standard input, as it is, where there is none
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Print the ids only, on one line
    #[arg(long, conflicts_with = "json")]
    pub(crate) ids: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Neither add tokens for begin and end nor read the names of control tokens in the text
    #[arg(long)]
    pub(crate) no_special: bool,
}
