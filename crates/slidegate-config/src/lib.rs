#![doc = include_str!("../README.md")]
//! # Modules
//!
//! [`policies`] reads files, [`added`] one policy and [`text`] a policy in one line. The service reads its
//! own sections beside [`PolicySections`](policies::PolicySections), with [`lined_config`].

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

pub mod foreign;
pub mod names;
pub mod values;

pub use lined_config::ConfigErrors;
