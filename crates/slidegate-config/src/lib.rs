#![doc = include_str!("../README.md")]
//! # Modules
//!
//! [`policies`] reads files, [`added`] one policy and [`text`] a policy in one line. The other modules
//! read the service's own sections as well: a struct that derives its JSON Schema
//! ([`schema`], [`values`]) is validated value by value ([`check`]), then across its keys ([`section`]).

#![forbid(unsafe_code)]

pub mod policies;

pub mod added;
pub mod escalate;
pub mod policy;
pub mod quota;
pub mod text;

mod condition;
mod counts;
mod overrides;
mod unlikely;

pub mod check;
pub mod errors;
pub mod foreign;
pub mod names;
pub mod schema;
pub mod section;
pub mod values;
pub mod yaml;
