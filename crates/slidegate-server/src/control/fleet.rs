//! The fleet: sums the records that instances sharing a store publish about themselves.
//!
//! Each instance publishes its record when it counts itself. Records expire by the server's clock: a stopped
//! or hanging instance disappears after ten seconds. Records are only shown to operators; nothing else
//! depends on them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::digest::{Context, SHA256};
use slidegate::{
    PolicySet,
    clock::{Clock, Timestamp},
};
use slidegate_config::names::candidate_of;

use crate::clock::{millis, now_ms};
use crate::config::{Storage, describe};
use crate::control::changes::Document;
use crate::engine::App;
use crate::engine::shadow::ShadowFigures;
use crate::engine::store::Shared;
use crate::record::{By, FullKey, OtherCounts, Ranking, fullest_first};

mod history;
mod record;

use history::FleetHistory;
pub(crate) use history::bytes_at_most as history_bytes;
use record::{FullestKey, Recent, TopPart};
pub(crate) use record::{Instance, PolicyTotals, Record};

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
    /// Time of the last read that did not fail, since the start.
    heard_at: Option<Duration>,
    /// Why the last read failed.
    error: Option<String>,
    /// Records in the store that are not from instances.
    unreadable: u64,
    history: FleetHistory,
    /// Since when instances differ, counted from the start, and whether it was logged.
    differ: Option<Difference>,
    published: Published,
    /// The last published top and fullest keys, and when they may be recomputed.
    top: ([TopPart; 2], Vec<FullestKey>),
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
    /// Fallback decisions, and whether there were some in the last interval.
    fallbacks: u64,
    fell_back: bool,
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
    /// When they were last known, or when this instance started; since the start of this instance.
    pub(crate) heard_at: Duration,
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
            let Published { at, checks: before, fallbacks: fell_back_before, .. } = state.published;
            let fallbacks = shared.fallbacks().fallbacks;
            let since = |index: usize| checks[index].saturating_sub(before[index]);
            let recent = at.map_or_else(Recent::default, |at| Recent {
                allowed: since(0),
                denied: since(1),
                interval_ms: millis(now.saturating_sub(at)),
            });
            let fell_back = fallbacks > fell_back_before;
            state.published = Published { at: Some(now), checks, recent, fallbacks, fell_back };
        }
        if now >= self.state().next_top {
            let top = tokio::task::block_in_place(|| self.top());
            let mut state = self.state();
            let took = self.app.observer().uptime().saturating_sub(now);
            (state.top, state.next_top) = (top, now + took * TOP_PAUSE);
        }
        let ([used, denials], fullest) = self.state().top.clone();
        let record = Record { used, denials, fullest, ..self.own(document) };
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
        let mut view = self.known(document, shared);
        let instances = &mut view.instances;
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
        Ok(view)
    }

    /// All instances, as last read.
    pub(crate) fn known(&self, document: &Document, shared: Shared<'_>) -> FleetView {
        let own = Instance {
            id: shared.store().instance_id().to_owned(),
            is_this: true,
            record: self.own(document),
        };
        let (others, error, heard_at, unreadable) = {
            let state = self.state();
            let heard_at = state.heard_at.unwrap_or_default();
            (Arc::clone(&state.others), state.error.clone(), heard_at, state.unreadable)
        };
        let mut instances: Vec<_> = std::iter::once(own).chain(others.iter().cloned()).collect();
        instances.sort_by(|a, b| (&a.record.name, &a.id).cmp(&(&b.record.name, &b.id)));
        FleetView { instances, error, heard_at, unreadable, differs_for: self.differs_for() }
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
                let zones = time_zones();
                let differs = others.iter().any(|Instance { record, .. }| {
                    let other_zones = record.time_zones.as_ref().filter(|_| zones.is_some());
                    record.version != env!("CARGO_PKG_VERSION")
                        || record.config != digest
                        || other_zones.is_some_and(|other| zones.as_ref() != Some(other))
                });
                let differ =
                    differs.then(|| state.differ.unwrap_or(Difference { since: now, is_logged: false }));
                let differ = differ.map(|differ| report(differ, now, &others));
                state.differ = differ;
                (state.others, state.unreadable, state.error) = (others.into(), unreadable, None);
                state.heard_at = Some(now);
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

    fn top(&self) -> ([TopPart; 2], Vec<FullestKey>) {
        let observer = self.app.observer();
        let counts = |name: &String| observer.counts(name).unwrap_or_default();
        let mut busiest = observer.policies();
        busiest.sort_by_cached_key(|name| std::cmp::Reverse(counts(name).allowed + counts(name).denied));
        let now = observer.wall_time(observer.clock.now());
        let mut fullest: Vec<(&String, FullKey)> = Vec::new();
        for name in busiest.iter().filter(|name| candidate_of(name).is_none()) {
            let keys = observer.fullest(name).into_iter().take(record::MAX_KEYS);
            fullest.extend(keys.map(|one| (name, one)));
        }
        fullest.sort_by_key(|(_, one)| std::cmp::Reverse(one.strength(now)));
        fullest.truncate(record::MAX_KEYS);
        let fullest = fullest.into_iter().map(|(name, one)| FullestKey::new(name, &one)).collect();
        let counted = [By::Used, By::Denied].map(|by| {
            let mut part = TopPart::default();
            for name in busiest.iter().take(record::MAX_POLICIES) {
                part.add(name, observer.ranking(name, by));
            }
            part.cut(record::MAX_KEYS);
            part
        });
        (counted, fullest)
    }

    /// This instance's record, without top keys.
    fn own(&self, document: &Document) -> Record {
        let observer = self.app.observer();
        let now = now_ms();
        let changes = document.count_in_force(now) as u64;
        let open = self.app.open_reservations();
        let active = self.app.policies();
        let mut policies = Vec::new();
        for name in observer.policies() {
            let open = open.get(name.as_str()).copied().unwrap_or_default();
            let counts = observer.counts(&name).unwrap_or_default();
            let shadow = self.app.shadows().figures(&active, &name);
            policies.push(PolicyTotals { shadow, ..PolicyTotals::new(name, counts, open) });
        }
        let [allowed, denied] = observer.checks();
        Record {
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_ms: observer.wall_time(observer.started_at).as_micros() / 1000,
            config: self.digest(),
            changes,
            changes_digest: if changes == 0 { 0 } else { document.digest(now) },
            degraded: self.app.is_degraded() || self.state().published.fell_back,
            usage_lost_ms: self.app.shared().and_then(Shared::usage_lost_ms),
            time_zones: time_zones(),
            allowed,
            denied,
            waiting: observer.waits.now().0 as u64,
            recent: self.state().published.recent,
            policies,
            more_policies: 0,
            used: TopPart::default(),
            denials: TopPart::default(),
            fullest: Vec::new(),
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

/// The version of this instance's time zone data.
fn time_zones() -> Option<String> {
    slidegate::clock::time_zone_data().map(|(version, _)| version.to_owned())
}

/// Logs once if instances differ for longer than a rollout takes.
fn report(differ: Difference, now: Duration, others: &[Instance]) -> Difference {
    let for_long = now.saturating_sub(differ.since) >= ROLLOUT;
    if for_long && !differ.is_logged {
        let names: Vec<_> = others.iter().map(|one| one.record.name.as_str()).take(10).collect();
        tracing::warn!(
            others = names.join(", "),
            "instances differ in version, configuration or time zone data for longer than a rollout takes; see /v1/status"
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
        let in_millionths = own.in_millionths;
        let mut own = Some(own);
        let rankings = self.instances.iter().map(|one| match by {
            _ if one.is_this => own.take().unwrap_or_default(),
            By::Used => one.record.used.ranking(policy, in_millionths),
            By::Denied => one.record.denials.ranking(policy, in_millionths),
        });
        Ranking::merged(&rankings.collect::<Vec<_>>())
    }

    /// A policy's fullest keys over all shown instances, the fullest first. `own` are those of this instance.
    pub(crate) fn fullest(&self, policy: &str, own: Vec<FullKey>, now: Timestamp) -> Vec<FullKey> {
        let (this, others): (Vec<_>, Vec<_>) = self.instances.iter().partition(|one| one.is_this);
        let others = others.iter().flat_map(|one| &one.record.fullest).filter_map(|one| one.of(policy));
        fullest_first(own.into_iter().filter(|_| !this.is_empty()).chain(others), now)
    }

    /// The figures of a shadow policy, or of a candidate by its own name, and the number of instances that they
    /// are of: those with this one's policies, as others compare other quotas.
    pub(crate) fn shadow(&self, policy: &str) -> (usize, Option<ShadowFigures>) {
        let own = self.instances.iter().find(|one| one.is_this).map(|one| &one.record.config);
        let same = self.instances.iter().filter(|one| own.is_none_or(|own| *own == one.record.config));
        same.fold((0, None), |(instances, sum), one| {
            let figures = one.record.totals(policy).and_then(|totals| totals.shadow);
            (instances + 1, sum.into_iter().chain(figures).reduce(ShadowFigures::plus))
        })
    }

    /// Distinct versions, config digests and versions of the time zone data.
    pub(crate) fn distinct(&self) -> [BTreeSet<&str>; 3] {
        let of = |text: fn(&Record) -> Option<&str>| {
            self.instances.iter().filter_map(|one| text(&one.record)).collect()
        };
        [
            of(|record| Some(&record.version)),
            of(|record| Some(&record.config)),
            of(|record| record.time_zones.as_deref()),
        ]
    }

    /// Allowed and denied checks per second, over all shown instances.
    pub(crate) fn rates(&self) -> [f64; 2] {
        let rates = self.instances.iter().map(|one| one.record.recent.rates());
        rates.fold([0.0; 2], |[allowed, denied], [a, d]| [allowed + a, denied + d])
    }
}

impl Recent {
    /// Allowed and denied checks per second. A part of a second counts as a whole one.
    #[allow(clippy::cast_precision_loss)] // Shown with one decimal place.
    pub(crate) fn rates(&self) -> [f64; 2] {
        let of = |count: u64| (count as f64 * 10_000.0 / self.interval_ms.max(1000) as f64).round() / 10.0;
        if self.interval_ms == 0 { [0.0; 2] } else { [of(self.allowed), of(self.denied)] }
    }
}
