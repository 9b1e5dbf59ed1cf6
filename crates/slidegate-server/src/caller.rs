//! The caller of a decision: its protocol and trace.

use opentelemetry::Context;

/// The protocol of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    AuthRequest,
    Resp,
    Grpc,
}

impl Protocol {
    pub(crate) const ALL: [Self; 4] = [Self::Http, Self::AuthRequest, Self::Resp, Self::Grpc];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::AuthRequest => "auth_request",
            Self::Resp => "resp",
            Self::Grpc => "grpc",
        }
    }
}

/// The source of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) protocol: Protocol,
    /// The context with the caller's span. `None` if the request names none, or tracing is
    /// disabled.
    pub(crate) parent: Option<Context>,
}

impl From<Protocol> for Caller {
    fn from(protocol: Protocol) -> Self {
        Self { protocol, parent: None }
    }
}
