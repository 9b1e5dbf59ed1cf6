//! The data plane: protocols that turn bytes into requests and decisions into bytes.

pub(crate) mod auth;
pub(crate) mod fields;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod json_body;
pub(crate) mod key_text;
pub(crate) mod malformed;
pub(crate) mod ports;
pub(crate) mod problem;
pub(crate) mod protocol;
pub(crate) mod protocols;
pub(crate) mod query;
pub(crate) mod request;
pub(crate) mod resp;
pub(crate) mod routes;
