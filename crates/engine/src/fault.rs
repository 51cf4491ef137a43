//! Faults that tests plant in the scheduler, to see that their checks find them.

/// Something that is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An answer is left out of a step.
    SkipDecode,
    /// A step takes more of a prompt than it may.
    OverBudget,
    /// Of two prompts the younger always goes first.
    Starve,
    /// Who asks more gets more.
    Unfair,
    /// The pages of some requests do not come back.
    Leak,
    /// More of a prompt is taken for cached than is.
    WrongHit,
    /// The end of some requests is told twice.
    EndTwice,
    /// The end of some requests is not told.
    EndNever,
    /// A request that made room goes on as if it had not.
    ForgetPreemption,
    /// A step that failed takes its requests for run.
    IgnoreFailure,
}
