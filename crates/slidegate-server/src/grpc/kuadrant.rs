//! The messages of `kuadrant.service.ratelimit.v1.RateLimitService` that are not Envoy's.
//!
//! `proto/` has the service's definition; a test compares these types with it.

use super::message::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::google::protobuf::Duration;

/// The name of the service.
pub(crate) const SERVICE_NAME: &str = "kuadrant.service.ratelimit.v1.RateLimitService";

/// Asks to hold cost.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReserveRequest {
    /// The domain.
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    /// What it is for.
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    /// What to hold; 0 is the estimate of each policy.
    #[prost(uint64, tag = "3")]
    pub(crate) amount: u64,
    /// How long it lasts: 1 ms to 1 h. Default: one minute.
    #[prost(message, optional, tag = "4")]
    pub(crate) ttl: Option<Duration>,
}

/// Whether it is held.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReserveResponse {
    /// `OK` or `OVER_LIMIT`; `UNKNOWN` without a domain.
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) code: i32,
    /// The ticket; empty if the call is denied or nothing limits it.
    #[prost(string, tag = "2")]
    pub(crate) reservation_id: String,
}

/// Asks to charge what a reservation cost.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CommitRequest {
    /// The domain.
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    /// Those of the reservation. Without a `reservation_id`, they are charged as by `Report`.
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    /// The ticket.
    #[prost(string, tag = "3")]
    pub(crate) reservation_id: String,
    /// The true cost.
    #[prost(uint64, tag = "4")]
    pub(crate) actual_amount: u64,
}

/// The outcome of the reservation.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct CommitResponse {
    /// Whether it was open.
    #[prost(bool, tag = "1")]
    pub(crate) reservation_released: bool,
}
