//! Listeners: the only place where the service accepts connections, for all protocols.
//!
//! All connections share one budget. When it is exhausted, the longest-idle connection is closed
//! for a new one. If none has been idle for a second, the new one is refused in its own protocol.
//! docs/topology.md states the policy.

mod accept;
mod budget;
mod certificates;
mod http;
mod socket;
mod stream;
mod workers;

mod activity;
mod counters;
mod descriptors;
mod reasons;
mod refusal;
mod table;
mod timeouts;
mod unfinished;

pub(crate) use accept::{Accepted, Acceptor, Admission, Connection};
pub(crate) use budget::{ConnectionBudget, Slot};
pub(crate) use certificates::{Certificates, TlsFiles, TlsProfile};
pub(crate) use counters::{ConnectionSpec, ProtocolConnections};
pub(crate) use descriptors::raise_limit;
pub(crate) use http::{Handler, HttpListener, SharedRoutes};
pub(crate) use refusal::linger;
pub(crate) use socket::{BoundSocket, SocketFile};
pub(crate) use table::ConnectionCaps;
pub(crate) use timeouts::{Timeouts, WRITE_TIMEOUT};
pub(crate) use unfinished::{Part, TooMuch, TrackedBody};
pub(crate) use workers::{Serve, Workers};
