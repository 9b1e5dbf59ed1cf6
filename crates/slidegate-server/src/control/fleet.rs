//! The fleet: sums the records that instances sharing a store publish about themselves.
//!
//! Each instance publishes its record when it counts itself. Records expire by the server's clock: a stopped
//! or hanging instance disappears after ten seconds. Records are only shown to operators; nothing else
//! depends on them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::digest::{Context, SHA256};
use slidegate::PolicySet;

use crate::clock::{millis, now_ms};
use crate::config::{Storage, describe};
use crate::control::changes::Document;
use crate::engine::App;
use crate::engine::store::Shared;
use crate::record::{By, OtherCounts, Ranking};

mod history;
mod record;

use history::FleetHistory;
pub(crate) use history::bytes_at_most as history_bytes;
pub(crate) use record::{Instance, PolicyTotals, Record};
use record::{Recent, TopPart};

/// Maximum age of other instances' records when they are requested.
const FRESH: Duration = Duration::from_secs(2);
/// Interval of reads without a request, to detect instances that differ.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// How long instances may differ: a rollout replaces them one by one. The alert in deploy/prometheus uses the
/// same time.
pub(crate) const ROLLOUT: Duration = Duration::from_secs(300);
/// Pause after computing top keys, as a multiple of the computing time: 1 % of a core.
const TOP_PAUSE: u32 = 100;
/// Hexadecimal digits of a config digest.
const DIGEST_DIGITS: usize = 16;

/// The fleet, as this instance sees it.
#[derive(Debug)]
pub(crate) struct Fleet {
    app: Arc<App>,
    /// Host and port.
    name: String,
    state: Mutex<FleetState>,
    /// Held while reading, so many requests cause one read.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct FleetState {
    others: Arc<Vec<Instance>>,
    /// Time of the last read, since the start.
    read_at: Option<Duration>,
    /// Why the last read failed.
    error: Option<String>,
    /// Records in the store that are not from instances.
    unreadable: u64,
    history: FleetHistory,
    /// Since when instances differ, counted from the start, and whether it was logged.
    differ: Option<Difference>,
    published: Published,
    /// The last published top keys, and when they may be recomputed.
    top: [TopPart; 2],
    next_top: Duration,
    /// The digest of these policies and the file with this hash.
    digest: Option<(Arc<PolicySet>, String, String)>,
}

/// Totals at the last publication.
#[derive(Debug, Default)]
struct Published {
    at: Option<Duration>,
    checks: [u64; 2],
    recent: Recent,
}

#[derive(Debug, Clone, Copy)]
struct Difference {
    since: Duration,
    is_logged: bool,
}

/// The instances shown: all, or the requested one.
#[derive(Debug)]
pub(crate) struct FleetView {
    pub(crate) instances: Vec<Instance>,
    /// Why the other instances are unknown.
    pub(crate) error: Option<String>,
    /// Records in the store that no instance wrote.
    pub(crate) unreadable: u64,
    /// How long versions or configurations have differed.
    pub(crate) differs_for: Option<Duration>,
}

impl Fleet {
    pub(crate) fn new(app: Arc<App>, port: u16) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let printable: String = host.chars().filter(char::is_ascii_graphic).take(100).collect();
        let name = format!("{printable}:{port}");
        Self { app, name, state: Mutex::default(), reading: tokio::sync::Mutex::default() }
    }

    /// Publishes this instance's record, counts the instances, and reads the others' records if due.
    pub(crate) async fn publish(&self, document: &Document, shared: Shared<'_>) {
        let now = self.app.observer().uptime();
        {
            let checks = self.app.observer().checks();
            let mut state = self.state();
            let Published { at, checks: before, .. } = state.published;
            let since = |index: usize| checks[index].saturating_sub(before[index]);
            let recent = at.map_or_else(Recent::default, |at| Recent {
                allowed: since(0),
                denied: since(1),
                interval_ms: millis(now.saturating_sub(at)),
            });
            state.published = Published { at: Some(now), checks, recent };
        }
        if now >= self.state().next_top {
            let top = tokio::task::block_in_place(|| self.top());
            let mut state = self.state();
            let took = self.app.observer().uptime().saturating_sub(now);
            (state.top, state.next_top) = (top, now + took * TOP_PAUSE);
        }
        let [used, denials] = self.state().top.clone();
        let record = Record { used, denials, ..self.own(document) };
        shared.count_instances(Some(&record.fitted())).await;
        let is_due = self.state().read_at.is_none_or(|at| now.saturating_sub(at) >= LOOK_EVERY);
        if is_due {
            self.read(shared, Duration::ZERO).await;
        }
    }

    /// How long versions or configurations have differed, as last seen.
    pub(crate) fn differs_for(&self) -> Option<Duration> {
        let since = self.state().differ?.since;
        Some(self.app.observer().uptime().saturating_sub(since))
    }

    /// All instances, or the one with this name or id.
    ///
    /// # Errors
    /// No instance, or more than one, has this name; says how to name one.
    pub(crate) async fn view(
        &self,
        document: &Document,
        shared: Shared<'_>,
        instance: Option<&str>,
    ) -> Result<FleetView, String> {
        self.read(shared, FRESH).await;
        let own = Instance {
            id: shared.store().instance_id().to_owned(),
            is_this: true,
            record: self.own(document),
        };
        let (others, error, unreadable) = {
            let state = self.state();
            (Arc::clone(&state.others), state.error.clone(), state.unreadable)
        };
        let mut instances: Vec<_> = std::iter::once(own).chain(others.iter().cloned()).collect();
        instances.sort_by(|a, b| (&a.record.name, &a.id).cmp(&(&b.record.name, &b.id)));
        if let Some(wanted) = instance {
            instances.retain(|one| one.record.name == wanted || one.id == wanted);
            let shown = wanted.escape_debug();
            match instances.as_slice() {
                [_] => {}
                [] => {
                    return Err(format!(
                        "unknown instance `{shown}`: must be a name or id that /v1/status lists under `fleet`"
                    ));
                }
                several => {
                    let ids: Vec<_> = several.iter().map(|one| one.id.as_str()).collect();
                    return Err(format!(
                        "ambiguous instance `{shown}`: {} have this name; give an id, one of {}",
                        several.len(),
                        ids.join(", ")
                    ));
                }
            }
        }
        Ok(FleetView { instances, error, unreadable, differs_for: self.differs_for() })
    }

    /// Reads the others' records, unless read within `fresh`.
    async fn read(&self, shared: Shared<'_>, fresh: Duration) {
        let _reading = self.reading.lock().await;
        let now = self.app.observer().uptime();
        if self.state().read_at.is_some_and(|at| now.saturating_sub(at) < fresh) {
            return;
        }
        let records = shared.store().instance_records().await;
        let digest = self.digest();
        let mut state = self.state();
        state.read_at = Some(now);
        match records {
            Err(error) => {
                state.history.interrupt();
                // Whether they still differ is unknown.
                state.others = Arc::default();
                state.error = Some(error.to_string());
            }
            Ok(records) => {
                let own = shared.store().instance_id();
                let (mut others, mut unreadable) = (Vec::with_capacity(records.len()), 0);
                for one in records.into_iter().filter(|one| one.id != own) {
                    match Record::read(&one.record) {
                        Some(record) => others.push(Instance { id: one.id, is_this: false, record }),
                        None => unreadable += 1,
                    }
                }
                let differs = others.iter().any(|one| {
                    one.record.version != env!("CARGO_PKG_VERSION") || one.record.config != digest
                });
                let differ =
                    differs.then(|| state.differ.unwrap_or(Difference { since: now, is_logged: false }));
                let differ = differ.map(|differ| report(differ, now, &others));
                state.differ = differ;
                (state.others, state.unreadable, state.error) = (others.into(), unreadable, None);
                let observer = self.app.observer();
                let at_ms = observer.wall_time(observer.started_at + now).as_micros() / 1000;
                let policies = self.app.policies();
                let FleetState { history, others, .. } = &mut *state;
                history.add(at_ms, others, |name| policies.by_name(name).is_some());
            }
        }
    }

    /// Counts of the other instances. `times_ms`: the start of the first step, then the end of each.
    pub(crate) fn other_counts(&self, times_ms: &[u64]) -> OtherCounts {
        self.state().history.counts(times_ms)
    }

    fn top(&self) -> [TopPart; 2] {
        let observer = self.app.observer();
        let counts = |name: &String| observer.counts(name).unwrap_or_default();
        let mut busiest = observer.policies();
        busiest.sort_by_cached_key(|name| std::cmp::Reverse(counts(name).allowed + counts(name).denied));
        [By::Used, By::Denied].map(|by| {
            let mut part = TopPart::default();
            for name in busiest.iter().take(record::MAX_POLICIES) {
                part.add(name, observer.ranking(name, by));
            }
            part.cut(record::MAX_KEYS);
            part
        })
    }

    /// This instance's record, without top keys.
    fn own(&self, document: &Document) -> Record {
        let observer = self.app.observer();
        let now = now_ms();
        let changes = document.count_in_force(now) as u64;
        let open = self.app.open_reservations();
        let mut policies = Vec::new();
        for name in observer.policies() {
            let open = open.get(name.as_str()).copied().unwrap_or_default();
            let counts = observer.counts(&name).unwrap_or_default();
            policies.push(PolicyTotals::new(name, counts, open));
        }
        let [allowed, denied] = observer.checks();
        Record {
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_ms: observer.wall_time(observer.started_at).as_micros() / 1000,
            config: self.digest(),
            changes,
            changes_digest: if changes == 0 { 0 } else { document.digest(now) },
            degraded: self.app.is_degraded(),
            allowed,
            denied,
            recent: self.state().published.recent,
            policies,
            more_policies: 0,
            used: TopPart::default(),
            denials: TopPart::default(),
        }
    }

    /// The digest of the config file and the active policies, whatever their source.
    fn digest(&self) -> String {
        let file = self.app.observer().config().hash;
        let policies = self.app.policies();
        let mut state = self.state();
        if let Some((_, _, digest)) =
            state.digest.as_ref().filter(|(known, hash, _)| Arc::ptr_eq(known, &policies) && *hash == file)
        {
            return digest.clone();
        }
        let mut context = Context::new(&SHA256);
        context.update(file.as_bytes());
        for policy in policies.iter() {
            context.update(b"\n");
            context.update(describe(policy, Storage::Redis { instances: None }).as_bytes());
        }
        let mut digest: String = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        digest.truncate(DIGEST_DIGITS);
        state.digest = Some((policies, file, digest.clone()));
        digest
    }

    fn state(&self) -> MutexGuard<'_, FleetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs once if instances differ for longer than a rollout takes.
fn report(differ: Difference, now: Duration, others: &[Instance]) -> Difference {
    let for_long = now.saturating_sub(differ.since) >= ROLLOUT;
    if for_long && !differ.is_logged {
        let names: Vec<_> = others.iter().map(|one| one.record.name.as_str()).take(10).collect();
        tracing::warn!(
            others = names.join(", "),
            "instances differ in version or configuration for longer than a rollout takes; see /v1/status"
        );
    }
    Difference { is_logged: differ.is_logged || for_long, ..differ }
}

impl FleetView {
    pub(crate) fn totals(&self) -> HashMap<&str, PolicyTotals> {
        let mut sums: HashMap<_, PolicyTotals> = HashMap::new();
        for one in self.instances.iter().flat_map(|one| &one.record.policies) {
            sums.entry(one.policy.as_str()).or_default().add(one);
        }
        sums
    }

    /// A policy's top keys over all shown instances. `own` is this instance's ranking, of which its record
    /// may lack some.
    pub(crate) fn ranking(&self, policy: &str, by: By, own: Ranking) -> Ranking {
        let mut own = Some(own);
        let rankings = self.instances.iter().map(|one| match by {
            _ if one.is_this => own.take().unwrap_or_default(),
            By::Used => one.record.used.ranking(policy),
            By::Denied => one.record.denials.ranking(policy),
        });
        Ranking::merged(&rankings.collect::<Vec<_>>())
    }

    /// Distinct versions and config digests.
    pub(crate) fn distinct(&self) -> [BTreeSet<&str>; 2] {
        let of = |text: fn(&Record) -> &str| self.instances.iter().map(|one| text(&one.record)).collect();
        [of(|record| &record.version), of(|record| &record.config)]
    }

    /// Allowed and denied checks per second, over all shown instances.
    pub(crate) fn rates(&self) -> [f64; 2] {
        let rates = self.instances.iter().map(|one| one.record.recent.rates());
        rates.fold([0.0; 2], |[allowed, denied], [a, d]| [allowed + a, denied + d])
    }
}

impl Recent {
    /// Allowed and denied checks per second.
    #[allow(clippy::cast_precision_loss)] // Shown with one decimal place.
    pub(crate) fn rates(&self) -> [f64; 2] {
        let of = |count: u64| (count as f64 * 10_000.0 / self.interval_ms.max(1) as f64).round() / 10.0;
        if self.interval_ms == 0 { [0.0; 2] } else { [of(self.allowed), of(self.denied)] }
    }
}
