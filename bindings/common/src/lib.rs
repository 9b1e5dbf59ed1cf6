//! What the packages for other languages share: gates, requests and decisions in plain values.
//!
//! A package converts its language's values to these and back, and has no rule of its own. The fast
//! path, a [`slidegate::Limiter`] on one key, needs none of it and is wrapped by each package directly.

#![forbid(unsafe_code)]

mod answer;
mod call;
mod client;
mod engine;
mod error;

pub use answer::{Answer, PolicyAnswer, Settled, SettledPolicy};
pub use call::{Amount, Call};
pub use client::ClientRule;
#[cfg(feature = "redis")]
pub use engine::SharedOptions;
pub use engine::{Engine, EngineOptions, poll_once, quota};
pub use error::BindingError;
