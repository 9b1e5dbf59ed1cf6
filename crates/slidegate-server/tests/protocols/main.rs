//! The protocols besides HTTP, spoken by their own clients: RESP and Envoy's gRPC services.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod controls;
mod drain;
mod resp;
mod rls;
mod waiting;
