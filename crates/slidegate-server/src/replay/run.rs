//! The run: each entry of a log is a request to the gate, at the entry's own time.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::IpAddr;

use serde::Serialize;
use slidegate::{Gate, ManualClock, MemoryStats, MemoryStore, PolicyDecision, PolicySet, Request, Timestamp};

use super::log::Entry;
use crate::config::Config;
use crate::why::why;

/// Keys that are counted one by one, for each policy: 16 bytes each, so about 100 MB. Past it the count is a bound.
const MAX_COUNTED_KEYS: usize = 4_000_000;
/// Denied keys of which the number of denials is kept, for each policy.
const MAX_DENIED_KEYS: usize = 1_000_000;

/// A gate that runs on a log's time, and what it has decided so far.
pub(super) struct Replay {
    gate: Gate,
    clock: ManualClock,
    now: Timestamp,
    hasher: RandomState,
    /// In the order of the policies.
    tallies: Vec<Tally>,
    /// Requests that no policy concerned.
    pub(super) unconcerned: u64,
    /// Requests that an enforced policy denied.
    pub(super) denied: u64,
}

/// What one policy saw and said.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) seen: u64,
    pub(super) denied: u64,
    /// Hashes of the keys seen.
    keys: HashSet<u64>,
    pub(super) denied_keys: HashMap<String, DeniedKey>,
    /// Denials on keys beyond [`MAX_DENIED_KEYS`].
    pub(super) denied_elsewhere: u64,
}

/// A key that was denied at least once.
#[derive(Debug)]
pub(super) struct DeniedKey {
    pub(super) denied: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// Why it was denied the first time.
    pub(super) why: String,
}

impl Tally {
    /// How many keys were seen, and whether there were more.
    pub(super) fn keys(&self) -> (usize, bool) {
        (self.keys.len(), self.keys.len() == MAX_COUNTED_KEYS)
    }
}

impl Replay {
    pub(super) fn new(config: Config) -> Self {
        let clock = ManualClock::at(Timestamp::EPOCH);
        let store = MemoryStore::builder().max_keys(config.max_keys).clock(clock.clone()).build();
        let tallies = config.policies.iter().map(|_| Tally::default()).collect();
        Self {
            gate: Gate::with_store(config.policies, store),
            clock,
            now: Timestamp::EPOCH,
            hasher: RandomState::new(),
            tallies,
            unconcerned: 0,
            denied: 0,
        }
    }

    /// Decides one entry; writes a line of JSON about it if asked to.
    ///
    /// # Errors
    /// When the line cannot be written.
    pub(super) fn decide(&mut self, entry: &Entry<'_>, each: Option<&mut impl Write>) -> io::Result<()> {
        // An entry that is later than the slack is decided at the time the log has come to.
        self.now = self.now.max(Timestamp::from_micros(entry.time_us));
        self.clock.set(self.now);
        let status = entry.status.to_string();
        let request = request(entry, &status);
        let decisions = self.gate.check(&request);
        if decisions.iter().len() == 0 {
            self.unconcerned += 1;
        }
        if decisions.is_denied() {
            self.denied += 1;
        }
        for decision in decisions.iter() {
            self.tallies[decision.position()].count(&decision, &self.hasher);
        }
        let Some(out) = each else { return Ok(()) };
        let strictest = decisions.strictest();
        let line = Each {
            time: jiff_time(self.now),
            allowed: decisions.is_allowed(),
            policy: strictest.map(|decision| decision.policy().name()),
            key: strictest.map(|decision| decision.key().to_string()),
            remaining: strictest.map(|decision| decision.remaining),
            why: why(&decisions),
        };
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")
    }

    pub(super) fn policies(&self) -> std::sync::Arc<PolicySet> {
        self.gate.policies()
    }

    pub(super) fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    pub(super) fn store(&self) -> MemoryStats {
        self.gate.stats()
    }
}

/// One request's line of JSON.
#[derive(Serialize)]
struct Each<'a> {
    time: String,
    allowed: bool,
    policy: Option<&'a str>,
    key: Option<String>,
    remaining: Option<u64>,
    why: String,
}

/// An instant as RFC 3339 says it.
pub(super) fn jiff_time(at: Timestamp) -> String {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map_or_else(|_| format!("{micros} us"), |time| time.to_string())
}

/// The attributes of an entry: ip, method, path, status, user and `user_agent`, those that it has.
fn request<'e>(entry: &'e Entry<'_>, status: &'e str) -> Request<'e> {
    let address = std::str::from_utf8(entry.host).ok().and_then(|host| host.parse::<IpAddr>().ok());
    let mut request = Request::new().with("status", status);
    // A client that the server logged by name is counted by it.
    request = match address {
        Some(ip) => request.with("ip", ip),
        None => request.with("ip", entry.host),
    };
    if let Some(line) = &entry.request {
        request = request.with("method", line.method).with("path", line.path());
    }
    if let Some(user) = &entry.user {
        request = request.with("user", &**user);
    }
    if let Some(agent) = &entry.user_agent {
        request = request.with("user_agent", &**agent);
    }
    request
}

impl Tally {
    fn count(&mut self, decision: &PolicyDecision<'_>, hasher: &RandomState) {
        self.seen += 1;
        let key = decision.key().to_string();
        if self.keys.len() < MAX_COUNTED_KEYS {
            self.keys.insert(hasher.hash_one(&key));
        }
        if !decision.is_denied() {
            return;
        }
        self.denied += 1;
        let full = self.denied_keys.len() >= MAX_DENIED_KEYS;
        match self.denied_keys.get_mut(&key) {
            Some(known) => {
                known.denied += 1;
                known.last = decision.at;
            }
            None if full => self.denied_elsewhere += 1,
            None => {
                let why = crate::why::one(decision);
                self.denied_keys
                    .insert(key, DeniedKey { denied: 1, first: decision.at, last: decision.at, why });
            }
        }
    }
}
