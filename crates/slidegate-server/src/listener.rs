//! Listeners: the one place where the service accepts connections, for all protocols.
//!
//! All connections share one budget. When it is used up, the longest-idle connection is closed for
//! a new one; if none has been idle for a second, the new one is refused in its own protocol.
//! docs/operations.md states the policy.

mod accept;
mod budget;
mod http;
mod socket;
mod stream;

mod activity;
mod counters;
mod descriptors;
mod refusal;
mod table;
mod timeouts;

pub(crate) use accept::{Accepted, Acceptor};
pub(crate) use budget::{ConnectionBudget, ConnectionCaps};
pub(crate) use counters::{ConnectionSpec, ProtocolConnections, Refusal};
pub(crate) use descriptors::raise_limit;
pub(crate) use http::{Handler, HttpListener};
pub(crate) use socket::BoundSocket;
pub(crate) use stream::{DetachedStream, TrackedStream};
pub(crate) use timeouts::{Timeouts, WRITE_TIMEOUT};
