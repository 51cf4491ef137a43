//! What moves information between positions. One file a mixer.

pub(crate) mod attention;
