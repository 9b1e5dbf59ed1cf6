#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// The examples of docs/embedding.md, run with the doctests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../docs/embedding.md")]
mod embedding {}

/// The examples of docs/reserve.md, run with the doctests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../docs/reserve.md")]
mod reserving {}

pub mod client_addr;
pub mod headers;
pub mod layer;
