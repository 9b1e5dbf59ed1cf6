//! Turns of several instances that wait for one key: how they share them, what a turn costs, and that no window holds
//! more than its limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::{Algorithm, DecisionSource, Policy, Quota, Request};
use slidegate_redis::{RedisGate, RedisOptions};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::window_checker::{Admission, greatest_in_one_window};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::callers::{gate, options};
use crate::cluster::{masters, on_cluster};

const WINDOW: Duration = Duration::from_secs(1);
/// What is measured, after windows in which instances learn of each other.
const WARM_UP: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(4);
const HALF_A_MINUTE: Duration = Duration::from_secs(30);
/// Nobody waits so long.
const HANGS: Duration = Duration::from_secs(60);
/// A busy machine may spoil a measurement, but not all of them.
const ATTEMPTS: usize = 6;
/// Commands that decide, and those that notify other instances.
const COMMANDS: [&str; 5] = ["evalsha", "fcall", "slidegate.check1", "slidegate.decide", "publish"];

/// Callers of several instances who go on waiting for the same key.
#[derive(Debug, Clone, Copy)]
struct Crowd {
    algorithm: Algorithm,
    limit: u64,
    instances: usize,
    /// How long it is measured, after a warm-up.
    measured: Duration,
    /// Policies that all admit a request.
    policies: &'static [&'static str],
}

/// What became of a crowd.
#[derive(Debug)]
struct Turns {
    /// Turns of each instance while it was measured.
    each: Vec<u64>,
    /// Calls of the servers meanwhile.
    calls: u64,
    /// The share of all turns that were possible meanwhile.
    used: f64,
    /// When each turn was, from the first one on, by the clock of the server.
    all: Vec<Admission>,
}

#[allow(clippy::cast_precision_loss)] // some thousand
impl Turns {
    fn calls_each(&self) -> f64 {
        self.calls as f64 / self.each.iter().sum::<u64>() as f64
    }

    /// How far an instance is from the mean, as a share of it.
    fn unfairness(&self) -> f64 {
        let mean = self.each.iter().sum::<u64>() as f64 / self.each.len() as f64;
        self.each.iter().map(|turns| (*turns as f64 / mean - 1.0).abs()).fold(0.0, f64::max)
    }
}

impl Crowd {
    fn quota(self) -> Quota {
        Quota::new(self.limit, WINDOW).unwrap().with_algorithm(self.algorithm)
    }

    /// The most that may be admitted in one window, as docs/algorithms.md has it.
    fn most(self) -> u64 {
        match self.algorithm {
            Algorithm::SlidingLog => self.limit,
            Algorithm::TokenBucket => self.quota().burst() + self.limit - 1,
            _ => 2 * self.limit,
        }
    }

    /// What is admitted in each window by and by: two counters round up.
    fn each_window(self) -> u64 {
        self.limit - u64::from(self.algorithm == Algorithm::SlidingWindow)
    }

    /// Most calls for each turn, in one slot. Of two counters, the wait in a denial is that of a cost that fits by then, so more
    /// instances ask for the same turn.
    fn most_calls(self) -> f64 {
        match (self.instances, self.algorithm) {
            (1, _) => 1.1,
            _ if self.measured == HALF_A_MINUTE => 1.2,
            (_, Algorithm::SlidingWindow) => 3.2,
            _ => 1.6,
        }
    }

    async fn wait(self, options: &RedisOptions, servers: &[&RedisServer]) -> Turns {
        let policies = || {
            self.policies
                .iter()
                .map(|name| Policy::new(*name, self.quota()).unwrap().with_scope(["tenant", "user"]))
        };
        let gates: Vec<_> = (0..self.instances).map(|_| gate(policies(), options.clone())).collect();
        let over = Arc::new(AtomicBool::new(false));
        let counts: Vec<_> = gates.iter().map(|_| Arc::new(AtomicU64::new(0))).collect();
        let callers: JoinSet<_> = gates
            .iter()
            .zip(&counts)
            .flat_map(|(gate, count)| (0..16).map(|_| caller(gate.clone(), count.clone(), over.clone())))
            .collect();
        let counted = || counts.iter().map(|count| count.load(Ordering::SeqCst)).collect::<Vec<_>>();
        let called = || servers.iter().map(|server| calls(server)).sum::<u64>();
        sleep(WARM_UP).await;
        let (begun, before) = (Instant::now(), (counted(), called()));
        sleep(self.measured).await;
        let (took, after) = (begun.elapsed(), (counted(), called()));
        over.store(true, Ordering::SeqCst);
        let all: Vec<u64> = callers.join_all().await.concat();
        assert!(gates.iter().all(|gate| gate.gate().waiting() == 0));
        let each: Vec<_> = after.0.iter().zip(before.0).map(|(after, before)| after - before).collect();
        #[allow(clippy::cast_precision_loss)] // some thousand
        let used =
            each.iter().sum::<u64>() as f64 / (self.each_window() as f64 * took.div_duration_f64(WINDOW));
        let first = all.iter().min().copied().unwrap();
        let at = |at: &u64| Duration::from_micros(at - first);
        let all = all.iter().map(|one| Admission { sent: at(one), replied: at(one), cost: 1 }).collect();
        Turns { each, calls: after.1 - before.1, used, all }
    }

    /// Waits until a measurement is as it has to be. No window ever holds more than it may.
    async fn judge(self, options: &RedisOptions, servers: &[&RedisServer], slots: f64) {
        for attempt in 1..=ATTEMPTS {
            for server in servers {
                server.admin(&["FLUSHALL"]);
            }
            let mut turns = self.wait(options, servers).await;
            let greatest = greatest_in_one_window(&mut turns.all, WINDOW);
            let (calls, unfairness) = (turns.calls_each(), turns.unfairness());
            println!(
                "{self:?}: {:?} turns, {calls:.3} calls each, {unfairness:.2} from the mean, {:.3} used, at most {greatest} in a window",
                turns.each, turns.used
            );
            assert!(greatest <= self.most(), "{greatest} in one window: {self:?}");
            // In some seconds on a busy machine, an instance may get twice its share. None starves.
            let (most_unfair, least_used) =
                if self.measured == HALF_A_MINUTE { (0.2, 0.95) } else { (0.9, 0.9) };
            if calls <= slots * self.most_calls() && unfairness <= most_unfair && turns.used >= least_used {
                return;
            }
            assert!(attempt < ATTEMPTS, "{calls} calls, {unfairness} unfair, {} used: {self:?}", turns.used);
        }
    }
}

fn calls(server: &RedisServer) -> u64 {
    COMMANDS.iter().map(|command| server.commandstats(command).calls).sum()
}

/// Waits for one turn after the other. Returns when they were.
async fn caller(gate: Arc<RedisGate>, count: Arc<AtomicU64>, over: Arc<AtomicBool>) -> Vec<u64> {
    let request = Request::new().with("tenant", "t").with("user", "alice");
    let mut turns = Vec::new();
    while !over.load(Ordering::SeqCst) {
        let decisions = gate.acquire(&request).timeout(HANGS).await.unwrap();
        // Of the first policy: in several slots, each has its server's time.
        let decision = *decisions.iter().next().unwrap().decision();
        assert_eq!(decision.source(), DecisionSource::Store, "{:?}", gate.store().stats());
        turns.push(decision.at().as_micros());
        count.fetch_add(1, Ordering::SeqCst);
    }
    turns
}

const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::SlidingLog, Algorithm::SlidingWindow, Algorithm::FixedWindow, Algorithm::TokenBucket];

async fn judge_all(server: &RedisServer, instances: usize, limits: &[u64], measured: Duration) {
    let options = options(&server.url_as_user());
    for algorithm in ALGORITHMS {
        for limit in limits {
            let crowd = Crowd { algorithm, limit: *limit, instances, measured, policies: &["p"] };
            crowd.judge(&options, &[server], 1.0).await;
        }
    }
}

/// A store that is asked more often than it admits is busy with saying no.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_share_the_turns_and_ask_once_for_each() {
    judge_all(&RedisServer::builder().start(), 3, &[20, 200], MEASURED).await;
}

/// Each gets its share of the turns, whatever happened in single seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes four minutes: scripts/test --all"]
async fn in_half_a_minute_each_of_three_instances_gets_its_share() {
    judge_all(&RedisServer::builder().start(), 3, &[20, 200], HALF_A_MINUTE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_instance_asks_once_for_each_turn() {
    judge_all(&RedisServer::builder().start(), 1, &[20], MEASURED).await;
}

/// Who has the module must not wait in another way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_module_three_instances_share_the_turns_as_well() {
    judge_all(&RedisServer::builder().module(true).start(), 3, &[20], MEASURED).await;
}

/// Policies of one slot take one call, and of several slots one for each.
#[test]
fn three_instances_on_a_cluster_share_the_turns() {
    on_cluster(async |cluster| {
        let servers = masters(cluster);
        let options = options(&cluster.url_as_user());
        for algorithm in [Algorithm::SlidingLog, Algorithm::TokenBucket] {
            for (policies, options, slots) in [
                (&["p"][..], options.clone(), 1.0),
                (&["p", "q", "r"][..], options.clone().with_hash_tag("tenant"), 1.0),
                // A call for each slot, and others to put back what does not fit in all.
                (&["p", "q", "r"][..], options.clone(), 4.5),
            ] {
                let crowd = Crowd { algorithm, limit: 20, instances: 3, measured: MEASURED, policies };
                crowd.judge(&options, &servers, slots).await;
            }
        }
    });
}
