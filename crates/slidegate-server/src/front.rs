//! The front: the one function through which every protocol asks for a decision.
//!
//! A protocol turns its bytes into a [`Request`] with [`Front::request`], asks [`Front::decide`], and writes the
//! decisions in its own words. It knows no store and no algorithm.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slidegate::headers::HeaderOptions;
use slidegate::{Decisions, Error, KeyUse, MemoryStats, MemoryStore, Policy, PolicySet, Request, Verb};

use crate::config::{Config, describe};
use crate::control::{self, Base, Document};
use crate::observe::{Door, Observer};
use crate::shadow::Shadows;
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
    layers: Mutex<Layers>,
    shadows: Shadows,
}

/// What the policies in force are made of.
#[derive(Debug, Default)]
struct Layers {
    base: Base,
    document: Arc<Document>,
    /// When the next change of a key ends, in milliseconds since the epoch.
    next_end: Option<u64>,
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
        let base = Base { policies: config.policies, candidates: config.candidates };
        let (policies, _) = control::fold(&base, &Document::default(), 0, |_| false)?;
        let observer = Observer::new(config.observe, &policies);
        Ok(Self {
            store: Store::new(policies, memory, config.shared)?,
            address_attributes: config.address_attributes,
            headers: config.headers,
            observer,
            ready: AtomicBool::new(true),
            layers: Mutex::new(Layers { base, ..Layers::default() }),
            shadows: Shadows::default(),
        })
    }

    /// Puts what the configuration says now in force, under what was changed since. Usage is kept by policy name.
    ///
    /// # Errors
    /// A limit is more than a shared store can count; the old policies stay in force.
    pub(crate) fn configure(&self, base: Base) -> Result<(), Error> {
        let mut layers = self.layers();
        let refused = self.put_in_force(&mut layers, |layers| layers.base = base)?;
        drop(layers);
        for refused in refused {
            tracing::warn!("not in force: {refused}");
        }
        Ok(())
    }

    /// Puts what was changed at run time in force. Gives what could not be, in words.
    pub(crate) fn configure_changes(&self, document: Arc<Document>) -> Vec<String> {
        let mut layers = self.layers();
        let refused = self.put_in_force(&mut layers, |layers| layers.document = document);
        refused.unwrap_or_else(|error| vec![error.to_string()])
    }

    /// Ends changes of keys whose time is over.
    pub(crate) fn end_what_is_over(&self) {
        let mut layers = self.layers();
        if let Err(error) = self.put_in_force(&mut layers, |_| {}) {
            tracing::error!(%error, "changes that are over stay in force");
        }
    }

    /// When the next change of a key ends, in milliseconds since the epoch.
    pub(crate) fn next_end(&self) -> Option<u64> {
        self.layers().next_end
    }

    /// What the configuration says, without changes.
    pub(crate) fn base(&self) -> Base {
        self.layers().base.clone()
    }

    fn put_in_force(
        &self,
        layers: &mut Layers,
        change: impl FnOnce(&mut Layers),
    ) -> Result<Vec<String>, Error> {
        let now_ms = control::now_ms();
        let mut next =
            Layers { base: layers.base.clone(), document: Arc::clone(&layers.document), next_end: None };
        change(&mut next);
        let (policies, refused) =
            control::fold(&next.base, &next.document, now_ms, |attribute| self.is_address(attribute))?;
        next.next_end = next.document.living(now_ms).map(|change| change.until_ms).min();
        self.observer.follow(&policies);
        self.store.configure(policies)?;
        *layers = next;
        Ok(refused)
    }

    fn layers(&self) -> std::sync::MutexGuard<'_, Layers> {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the text of this attribute is an address.
    pub(crate) fn is_address(&self, attribute: &str) -> bool {
        self.address_attributes.iter().any(|known| known == attribute)
    }

    /// What policies in shadow would have done, and what candidates would change.
    pub(crate) fn shadows(&self) -> &Shadows {
        &self.shadows
    }

    /// What the request's keys have used, charge by charge.
    ///
    /// # Errors
    /// A shared store did not answer, or holds what slidegate did not write.
    pub(crate) async fn inspect(&self, request: &Request<'_>) -> Result<Vec<KeyUse>, Error> {
        self.store.inspect(request).await
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
        let decisions = match self.store.apply_now(verb, requests) {
            Ok(decisions) => decisions,
            Err(shared) => {
                let start = self.observer.start();
                let decisions = shared.apply_all(verb, requests).await;
                self.observer.called(start, &decisions);
                decisions
            }
        };
        self.observer.note(door, verb, &decisions);
        for one in self.shadows.note(verb, &decisions) {
            let request = requests[one.request].clone().under(&one.candidate);
            if let Err(shared) = self.store.apply_now(Verb::Check, std::slice::from_ref(&request)) {
                shared.apply_all(Verb::Check, std::slice::from_ref(&request)).await;
            }
        }
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
