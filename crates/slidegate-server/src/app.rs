//! The app: the one function through which every protocol asks for a decision.
//!
//! A protocol turns its bytes into a [`Request`] with [`App::request`], asks [`App::decide`], and writes the
//! decisions in its own words. It knows no store and no algorithm.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slidegate::headers::HeaderOptions;
use slidegate::{
    Decisions, Error, KeyUse, MemoryStats, MemoryStore, Policy, PolicyDecision, PolicyReset, PolicySet,
    Request, ResetCursor, Timestamp, Value, Verb,
};

use self::changes::{Base, Document, Folded};
use self::shadow::Shadows;
use self::store::{Shared, Store};
use crate::access::Access;
use crate::access::attempts::AuthAttempts;
use crate::config::{Added, Config, KeysShown, describe};
use crate::envoy;
use crate::inline_policies::with_inline;
use crate::limits::{MAX_ATTRIBUTES, MAX_COST, MAX_NAME, MAX_VALUE};
use crate::telemetry::{Caller, Observer, Outcome, Protocol};

pub(crate) mod changes;
pub(crate) mod explanation;
pub(crate) mod shadow;
pub(crate) mod store;

/// The gate and what the service knows about requests and answers.
#[derive(Debug)]
pub(crate) struct App {
    store: Store,
    access: Access,
    /// Attributes whose text is an IP address.
    address_attributes: Vec<String>,
    headers: HeaderOptions,
    observer: Observer,
    /// Whether the policies of [`INLINE_POLICIES`] belong to every set.
    has_inline: bool,
    /// Cleared when the service begins to shut down.
    ready: AtomicBool,
    layers: Mutex<Layers>,
    shadows: Shadows,
}

/// What the policies in force are made of.
#[derive(Debug, Clone, Default)]
struct Layers {
    base: Base,
    /// The names of policies that the configuration had at the start.
    configured: HashSet<String>,
    /// Policies that come from elsewhere, such as files of envoyproxy/ratelimit.
    others: Vec<Policy>,
    document: Arc<Document>,
    /// Changes that could not be put in force, in words.
    refused: Vec<String>,
    /// Policies that are in force as they were added at run time, and how they show keys.
    keys_shown: HashMap<String, KeysShown>,
    /// When the next change of a key ends, in milliseconds since the epoch.
    next_end: Option<u64>,
}

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

impl App {
    /// # Errors
    /// In one line: a shared store that cannot be one, see [`Store::new`], or spans that cannot be sent.
    pub(crate) fn new(config: Config) -> Result<Self, String> {
        let said = |error: Error| error.to_string();
        let memory = MemoryStore::builder().max_keys(config.max_keys).build();
        let has_inline = config.resp.is_some();
        let base = Base { policies: config.policies, candidates: config.candidates };
        let Folded { policies, .. } =
            changes::fold(&base, &Document::default(), 0, &config.address_attributes).map_err(said)?;
        let policies = if has_inline { with_inline(&policies).map_err(said)? } else { policies };
        let configured: HashSet<_> = base.policies.iter().map(|policy| policy.name().to_owned()).collect();
        let observer = Observer::new(config.observe, &policies)?;
        Ok(Self {
            store: Store::new(policies, memory, config.shared).map_err(said)?,
            access: Access::new(config.listen, config.admin),
            address_attributes: config.address_attributes,
            headers: config.headers,
            observer,
            has_inline,
            ready: AtomicBool::new(true),
            layers: Mutex::new(Layers { base, configured, ..Layers::default() }),
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

    /// Puts policies from elsewhere in force beside the configuration's, which may be among them.
    ///
    /// # Errors
    /// They are no set, or a limit is more than a shared store can count; the old policies stay in force.
    pub(crate) fn configure_others(&self, policies: &PolicySet) -> Result<(), Error> {
        let mut layers = self.layers();
        self.put_in_force(&mut layers, |layers| {
            let others = policies.iter().filter(|policy| !layers.configured.contains(policy.name()));
            layers.others = others.cloned().collect();
        })?;
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

    /// The run-time changes in force.
    pub(crate) fn changes(&self) -> Arc<Document> {
        Arc::clone(&self.layers().document)
    }

    /// Changes that are not in force, in words.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.layers().refused.clone()
    }

    /// Whether a policy is in force as it was added at run time.
    pub(crate) fn is_added(&self, policy: &str) -> bool {
        self.layers().keys_shown.contains_key(policy)
    }

    /// The policy that these keys of one describe, if it can be counted here.
    ///
    /// # Errors
    /// In one line that names the policy, the value and the way out.
    pub(crate) fn read_added(
        &self,
        name: &str,
        keys: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<Added, String> {
        let added = Added::read(name, keys, &self.address_attributes)?;
        self.store.can_count(&added.policy).map_err(|error| error.to_string())?;
        Ok(added)
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
        let now_ms = changes::now_ms();
        let mut next = Layers { next_end: None, ..layers.clone() };
        change(&mut next);
        let own = next.base.policies.iter();
        let others = next.others.iter().filter(|policy| next.base.policies.by_name(policy.name()).is_none());
        let all = PolicySet::new(own.chain(others).cloned())?;
        let base = Base { policies: all, candidates: next.base.candidates.clone() };
        let Folded { policies, refused, keys_shown } =
            changes::fold(&base, &next.document, now_ms, &self.address_attributes)?;
        (next.refused, next.keys_shown) = (refused, keys_shown);
        next.next_end = next.document.living(now_ms).map(|change| change.until_ms).min();
        let policies = if self.has_inline { with_inline(&policies)? } else { policies };
        // Before they decide, so that none of their decisions is missed; counts of the old ones go on meanwhile.
        self.observer.follow(&policies, &next.keys_shown);
        if let Err(error) = self.store.configure(policies) {
            self.observer.follow(&self.policies(), &layers.keys_shown);
            return Err(error);
        }
        self.shadows.follow(&self.policies());
        *layers = next;
        Ok(layers.refused.clone())
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

    /// One in memory, on a clock that tests move.
    #[cfg(test)]
    pub(crate) fn on_clock(config: Config, clock: slidegate::ManualClock) -> Self {
        let memory = MemoryStore::builder().clock(clock).build();
        let store = Store::new(config.policies, memory, None).expect("memory is always a store");
        Self { store, ..Self::new(Config::default()).expect("memory is always a store") }
    }

    /// The request that these attributes and this cost are, with addresses read as such.
    ///
    /// # Errors
    /// When there are too many attributes, one stands twice, a name or value is empty or too long, an address is none,
    /// or the cost is above [`MAX_COST`].
    pub(crate) fn request<'r>(
        &self,
        attributes: impl Iterator<Item = (&'r str, &'r [u8])>,
        cost: u64,
    ) -> Result<Request<'r>, BadRequest> {
        if cost > MAX_COST {
            let detail = format!("cost {cost} is too large; give a whole number from 0 to {MAX_COST}");
            return Err(BadRequest { field: Field::Cost, detail });
        }
        let mut request = Request::new().cost(cost);
        self.complete(&mut request, attributes)?;
        Ok(request)
    }

    /// Adds these attributes to a request, with addresses read as such.
    ///
    /// # Errors
    /// As [`request`](Self::request), and then the request is not to be used.
    pub(crate) fn complete<'r>(
        &self,
        request: &mut Request<'r>,
        attributes: impl Iterator<Item = (&'r str, &'r [u8])>,
    ) -> Result<(), BadRequest> {
        let bad = |field, detail| Err(BadRequest { field, detail });
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
            let value = if self.address_attributes.iter().any(|known| known == name) {
                match std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()) {
                    Some(ip) => Value::Address(ip),
                    None => {
                        return bad(
                            Field::Attribute(name.to_owned()),
                            format!(
                                "attribute `{name}` is no IP address: `{}`; write for example `192.0.2.7` or `2001:db8::7`",
                                String::from_utf8_lossy(value).escape_debug()
                            ),
                        );
                    }
                }
            } else {
                Value::Bytes(value)
            };
            request.extend([(name, value)]);
        }
        Ok(())
    }

    /// Decides a request. Every protocol calls this, or [`decide_all`](Self::decide_all).
    pub(crate) async fn decide<'r>(
        &self,
        caller: impl Into<Caller>,
        verb: Verb,
        request: &'r Request<'r>,
    ) -> Decisions<'r> {
        self.decide_all(caller, verb, std::slice::from_ref(request)).await
    }

    /// Decides several requests in one atomic step: all of them are charged on all of their policies, or none.
    pub(crate) async fn decide_all<'r>(
        &self,
        caller: impl Into<Caller>,
        verb: Verb,
        requests: &'r [Request<'r>],
    ) -> Decisions<'r> {
        let begun = self.observer.begin();
        let decisions = match self.store.apply_now(verb, requests) {
            Ok(decisions) => decisions,
            Err(shared) => {
                let start = self.observer.start();
                let decisions = shared.apply_all(verb, requests).await;
                self.observer.called(start, &decisions);
                decisions
            }
        };
        self.seen(&caller.into(), verb, begun, requests, &decisions).await;
        decisions
    }

    /// Does something to usage on the service's own account: no client asked for it, so nobody who watches is shown it.
    pub(crate) async fn apply_unseen<'r>(&self, verb: Verb, requests: &'r [Request<'r>]) -> Decisions<'r> {
        match self.store.apply_now(verb, requests) {
            Ok(decisions) => decisions,
            Err(shared) => shared.apply_all(verb, requests).await,
        }
    }

    /// Shows decisions to those who watch, and requests to the candidates beside their policies.
    async fn seen(
        &self,
        caller: &Caller,
        verb: Verb,
        begun: Option<Timestamp>,
        requests: &[Request<'_>],
        decisions: &Decisions<'_>,
    ) {
        if requests.is_empty() {
            return;
        }
        self.observer.note(caller, verb, begun, decisions);
        for one in self.shadows.note(verb, decisions) {
            let request = requests[one.request].clone().under(&one.candidate);
            if let Err(shared) = self.store.apply_now(Verb::Check, std::slice::from_ref(&request)) {
                shared.apply_all(Verb::Check, std::slice::from_ref(&request)).await;
            }
        }
    }

    /// Counts looks as what they were to a client whose request they decided, each with its outcome.
    pub(crate) fn note_looks(&self, door: Protocol, looks: &[(PolicyDecision<'_>, Outcome)]) {
        self.observer.note_looks(door, looks);
        let shadows = looks.iter().filter(|(one, _)| !one.policy().is_enforced());
        self.shadows.note_looks(shadows.map(|(one, outcome)| (one, *outcome == Outcome::ShadowDeny)));
    }

    /// The part of [`decide`](Self::decide) that waits for nobody, for protocols that decide many requests in one go. `None`
    /// if a shared store has to be asked.
    pub(crate) fn decide_now<'r>(
        &self,
        caller: impl Into<Caller>,
        verb: Verb,
        request: &'r Request<'r>,
    ) -> Option<Decisions<'r>> {
        let begun = self.observer.begin();
        let decisions = self.store.apply_now(verb, std::slice::from_ref(request)).ok()?;
        self.observer.note(&caller.into(), verb, begun, &decisions);
        for one in self.shadows.note(verb, &decisions) {
            let request = request.clone().under(&one.candidate);
            drop(self.store.apply_now(Verb::Check, std::slice::from_ref(&request)));
        }
        Some(decisions)
    }

    /// Checks a request that is charged once however often it is asked with the same id: asked again, within the longest
    /// of its policies' windows, it gives the first answer again.
    pub(crate) async fn check_once<'r>(
        &self,
        caller: impl Into<Caller>,
        request: &'r Request<'r>,
        id: &str,
    ) -> Decisions<'r> {
        let begun = self.observer.begin();
        let decisions = self.store.check_once(request, id).await;
        self.seen(&caller.into(), Verb::Check, begun, std::slice::from_ref(request), &decisions).await;
        decisions
    }

    /// Forgets the request's keys under every policy that applies; says whether anything counted there. Of limits of
    /// envoyproxy/ratelimit's files it forgets what was refused as well.
    ///
    /// # Errors
    /// A shared store did not answer in time: the keys may be forgotten or not.
    pub(crate) async fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        let existed = self.store.reset(request).await?;
        let policies = self.policies();
        let Some(Value::Bytes(counter)) = request.value(envoy::SCOPE) else { return Ok(existed) };
        let is_rule = |policy: &Policy| {
            policy.is_only_when_named()
                && policy.scope_attributes() == [envoy::SCOPE]
                && policy.applies_to(request)
        };
        let (Some(rule), Ok(counter)) =
            (policies.iter().find(|policy| is_rule(policy)), std::str::from_utf8(counter))
        else {
            return Ok(existed);
        };
        let refused = envoy::refused_key(counter);
        let refused = Request::new().with(envoy::SCOPE, &refused).under(rule.name());
        Ok(self.store.reset(&refused).await? || existed)
    }

    /// One step of forgetting every key of a policy.
    ///
    /// # Errors
    /// The cursor is that of another store, or a shared store did not answer in time.
    pub(crate) async fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        self.store.reset_policy_step(policy, from, keys).await
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.store.policies()
    }

    /// What a policy does, in words.
    pub(crate) fn describe(&self, policy: &Policy) -> String {
        describe(policy, self.store.counted())
    }

    /// The store that is shared, if it is.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.store.shared()
    }

    /// Who may ask for what.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// What limits wrong passwords and tokens, for all protocols together.
    pub(crate) fn auth_attempts(&self) -> &AuthAttempts {
        self.access.attempts()
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
