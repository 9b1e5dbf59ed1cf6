//! Reads slidegate's policies from the YAML of its service, or from JSON.
//!
//! ```
//! use slidegate::{Gate, Request};
//! use slidegate_config::policies::Policies;
//!
//! let text = "
//! policies:
//!   - name: per-user
//!     scope: [user]
//!     quota: 100/1m
//!   - name: login-per-ip
//!     when: { path: /login }
//!     scope: [ip]
//!     limit: 5
//!     window: 1m
//! ";
//! let policies = Policies::parse(text, "slidegate.yaml")?;
//! let gate = Gate::new(policies.set);
//! let ip: std::net::IpAddr = "192.0.2.7".parse()?;
//! let login = Request::new().with("ip", ip).with("path", "/login");
//! for _ in 0..5 {
//!     assert!(gate.check(&login).is_allowed());
//! }
//! assert!(gate.check(&login).is_denied());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An invalid file is rejected as a whole. All mistakes are listed, each in one line with its line
//! number and how to fix it:
//!
//! ```
//! # use slidegate_config::policies::Policies;
//! let text = "policies:\n  - name: per-user\n    quota: 100/1m\n    scpoe: [user]\n";
//! let errors = Policies::parse(text, "slidegate.yaml").unwrap_err();
//! assert_eq!(
//!     errors.to_string(),
//!     "slidegate.yaml:4: policy `per-user`: unknown key `scpoe`: did you mean `scope`?"
//! );
//! ```
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
