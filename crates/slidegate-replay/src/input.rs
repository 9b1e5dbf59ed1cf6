//! Logs as bytes: which there are, how they are compressed, and their lines in blocks.

pub(crate) mod blocks;
pub(crate) mod paths;
pub(crate) mod pool;
pub(crate) mod stream;
