//! x
/// F
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault { CopySkipped, TenantsMixed }
