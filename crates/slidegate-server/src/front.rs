//! The front: the one function through which every protocol asks for a decision.
//!
//! A protocol turns its bytes into a [`Request`] with [`Front::request`], asks [`Front::decide`], and writes the
//! decisions in its own words. It knows no store and no algorithm.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use slidegate::headers::HeaderOptions;
use slidegate::{Decisions, Gate, MemoryStats, PolicySet, Request};

use crate::config::Config;

/// What is asked about a request's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Decide, and charge if allowed.
    Check,
    /// Decide without charging.
    Peek,
    /// Give back.
    Refund,
    /// Charge although it may exceed.
    Penalize,
}

/// The gate and what the service knows about requests and answers.
#[derive(Debug)]
pub(crate) struct Front {
    gate: Gate,
    /// Attributes whose text is an IP address.
    address_attributes: Vec<String>,
    headers: HeaderOptions,
    /// Cleared when the service begins to shut down.
    ready: AtomicBool,
}

/// Most attributes of a request. Policies look for theirs one by one.
pub(crate) const MAX_ATTRIBUTES: usize = 32;
/// Longest name of an attribute, in bytes.
pub(crate) const MAX_NAME: usize = 128;
/// Longest value of an attribute, in bytes: more than any token or path that should be counted by.
pub(crate) const MAX_VALUE: usize = 8192;
/// Largest cost: above it JSON readers that keep numbers as doubles would read another one.
pub(crate) const MAX_COST: u64 = (1 << 53) - 1;

/// Why attributes and a cost are no request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRequest {
    pub(crate) field: Field,
    /// One line that names the value and the way out.
    pub(crate) detail: String,
}

/// The part of a request that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Field {
    /// The attribute of this name.
    Attribute(String),
    /// The attributes as a whole.
    Attributes,
    Cost,
}

impl Front {
    pub(crate) fn new(config: Config) -> Self {
        let store = slidegate::MemoryStore::builder().max_keys(config.max_keys).build();
        Self {
            gate: Gate::with_store(config.policies, store),
            address_attributes: config.address_attributes,
            headers: config.headers,
            ready: AtomicBool::new(true),
        }
    }

    /// The request that these attributes and this cost are, with addresses read as such.
    ///
    /// # Errors
    /// When there are too many attributes, one stands twice, a name or value is empty or too long, an address is none,
    /// or the cost is above [`MAX_COST`].
    pub(crate) fn request<'r>(
        &self,
        attributes: impl Iterator<Item = (&'r str, &'r str)>,
        cost: u64,
    ) -> Result<Request<'r>, BadRequest> {
        let bad = |field, detail| Err(BadRequest { field, detail });
        if cost > MAX_COST {
            return bad(
                Field::Cost,
                format!("cost {cost} is too large; give a whole number from 0 to {MAX_COST}"),
            );
        }
        let mut request = Request::new().cost(cost);
        for (at, (name, value)) in attributes.enumerate() {
            if at == MAX_ATTRIBUTES {
                return bad(
                    Field::Attributes,
                    format!("there are more than {MAX_ATTRIBUTES} attributes; give those that policies use"),
                );
            }
            if name.is_empty() || name.len() > MAX_NAME {
                return bad(
                    Field::Attributes,
                    format!(
                        "the name of attribute {} has {} bytes; give 1 to {MAX_NAME}",
                        at + 1,
                        name.len()
                    ),
                );
            }
            if value.len() > MAX_VALUE {
                return bad(
                    Field::Attribute(name.to_owned()),
                    format!("attribute `{name}` has {} bytes; give at most {MAX_VALUE}", value.len()),
                );
            }
            if request.value(name).is_some() {
                return bad(
                    Field::Attribute(name.to_owned()),
                    format!("attribute `{name}` stands twice; give it once"),
                );
            }
            request = if self.address_attributes.iter().any(|known| known == name) {
                match value.parse::<IpAddr>() {
                    Ok(ip) => request.with(name, ip),
                    Err(_) => {
                        return bad(
                            Field::Attribute(name.to_owned()),
                            format!(
                                "attribute `{name}` is no IP address: `{}`; write for example `192.0.2.7` or `2001:db8::7`",
                                value.escape_debug()
                            ),
                        );
                    }
                }
            } else {
                request.with(name, value)
            };
        }
        Ok(request)
    }

    /// Decides a request. Every protocol calls this one function.
    pub(crate) fn decide<'r>(&self, verb: Verb, request: &'r Request<'r>) -> Decisions<'r> {
        match verb {
            Verb::Check => self.gate.check(request),
            Verb::Peek => self.gate.peek(request),
            Verb::Refund => self.gate.refund(request),
            Verb::Penalize => self.gate.penalize(request),
        }
    }

    /// Forgets the request's keys under every policy that applies; says whether anything counted there.
    pub(crate) fn reset(&self, request: &Request<'_>) -> bool {
        self.gate.reset(request)
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.gate.policies()
    }

    pub(crate) fn headers(&self) -> &HeaderOptions {
        &self.headers
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.gate.stats()
    }

    /// Removes expired keys, a part of the store at a time.
    pub(crate) fn sweep(&self) {
        self.gate.sweep(self.gate.stats().max_keys / SWEEPS_PER_ROUND);
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// From here on `/readyz` says that no new requests should come.
    pub(crate) fn begin_shutdown(&self) {
        self.ready.store(false, Ordering::Relaxed);
    }
}

/// The whole store is looked through once in as many sweeps.
const SWEEPS_PER_ROUND: usize = 64;
