//! A shared store's health: whether it replies, whether limits are shared, and by how many instances.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::store::{FallbackStats, FallbackStore, LeaseStats, ServiceStore};
use slidegate::{DecisionSource, Decisions, Error};
use tokio::sync::Notify;

use crate::clock::now_ms;
use crate::log_limit::{LogLimit, log_limited};
use crate::stores::KINDS;

/// The store, at `/readyz` and `/v1/status`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StoreState {
    /// The memory store has no other fields.
    #[schemars(extend("enum" = KINDS))]
    pub(crate) kind: &'static str,
    #[serde(flatten)]
    pub(crate) shared: Option<SharedState>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SharedState {
    /// Without user names and passwords.
    url: String,
    /// Whether limits are shared: the store executes what decisions need, as the last self-test found.
    shared: bool,
    /// Why limits are not shared: what the store refuses, or that it is unreachable.
    not_shared: Option<String>,
    /// Whether the store answers and refuses what decisions need: somebody has to change it.
    refuses_decisions: bool,
    /// Instances that share the store, as configured or last counted; null before the first count.
    #[schemars(range(min = 1))]
    instances: Option<u64>,
    /// How often the list of instances in the store held what no instance wrote, and was replaced.
    instances_replaced: u64,
    /// The known nodes; empty until a cluster or Sentinel has replied.
    nodes: Vec<NodeState>,
    /// Requests decided without the store since the start.
    fallbacks: u64,
    /// Why the last of them fell back.
    last_failure: Option<String>,
    /// The kind of that failure, such as `timeout` or `readonly`; docs/failures.md lists them.
    last_failure_kind: Option<&'static str>,
    /// Failed calls to the store since the start, by kind; kinds without failures are omitted.
    errors: BTreeMap<&'static str, u64>,
    clock: ClockState,
    /// Leases of this instance, by policy: those of policies that have had one.
    leases: BTreeMap<String, LeaseState>,
}

/// Leases of one policy, since the start.
#[derive(Debug, Serialize, JsonSchema)]
struct LeaseState {
    /// Open leases.
    open: u64,
    /// What open leases have left, as a share of the limits of their keys: 0 to 1.
    held_share: f64,
    /// Leases that the store granted, renewals included.
    granted: u64,
    /// Those that replaced one that was settled by the same call.
    renewed: u64,
    /// Leases that were settled and not replaced.
    returned: u64,
    /// Leases that ended before they were settled; the store charged them in full.
    expired: u64,
    /// Requests admitted without a call.
    admitted: u64,
}

impl From<LeaseStats> for LeaseState {
    #[allow(clippy::cast_precision_loss)] // a share
    fn from(stats: LeaseStats) -> Self {
        let LeaseStats { granted, renewed, returned, expired, admitted, open, held, limit } = stats;
        let held_share = held as f64 / limit.max(1) as f64;
        Self { open, held_share, granted, renewed, returned, expired, admitted }
    }
}

/// A node of the store.
#[derive(Debug, Serialize, JsonSchema)]
struct NodeState {
    node: String,
    connected: bool,
    /// Whether the node has slidegate's native module, which replaces the scripts.
    module: bool,
    /// `closed` lets calls through, `open` none, `half-open` a few probes.
    #[schemars(extend("enum" = ["closed", "open", "half-open"]))]
    breaker: &'static str,
    reconnects: u64,
    /// Calls without a reply in time.
    timeouts: u64,
}

/// The clocks of the store's servers.
#[derive(Debug, Serialize, JsonSchema)]
struct ClockState {
    /// Forward jumps since the start; after each, limits may have been exceeded once.
    forward_jumps: u64,
    /// Backward jumps since the start.
    backward_jumps: u64,
    /// Size of the last jump, negative if backward; 0 before the first.
    last_jump_ms: i64,
    /// Resolution of the clock as scripts read it, in microseconds: 1, or 1000 if scripts may not call `TIME`.
    #[schemars(range(min = 1))]
    resolution_us: u64,
}

/// A shared store, with its health.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub(super) store: &'a FallbackStore<dyn ServiceStore>,
    pub(super) health: &'a Health,
}

/// The store's health, as seen by decisions and tests.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Requests decided by the store itself.
    answered: AtomicU64,
    /// Whether a call failed and the store has not been found healthy since.
    pub(super) away: AtomicBool,
    /// Why limits are not shared, by the last self-test.
    not_shared: Mutex<Option<(String, Sharing)>>,
    /// The configured number of instances, if any.
    pub(super) fixed_instances: Option<u64>,
    /// Instances at the last count; 0 before the first.
    counted_instances: AtomicU64,
    /// Replacements of the instance list, as last logged.
    instances_replaced: AtomicU64,
    /// When usage was last found to be lost, in milliseconds since the Unix epoch; 0: never.
    usage_lost_ms: AtomicU64,
    /// Wakes the next examination: a server that was away may have lost usage.
    returned: Notify,
}

/// The state of a shared store at the last health check.
#[derive(Debug)]
pub(crate) struct HealthRecord {
    answered: u64,
    fallbacks: u64,
    /// Fallback decisions already logged.
    reported: u64,
    log_limit: LogLimit,
    /// Whether unavailability was logged.
    away: bool,
    /// The worst state logged since limits were last shared.
    sharing: Sharing,
    /// The nodes, each with its reconnects.
    nodes: Vec<(String, u64)>,
}

/// Whether limits are shared, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sharing {
    Shared,
    /// The store does not reply or refuses writes for now; usually temporary.
    Unreachable,
    /// The store replies but refuses what decisions need: someone must fix it.
    Refused,
}

impl Default for HealthRecord {
    fn default() -> Self {
        Self {
            answered: 0,
            fallbacks: 0,
            reported: 0,
            log_limit: LogLimit::every(REPORT_EVERY),
            away: false,
            sharing: Sharing::Shared,
            nodes: Vec::new(),
        }
    }
}

impl Health {
    fn not_shared(&self) -> MutexGuard<'_, Option<(String, Sharing)>> {
        self.not_shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whether the shared store made these decisions.
    pub(super) fn record(&self, decisions: &Decisions<'_>) {
        let (mut answered, mut fell_back) = (false, false);
        for decision in decisions.iter() {
            match decision.decision().source() {
                DecisionSource::Store => answered = true,
                source => fell_back |= source.is_fallback(), // others say nothing about its current state
            }
        }
        if fell_back {
            self.away.store(true, Ordering::Relaxed);
        } else if answered {
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> Shared<'a> {
    /// The store, for everything but decisions.
    pub(crate) fn store(self) -> &'a dyn ServiceStore {
        self.store.primary()
    }

    /// Number and causes of fallback decisions.
    pub(crate) fn fallbacks(self) -> FallbackStats {
        self.store.stats()
    }

    /// Tests at startup whether limits are shared.
    ///
    /// # Errors
    /// Why they are not: the store is unreachable, or refuses what decisions need.
    pub(crate) async fn test(self) -> Result<(), String> {
        let not_shared = self.self_test().await;
        self.health.away.store(not_shared.is_some(), Ordering::Relaxed);
        self.health.not_shared().clone_from(&not_shared);
        not_shared.map_or(Ok(()), |(reason, _)| Err(reason))
    }

    /// Why limits are not shared. `None` if they are.
    async fn self_test(self) -> Option<(String, Sharing)> {
        let failure = self.store().self_test().await.err()?;
        let sharing = if failure.is_refusal() { Sharing::Refused } else { Sharing::Unreachable };
        Some((failure.to_string(), sharing))
    }

    /// Why limits are not shared, by the last self-test.
    pub(crate) fn not_shared(self) -> Option<String> {
        self.health.not_shared().as_ref().map(|(reason, _)| reason.clone())
    }

    /// Number of instances that share the store: as configured or last counted. `None` before the first
    /// count.
    pub(crate) fn instances(self) -> Option<u64> {
        let counted = self.health.counted_instances.load(Ordering::Relaxed);
        self.health.fixed_instances.or(Some(counted).filter(|counted| *counted > 0))
    }

    /// Announces this instance to the others, with its record if any, and counts them, for the shares of
    /// fallbacks. While the store is unavailable, the last count stays.
    pub(crate) async fn count_instances(self, record: Option<&[u8]>) {
        let counted = self.store().count_instances(record).await;
        let replaced = self.store().stats().instances_replaced;
        if self.health.instances_replaced.swap(replaced, Ordering::Relaxed) < replaced {
            log_limited!(
                WARN,
                None,
                "the list of instances in the store held what no instance wrote, and was replaced; find the \
                 program that writes to `sg1:~instances`"
            );
        }
        // The next health check finds out why it fails.
        let Ok(counted) = counted else { return };
        self.health.counted_instances.store(counted, Ordering::Relaxed);
        if self.health.fixed_instances.is_none() {
            self.store.share_among(counted);
        }
    }

    /// Pings often enough to close each healthy node's circuit breaker.
    async fn knock(self) -> Result<(), Error> {
        for _ in 1..KNOCKS {
            self.store().ping().await?;
            tokio::time::sleep(BETWEEN_KNOCKS).await;
        }
        self.store().ping().await
    }

    /// Whether fallbacks may currently decide.
    pub(crate) fn is_degraded(self) -> bool {
        // Replicas are known but never connected to.
        self.health.away.load(Ordering::Relaxed) || self.store().nodes().iter().all(|node| !node.connected)
    }

    /// Why limits may not be shared, without addresses or error texts.
    pub(crate) fn degradation(self) -> Option<&'static str> {
        let sharing = self.health.not_shared().as_ref().map(|(_, sharing)| *sharing);
        match sharing {
            Some(Sharing::Refused) => {
                Some("the shared store refuses what decisions need; each policy uses its fallback")
            }
            Some(_) => Some("the shared store is unavailable; each policy uses its fallback"),
            None if self.is_degraded() => {
                Some("the shared store is unavailable; each policy uses its fallback")
            }
            None => None,
        }
    }

    /// The state of the store and its nodes.
    pub(crate) fn state(self) -> SharedState {
        let nodes = self.store().nodes().into_iter().map(|node| NodeState {
            node: node.node,
            connected: node.connected,
            module: node.has_module,
            breaker: node.breaker,
            reconnects: node.reconnects,
            timeouts: node.timeouts,
        });
        let (store, stats) = (self.store().stats(), self.fallbacks());
        let (not_shared, sharing) = self.health.not_shared().clone().unzip();
        SharedState {
            url: self.store().url(),
            shared: not_shared.is_none(),
            not_shared,
            refuses_decisions: sharing == Some(Sharing::Refused),
            instances: self.instances(),
            instances_replaced: store.instances_replaced,
            nodes: nodes.collect(),
            fallbacks: stats.fallbacks,
            last_failure: stats.last_failure,
            last_failure_kind: stats.last_failure_kind,
            errors: store.errors.into_iter().filter(|(_, count)| *count > 0).collect(),
            clock: ClockState {
                forward_jumps: store.clock_jumps.forward,
                backward_jumps: store.clock_jumps.backward,
                last_jump_ms: store.clock_jumps.last_us / 1000,
                resolution_us: store.clock_resolution_us,
            },
            leases: store.leases.into_iter().map(|(policy, stats)| (policy, stats.into())).collect(),
        }
    }

    /// Checks the health since the last check and logs when the store becomes unavailable or available again.
    /// Pings it if there was no traffic. Runs the self-test after fallbacks and reconnects, and to confirm
    /// recovery: a store may reply but refuse what decisions need.
    pub(crate) async fn poll_health(self, seen: &mut HealthRecord) {
        let stats = self.fallbacks();
        let answered = self.health.answered.load(Ordering::Relaxed);
        let (new_answers, new_fallbacks) = (answered - seen.answered, stats.fallbacks - seen.fallbacks);
        (seen.answered, seen.fallbacks) = (answered, stats.fallbacks);
        if new_fallbacks > 0 {
            seen.away = true;
        }
        let unreported = stats.fallbacks - seen.reported;
        if unreported > 0 && seen.log_limit.admit_key(b"").is_some() {
            seen.reported = stats.fallbacks;
            tracing::warn!(
                decisions = unreported,
                last_failure = stats.last_failure.unwrap_or_default(),
                "the store was unavailable; decisions were made by fallbacks"
            );
        }
        let nodes: Vec<_> =
            self.store().nodes().into_iter().map(|node| (node.node, node.reconnects)).collect();
        let has_reconnected = seen.nodes != nodes;
        seen.nodes = nodes;
        let is_away = self.health.away.load(Ordering::Relaxed);
        let answer = match (is_away, new_answers) {
            _ if new_fallbacks > 0 || has_reconnected && !is_away => Ok(()),
            (true, _) => self.knock().await,
            (false, 0) => self.store().ping().await,
            (false, _) => Ok(()),
        };
        let needs_test = is_away || has_reconnected || new_fallbacks > 0;
        let not_shared = match answer {
            Err(failure) => Some((failure.to_string(), Sharing::Unreachable)),
            Ok(()) if needs_test => self.self_test().await,
            Ok(()) => None,
        };
        self.health.not_shared().clone_from(&not_shared);
        match not_shared {
            Some((reason, sharing)) => {
                self.health.away.store(true, Ordering::Relaxed);
                if sharing > seen.sharing {
                    tracing::warn!(reason, "limits are not shared; policies use their fallbacks");
                    seen.sharing = sharing;
                }
                seen.away = true;
            }
            None if new_fallbacks == 0 && self.fallbacks().fallbacks == seen.fallbacks => {
                self.health.away.store(false, Ordering::Relaxed);
                if seen.away {
                    tracing::info!(store = self.store().url(), "store recovered");
                }
                if seen.away || has_reconnected {
                    self.health.returned.notify_one();
                }
                (seen.away, seen.sharing) = (false, Sharing::Shared);
            }
            None => {}
        }
    }

    /// Logs settings that silently break limits, as far as the store's user may read them, and notes when usage
    /// was lost.
    pub(crate) async fn examine(self) {
        let before = self.store().stats().usage_losses;
        for finding in self.store().examine().await {
            tracing::warn!(finding, "the store does not keep limits as it should");
        }
        if self.store().stats().usage_losses > before {
            self.health.usage_lost_ms.store(now_ms(), Ordering::Relaxed);
        }
    }

    /// Waits until the store is available again, or was reconnected.
    pub(crate) async fn returned(self) {
        self.health.returned.notified().await;
    }

    /// When the store was last found to have lost usage, in milliseconds since the Unix epoch.
    pub(crate) fn usage_lost_ms(self) -> Option<u64> {
        Some(self.health.usage_lost_ms.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
    }
}

/// Minimum interval between log lines about fallback decisions; each line has the full count.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Consecutive replies that close a node's circuit breaker.
const KNOCKS: u32 = 3;
/// An open breaker admits one call per 100 to 120 ms.
const BETWEEN_KNOCKS: Duration = Duration::from_millis(130);
