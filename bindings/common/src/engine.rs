//! A gate, in memory or over Redis, whose calls take and return plain values.

use std::pin::pin;
use std::slice;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slidegate::acquire::MaxWaiting;
use slidegate::reserve::{Extension, HoldOptions, Settlement, Ticket};
#[cfg(feature = "redis")]
use slidegate::store::FallbackStore;
use slidegate::{
    Algorithm, Decisions, Gate, MemoryStore, Quota, Request, SharedGate, clock::ManualClock, verb::Verb,
};
use slidegate_config::policies::Policies;
use slidegate_http::headers::{Draft, HeaderOptions, XRateLimit};
#[cfg(feature = "redis")]
use slidegate_redis::{RedisGate, RedisOptions, RedisStore};

use crate::{Amount, Answer, BindingError, Call, Settled};

/// Settings that gates in memory and shared ones have.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// Time that is advanced by hand, for tests. Only in memory.
    pub clock: Option<ManualClock>,
    /// Most keys in memory; the library's default if `None`. Only in memory.
    pub max_keys: Option<usize>,
    /// How many may wait for their turn on one key; the library's default if `None`.
    pub max_waiting: Option<usize>,
    /// The version of the `RateLimit` fields: `draft-10` if `None`, or `off`, `draft-7` and so on.
    pub draft: Option<String>,
    /// The `X-RateLimit` fields: `off`, or a form of theirs. `None` is the library's default.
    pub x_ratelimit: Option<String>,
}

/// How Redis is asked. Everything is the library's default if it is `None` or false.
#[cfg(feature = "redis")]
#[derive(Debug, Clone, Default)]
pub struct SharedOptions {
    /// The longest a decision may take, 1 ms to 60 s.
    pub deadline: Option<Duration>,
    /// The longest that making a connection may take, 1 ms to 60 s.
    pub connect_timeout: Option<Duration>,
    /// Connections to each node, 1 to 16.
    pub connections: Option<u8>,
    /// What ids are hashed with in the names of keys: the same in all programs that share limits.
    pub key_secret: Option<String>,
    /// Whether every id is hashed.
    pub hashed_keys: bool,
    /// The attribute whose value chooses the slot of a cluster.
    pub hash_tag: Option<String>,
    /// The certificates of authorities, in PEM form, that servers are trusted by.
    pub ca_certificates: Option<Vec<u8>>,
}

/// A gate, and what of its settings the library leaves to programs.
#[derive(Debug)]
pub struct Engine {
    gate: AnyGate,
    headers: HeaderOptions,
    /// The attributes whose text is a network address.
    addresses: RwLock<Vec<String>>,
}

#[derive(Debug)]
enum AnyGate {
    Memory(Box<SharedGate<MemoryStore>>),
    #[cfg(feature = "redis")]
    Shared(Box<RedisGate>),
}

/// The same expression for either gate.
macro_rules! with_gate {
    ($engine:expr, $gate:ident => $result:expr) => {
        match &$engine.gate {
            AnyGate::Memory($gate) => $result,
            #[cfg(feature = "redis")]
            AnyGate::Shared($gate) => $result,
        }
    };
}

impl Engine {
    /// A gate in memory.
    pub fn memory(policies: Policies, options: &EngineOptions) -> Result<Self, BindingError> {
        let headers = options.headers()?;
        let Policies { set, addresses, .. } = policies;
        let gate = Gate::with_memory(set, options.store()).with_max_waiting(options.max_waiting());
        let gate = AnyGate::Memory(Box::new(SharedGate::from(Arc::new(gate))));
        Ok(Self { gate, headers, addresses: RwLock::new(addresses) })
    }

    /// A gate over the Redis of this URL, see [`RedisOptions`]. Its calls must be polled within a tokio
    /// runtime.
    #[cfg(feature = "redis")]
    pub fn shared(
        url: &str,
        policies: Policies,
        options: &EngineOptions,
        shared: SharedOptions,
    ) -> Result<Self, BindingError> {
        if options.clock.is_some() || options.max_keys.is_some() {
            let text =
                "a shared gate counts in Redis, by its clock: give `clock` and `maxKeys` to a gate in memory";
            return Err(BindingError::request(text));
        }
        let headers = options.headers()?;
        let Policies { set, addresses, .. } = policies;
        let store = FallbackStore::new(RedisStore::new(shared.redis(url)?)?);
        let gate = Gate::with_store(set, store)?.with_max_waiting(options.max_waiting());
        let gate = AnyGate::Shared(Box::new(SharedGate::from(Arc::new(gate))));
        Ok(Self { gate, headers, addresses: RwLock::new(addresses) })
    }

    /// Whether calls return at once: whether the gate is in memory.
    pub fn is_local(&self) -> bool {
        matches!(self.gate, AnyGate::Memory(_))
    }

    /// Decides on a request. An error is the caller's: a shared store that fails is part of the answer.
    pub async fn decide(&self, verb: Verb, call: &Call) -> Result<Answer, BindingError> {
        let request = self.request(call);
        let requests = slice::from_ref(&request);
        let decisions = with_gate!(self, gate => match &call.id {
            Some(id) if verb == Verb::Check => gate.check_once(&request, id).await,
            Some(_) | None => gate.apply_all(verb, requests).await,
        });
        self.answer(&decisions, call)
    }

    /// Like a check, but waits up to `timeout` for its turn, behind those who wait for the same keys. What
    /// gets no turn in time is denied. Nothing is charged while it waits, and dropping the future leaves the
    /// queue. An idempotency key has no effect.
    ///
    /// Must be polled within a tokio runtime with timers, also in memory.
    pub async fn acquire(&self, call: &Call, timeout: Duration) -> Result<Answer, BindingError> {
        let request = self.request(call);
        let decisions = with_gate!(self, gate => gate.acquire(&request).timeout(timeout).decide().await);
        self.answer(&decisions, call)
    }

    /// How many wait for their turn now.
    pub fn waiting(&self) -> usize {
        with_gate!(self, gate => gate.gate().waiting())
    }

    /// Lets those who wait ask again: after time was advanced by hand, which wakes nobody. Only in memory.
    pub fn time_has_passed(&self) {
        match &self.gate {
            // To put the same policies in force changes nothing else, and a memory store takes any.
            AnyGate::Memory(gate) => drop(gate.configure((*gate.policies()).clone())),
            #[cfg(feature = "redis")]
            AnyGate::Shared(_) => {}
        }
    }

    /// Forgets what the request's keys have used. Returns whether there was anything.
    pub async fn reset(&self, call: &Call) -> Result<bool, BindingError> {
        let request = self.request(call);
        Ok(with_gate!(self, gate => gate.reset(&request).await)?)
    }

    /// Replaces the policies. Usage stays with the names of policies. Nothing changes on an error.
    pub fn configure(&self, policies: Policies) -> Result<(), BindingError> {
        let Policies { set, addresses, .. } = policies;
        let mut known = self.addresses.write().unwrap_or_else(PoisonError::into_inner);
        with_gate!(self, gate => gate.configure(set))?;
        *known = addresses;
        Ok(())
    }

    /// Holds the request's cost until it is known, for `ttl` (1 ms to 1 h) unless it is settled or extended.
    /// `None` is a minute, and the lease of a permit.
    pub async fn reserve(&self, call: &Call, ttl: Option<Duration>) -> Result<Answer, BindingError> {
        let request = self.request(call);
        let options = HoldOptions { ttl, id: call.id.as_deref() };
        let requests = slice::from_ref(&request);
        let reserved = with_gate!(self, gate => gate.reserve_all(requests, options).await)?;
        Ok(self.answer(reserved.decisions(), call)?.with_ticket(reserved.ticket()))
    }

    /// Like [`reserve`](Self::reserve), but waits for its turn as [`acquire`](Self::acquire) does.
    pub async fn acquire_reservation(
        &self,
        call: &Call,
        ttl: Option<Duration>,
        timeout: Duration,
    ) -> Result<Answer, BindingError> {
        let request = self.request(call);
        let reserved = with_gate!(self, gate => {
            let waiting = gate.acquire_reservation(&request).timeout(timeout);
            match ttl {
                Some(ttl) => waiting.ttl(ttl)?.decide().await,
                None => waiting.decide().await,
            }
        });
        Ok(self.answer(reserved.decisions(), call)?.with_ticket(reserved.ticket()))
    }

    /// Charges what a reservation has cost, for good or so far.
    pub async fn settle(&self, ticket: &str, cost: &Amount, is_final: bool) -> Result<Settled, BindingError> {
        let ticket: Ticket = ticket.parse()?;
        let cost = cost.cost();
        settled(with_gate!(self, gate => if is_final {
            gate.settle(&ticket, cost).await
        } else {
            gate.settle_so_far(&ticket, cost).await
        }))
    }

    /// Lengthens a reservation, to `ttl` from now on if it is given, and holds `total` in all if that is.
    pub async fn extend(
        &self,
        ticket: &str,
        ttl: Option<Duration>,
        total: Option<&Amount>,
    ) -> Result<Settled, BindingError> {
        let ticket: Ticket = ticket.parse()?;
        let mut extension = Extension::new();
        if let Some(ttl) = ttl {
            extension = extension.with_ttl(ttl)?;
        }
        if let Some(total) = total {
            extension = extension.with_total(total.cost());
        }
        settled(with_gate!(self, gate => gate.extend(&ticket, extension).await))
    }

    /// Gives everything back that a reservation holds or has charged.
    pub async fn cancel(&self, ticket: &str) -> Result<Settled, BindingError> {
        let ticket: Ticket = ticket.parse()?;
        settled(with_gate!(self, gate => gate.cancel(&ticket).await))
    }

    fn answer(&self, decisions: &Decisions<'_>, call: &Call) -> Result<Answer, BindingError> {
        match decisions.error() {
            Some(error) => Err(error.into()),
            None => Ok(Answer::new(decisions, call.wants_headers.then_some(&self.headers))),
        }
    }

    fn request<'c>(&self, call: &'c Call) -> Request<'c> {
        call.request(&self.addresses.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn settled(settlement: Result<Settlement, slidegate::Error>) -> Result<Settled, BindingError> {
    Ok(settlement?.into())
}

impl EngineOptions {
    /// The store of a gate or limiter in memory.
    pub fn store(&self) -> MemoryStore {
        let mut store = MemoryStore::builder();
        if let Some(clock) = &self.clock {
            store = store.clock(clock.clone());
        }
        if let Some(max_keys) = self.max_keys {
            store = store.max_keys(max_keys);
        }
        store.build()
    }

    /// How many may wait for their turn.
    pub fn max_waiting(&self) -> MaxWaiting {
        let most = MaxWaiting::default();
        let per_key = self.max_waiting.unwrap_or(most.per_key);
        MaxWaiting { per_key, in_all: most.in_all.max(per_key) }
    }

    /// The header fields of responses.
    pub fn headers(&self) -> Result<HeaderOptions, BindingError> {
        let mut headers = HeaderOptions::default();
        if let Some(draft) = &self.draft {
            headers.draft = Draft::from_str(draft)?;
        }
        if let Some(x_ratelimit) = &self.x_ratelimit {
            headers.x_ratelimit = XRateLimit::from_str(x_ratelimit)?;
        }
        Ok(headers)
    }
}

#[cfg(feature = "redis")]
impl SharedOptions {
    fn redis(self, url: &str) -> Result<RedisOptions, BindingError> {
        let mut redis = RedisOptions::new(url)?;
        if let Some(deadline) = self.deadline {
            redis = redis.with_deadline(deadline);
        }
        if let Some(connect_timeout) = self.connect_timeout {
            redis = redis.with_connect_timeout(connect_timeout);
        }
        if let Some(connections) = self.connections {
            redis = redis.with_connections(connections);
        }
        if let Some(secret) = &self.key_secret {
            redis = redis.with_key_secret(secret);
        }
        if self.hashed_keys {
            redis = redis.hashed_keys();
        }
        if let Some(attribute) = self.hash_tag {
            redis = redis.with_hash_tag(attribute);
        }
        if let Some(pem) = self.ca_certificates {
            redis = redis.with_ca_certificates(pem);
        }
        Ok(redis)
    }
}

/// Polls a future once. Calls of a gate in memory are ready then; those of a shared one are if they need no
/// reply, as of a cached denial. `Err` is the future, to be polled on.
pub fn poll_once<F: Future + Unpin>(mut future: F) -> Result<F::Output, F> {
    match pin!(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(future),
    }
}

/// A quota of this text, such as `100/1m`, by this algorithm, with this burst.
pub fn quota(text: &str, algorithm: Option<&str>, burst: Option<u64>) -> Result<Quota, BindingError> {
    let mut quota: Quota = text.parse()?;
    if let Some(name) = algorithm {
        let algorithm = Algorithm::from_str(name)
            .map_err(|error| BindingError::new("invalid_quota", error.to_string()))?;
        quota = quota.with_algorithm(algorithm);
    }
    if let Some(burst) = burst {
        quota = quota.with_burst(burst);
    }
    Ok(quota)
}
