//! Hostile clients of every protocol. In each case a well-behaved client is served in time, and the
//! service's memory and file descriptors stay bounded.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod bombs;
mod descriptors;
mod floods;
mod grpc_floods;
mod http2;
mod shares;
mod stalling;
mod still_writing;
mod unread;
mod victim;
