//! The doors: each turns its bytes into a request, asks the front, and answers in its own words.

pub(crate) mod http;
pub(crate) mod resp;
pub(crate) mod rls;
