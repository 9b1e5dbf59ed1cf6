//! The front: the one function through which every protocol asks for a decision.
//!
//! A protocol turns its bytes into a [`Request`] with [`Front::request`], asks [`Front::decide`], and writes the
//! decisions in its own words. It knows no store and no algorithm.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use slidegate::headers::HeaderOptions;
use slidegate::{Decisions, Error, MemoryStats, MemoryStore, Policy, PolicySet, Request, Verb};

use crate::config::{Config, describe};
use crate::observe::{Door, Observer};
use crate::store::{Shared, Store};

/// The gate and what the service knows about requests and answers.
#[derive(Debug)]
pub(crate) struct Front {
    store: Store,
    /// Attributes whose text is an IP address.
    address_attributes: Vec<String>,
    headers: HeaderOptions,
    observer: Observer,
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
    /// # Errors
    /// A shared store that cannot be one, see [`Store::new`].
    pub(crate) fn new(config: Config) -> Result<Self, Error> {
        let memory = MemoryStore::builder().max_keys(config.max_keys).build();
        let observer = Observer::new(config.observe, &config.policies);
        Ok(Self {
            store: Store::new(config.policies, memory, config.shared)?,
            address_attributes: config.address_attributes,
            headers: config.headers,
            observer,
            ready: AtomicBool::new(true),
        })
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

    /// Decides a request. Every protocol calls this, or [`decide_all`](Self::decide_all).
    pub(crate) async fn decide<'r>(&self, door: Door, verb: Verb, request: &'r Request<'r>) -> Decisions<'r> {
        self.decide_all(door, verb, std::slice::from_ref(request)).await
    }

    /// Decides several requests in one atomic step: all of them are charged on all of their policies, or none.
    pub(crate) async fn decide_all<'r>(
        &self,
        door: Door,
        verb: Verb,
        requests: &'r [Request<'r>],
    ) -> Decisions<'r> {
        let decisions = match &self.store {
            Store::Memory(gate) => gate.apply_all(verb, requests),
            Store::Shared(shared) => {
                let start = self.observer.start();
                let decisions = shared.apply_all(verb, requests).await;
                self.observer.called(start, &decisions);
                decisions
            }
        };
        self.observer.note(door, verb, &decisions);
        decisions
    }

    /// Forgets the request's keys under every policy that applies; says whether anything counted there.
    ///
    /// # Errors
    /// A shared store did not answer in time: the keys may be forgotten or not.
    pub(crate) async fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        self.store.reset(request).await
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.store.policies()
    }

    /// What a policy does, in words.
    pub(crate) fn describe(&self, policy: &Policy) -> String {
        describe(policy, self.store.counted())
    }

    /// Why a fallback decided, as the end of a sentence.
    pub(crate) fn absence(&self) -> &str {
        self.store.absence()
    }

    /// The store that is shared, if it is.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.store.shared()
    }

    /// What watches decisions.
    pub(crate) fn observer(&self) -> &Observer {
        &self.observer
    }

    pub(crate) fn headers(&self) -> &HeaderOptions {
        &self.headers
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.store.stats()
    }

    /// Removes expired keys, a part of the store at a time.
    pub(crate) fn sweep(&self) {
        self.store.sweep(self.store.stats().max_keys / SWEEPS_PER_ROUND);
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// From here on `/readyz` says that no new requests should come.
    pub(crate) fn begin_shutdown(&self) {
        self.ready.store(false, Ordering::Relaxed);
        self.observer.end();
    }
}

/// The whole store is looked through once in as many sweeps.
const SWEEPS_PER_ROUND: usize = 64;
