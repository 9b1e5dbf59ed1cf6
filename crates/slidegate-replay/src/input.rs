//! Logs as bytes: discovery, decompression, and blocks of lines.

pub(crate) mod blocks;
pub(crate) mod paths;
pub(crate) mod pool;
pub(crate) mod stream;
