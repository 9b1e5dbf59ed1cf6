//! Formats of access logs: from a line to a record.

pub(crate) mod apache;
pub(crate) mod clf;
pub(crate) mod delimited;
pub(crate) mod detect;
pub(crate) mod envoy;
pub(crate) mod field;
pub(crate) mod fold;
pub(crate) mod haproxy;
pub(crate) mod json;
pub(crate) mod mapping;
pub(crate) mod name;
pub(crate) mod nginx;
pub(crate) mod parser;
pub(crate) mod request;
pub(crate) mod template;
pub(crate) mod time;
pub(crate) mod wrapper;

/// The kind of a well-formed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    Request,
    /// A header, a comment, or a server message about something else.
    Other,
}
