//! Cluster: nodes that fail, slots that move, and what clusters of which a part is lost do.
//! Requests whose keys are in several slots are in `slots.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::store::ServiceStore;
use slidegate::{DecisionSource, Policy, PolicySet, Quota, Request};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::acl::USER;
use slidegate_testkit::redis::{RedisCluster, RedisServer, Shape};
use slidegate_testkit::until_true;
use tokio::task::JoinSet;

use crate::callers::{
    LATER, Storm, Tally, check_cost, daily, fails_with, gate, hasty, options, redis_gate, until_by_store,
    until_used, used,
};
use crate::harness;

/// The deadline of gates that must not fall back, on a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(5);
/// The deadline where a node is silent: its callers wait that long, and other nodes reply sooner.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

/// Runs a test on the cluster that others use as well, one after the other.
pub(crate) fn on_cluster(test: impl AsyncFnOnce(&RedisCluster)) {
    let cluster = harness::cluster();
    runtime().block_on(test(&cluster));
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A user on each of many slots.
fn user(number: usize) -> String {
    format!("u{}", number % 8)
}

/// Users on slots of all masters, each of them charged once.
async fn thirty_users(gate: &RedisGate) -> Vec<String> {
    let users: Vec<_> = (0..30).map(|user| format!("user-{user}")).collect();
    for user in &users {
        assert_eq!(until_used(gate, user).await, [0]);
    }
    users
}

/// What is charged to all of them.
async fn used_by_all(url: &str) -> u64 {
    let mut sum = 0;
    for number in 0..8 {
        sum += used(url, &user(number)).await;
    }
    sum
}

async fn until_all_used(gate: &RedisGate) {
    for number in 0..8 {
        until_used(gate, &user(number)).await;
    }
}

pub(crate) fn evalsha_calls(node: &RedisServer) -> u64 {
    node.commandstats("evalsha").calls
}

pub(crate) fn masters(cluster: &RedisCluster) -> [&RedisServer; 3] {
    [0, 6000, 12_000].map(|slot| cluster.master_of(slot))
}

/// One failed node of three must not need an operator: callers are served as soon as there is a new
/// master.
#[test]
fn a_master_that_freezes_or_dies_is_left_for_its_replica_and_nobody_is_charged_twice() {
    let cluster = RedisCluster::of_three();
    runtime().block_on(async {
        let gate = gate([daily(1_000_000)], options(&cluster.url()).with_deadline(SILENCE));
        until_all_used(&gate).await;
        let slot = cluster.slot_of("sg1:p:u0");
        let mut all = Tally::default();
        for freeze in [true, false] {
            let storm = Storm::start(&gate, 16, user);
            let old = cluster.master_of(slot);
            let before = evalsha_calls(old);
            until_true("callers are answered", || evalsha_calls(old) > before + 100);
            if freeze {
                old.pause();
            } else {
                old.kill();
            }
            let new = cluster.until_moved(slot, old);
            until_all_used(&gate).await;
            assert!(!freeze || !old.is_awake(), "the old master has not woken");
            let before = evalsha_calls(new);
            until_true("callers are answered by the new master", || evalsha_calls(new) > before + 100);
            if freeze {
                old.resume();
                until_true("the old master follows the new", || {
                    cluster.replica_of(slot).port() == old.port()
                });
                until_all_used(&gate).await;
            }
            let tally = storm.end().await;
            all = [all, tally].into_iter().sum();
            let used = used_by_all(&cluster.url()).await;
            // A master's last charges may not have reached its replica; never more than was
            // admitted or left open.
            assert!(used <= all.allowed + all.ambiguous, "{used} charged, {all:?}");
            assert!(used >= all.allowed - all.allowed / 10, "{used} charged, {all:?}");
        }
    });
}

/// A forced failover loses what the replica has not received: no more than that may be admitted
/// twice, and the operator is informed.
#[test]
fn a_replica_that_takes_over_without_the_last_charges_admits_those_again_and_no_more() {
    let cluster = RedisCluster::of_three();
    runtime().block_on(async {
        let (limit, heard, unheard) = (10, 4, 5);
        let gate = gate([daily(limit)], options(&cluster.url()).with_deadline(LATER).without_denial_cache());
        let user = "u0";
        let slot = cluster.slot_of(&format!("sg1:p:{user}"));
        let (old, new) = (cluster.master_of(slot), cluster.replica_of(slot));
        assert!(check_cost(&gate, user, heard).await.by_store());
        assert_eq!(gate.store().primary().examine().await, [""; 0]);
        old.until_followed_by(1);
        // The replica hears nothing from here on.
        old.admin(&["ACL", "SETUSER", "default", "-psync", "-sync", "-replconf"]);
        old.admin(&["CLIENT", "KILL", "TYPE", "replica"]);
        until_true("the replica has lost its master", || {
            new.admin(&["INFO", "replication"]).contains("master_link_status:down")
        });
        let outcome = check_cost(&gate, user, unheard).await;
        assert_eq!((outcome.used, outcome.by_store()), (heard + unheard, true));
        // Each canary is counted on where its slot lies, as the keys are.
        for _ in 0..2 {
            assert_eq!(gate.store().primary().examine().await, [""; 0]);
        }
        new.admin(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        cluster.until_moved(slot, old);
        assert_eq!(until_used(&gate, user).await, [heard]);
        let mut again = 0;
        while check_cost(&gate, user, 1).await.allowed {
            again += 1;
        }
        assert_eq!(heard + unheard + again, limit + unheard);
        let findings = gate.store().primary().examine().await;
        assert!(findings.iter().any(|one| one.starts_with("redis has lost history")), "{findings:?}");
    });
}

/// A planned change of masters is no reason to guess.
#[test]
fn a_graceful_failover_fails_no_request() {
    on_cluster(async |cluster| {
        let gate = gate([daily(1_000_000)], options(&cluster.url()).with_deadline(PATIENT));
        until_all_used(&gate).await;
        let storm = Storm::start(&gate, 16, user);
        let slot = cluster.slot_of("sg1:p:u0");
        let old = cluster.master_of(slot);
        until_true("callers are answered", || evalsha_calls(old) > 100);
        let new = cluster.failover(slot);
        let before = evalsha_calls(new);
        until_true("callers are answered by the new master", || evalsha_calls(new) > before + 100);
        let tally = storm.end().await;
        assert_eq!(tally.ambiguous, 0, "{:?}", gate.store().stats());
        assert_eq!(used_by_all(&cluster.url()).await, tally.allowed);
    });
}

/// A limiter's keys are mostly new ones, and while a slot moves, new keys are elsewhere.
#[test]
fn a_slot_on_its_way_fails_no_request_of_64_callers_for_keys_that_are_not_there() {
    on_cluster(async |cluster| {
        let options = options(&cluster.url()).with_deadline(PATIENT).with_hash_tag("tenant");
        let gate = gate([daily(10)], options);
        let over = Arc::new(AtomicBool::new(false));
        let asked = Arc::new(AtomicU64::new(0));
        let callers = (0..64).map(|_| {
            let (gate, over, asked) = (gate.clone(), over.clone(), asked.clone());
            async move {
                while !over.load(Ordering::Relaxed) {
                    let user = format!("new-{}", asked.fetch_add(1, Ordering::Relaxed));
                    let request = Request::new().with("tenant", "t").with("user", &user);
                    let decisions = gate.check(&request).await;
                    let outcome = decisions.strictest().unwrap();
                    assert_eq!(
                        (outcome.decision().source(), outcome.decision().used()),
                        (DecisionSource::Store, 1),
                        "{:?}",
                        gate.store().stats()
                    );
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
        let callers: JoinSet<()> = callers.collect();
        let key = slidegate_testkit::until("there is a key", || {
            let mut keys = masters(cluster).into_iter().flat_map(|node| {
                node.admin(&["KEYS", "sg1:{*}:p:*"]).lines().map(str::to_owned).collect::<Vec<_>>()
            });
            keys.next()
        });
        let slot = cluster.slot_of(&key);
        let from = cluster.master_of(slot);
        let to = masters(cluster).into_iter().find(|node| node.port() != from.port()).unwrap();
        let migration = cluster.migrate_begin(slot, to);
        let before = evalsha_calls(to);
        until_true("callers are sent on", || evalsha_calls(to) > before + 500);
        migration.end();
        let before = evalsha_calls(to);
        until_true("callers have followed", || evalsha_calls(to) > before + 500);
        over.store(true, Ordering::Relaxed);
        callers.join_all().await;
        assert_eq!(gate.store().stats().fallbacks, 0);
        let (ask, moved) = gate
            .store()
            .primary()
            .nodes()
            .iter()
            .fold((0, 0), |sum, node| (sum.0 + node.ask, sum.1 + node.moved));
        assert!(ask >= 500 && moved >= 1, "{:?}", gate.store().primary().nodes());
    });
}

/// A connection of many callers ends: their calls are not made again, and no other node hears of
/// it.
#[test]
fn killed_connections_to_one_node_charge_nobody_twice_and_leave_the_other_nodes_alone() {
    on_cluster(async |cluster| {
        let gate = gate([daily(1_000_000)], options(&cluster.url()));
        until_all_used(&gate).await;
        let master = cluster.master_of(cluster.slot_of("sg1:p:u0"));
        let address = master.address();
        let storm = Storm::start(&gate, 64, user);
        for _ in 0..5 {
            let state =
                || gate.store().primary().nodes().into_iter().find(|node| node.node == address).unwrap();
            until_true("there is a connection", || state().connected);
            let before = evalsha_calls(master);
            until_true("callers are answered", || evalsha_calls(master) > before + 64);
            master.admin(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
        until_all_used(&gate).await;
        storm.end().await.assert_explains(used_by_all(&cluster.url()).await);
        for node in gate.store().primary().nodes() {
            assert!((node.node == address) == (node.reconnects > 0), "{:?}", gate.store().primary().nodes());
        }
    });
}
/// A minority does not know what the others admit: it must not decide, and is used again without a
/// restart.
#[test]
fn a_cluster_without_a_majority_decides_nothing_and_is_used_again_when_it_has_one() {
    let cluster = RedisCluster::start(Shape { masters: 3, replicas_each: 0 });
    runtime().block_on(async {
        let gate = gate([daily(100)], hasty(&cluster.url()));
        let users = thirty_users(&gate).await;
        let (last, lost) = cluster.nodes().split_last().unwrap();
        lost.iter().for_each(RedisServer::kill);
        until_true("the last master knows that it is alone", || {
            last.admin(&["CLUSTER", "INFO"]).contains("cluster_state:fail")
        });
        for user in &users {
            let outcome = check_cost(&gate, user, 1).await;
            assert_eq!(outcome.source, DecisionSource::Local, "{user}");
        }
        lost.iter().for_each(RedisServer::restart);
        for user in &users {
            assert!(until_used(&gate, user).await[0] <= 1, "{user}");
            until_by_store(&gate, user).await;
        }
    });
}
/// With `cluster-require-full-coverage yes`, which is the default, slots without a node take all
/// others along; without it, they fail alone.
#[test]
fn a_cluster_that_requires_full_coverage_stops_whole_and_another_in_part() {
    let cluster = RedisCluster::start(Shape { masters: 3, replicas_each: 0 });
    runtime().block_on(async {
        let gate = gate([daily(100)], hasty(&cluster.url()));
        let users = thirty_users(&gate).await;
        let lost = cluster.master_of(0);
        let is_lost = |user: &str| cluster.slot_of(&format!("sg1:p:{user}")) < 5461;
        let alive: Vec<_> = cluster.nodes().iter().filter(|node| node.port() != lost.port()).collect();
        lost.kill();
        until_true("the others know that slots are lost", || {
            alive.iter().all(|node| node.admin(&["CLUSTER", "INFO"]).contains("cluster_state:fail"))
        });
        for user in &users {
            let outcome = check_cost(&gate, user, 1).await;
            assert_eq!((outcome.allowed, outcome.source), (true, DecisionSource::Local), "{user}");
        }
        let served = users.iter().find(|user| !is_lost(user)).unwrap();
        fails_with(&gate, served, "CLUSTERDOWN The cluster is down").await;

        for node in &alive {
            node.admin(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        }
        until_true("the others serve their slots", || {
            alive.iter().all(|node| node.admin(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
        });
        for user in &users {
            if is_lost(user) {
                assert_eq!(check_cost(&gate, user, 1).await.source, DecisionSource::Local, "{user}");
            } else {
                until_by_store(&gate, user).await;
            }
        }
        lost.restart();
        for user in &users {
            until_by_store(&gate, user).await;
        }
    });
}

/// A reset of a policy must reach its keys on all nodes, and no key of another policy.
#[test]
fn a_policy_is_reset_on_all_nodes_step_by_step() {
    on_cluster(async |cluster| {
        let masters = masters(cluster);
        for node in masters {
            node.admin(&["ACL", "SETUSER", USER, "+scan", "+dbsize"]);
        }
        let policy = |name| Policy::new(name, Quota::per_day(9)).unwrap().with_scope(["user"]);
        let policies = PolicySet::new([policy("a"), policy("aa")]).unwrap();
        let gate = redis_gate(policies, options(&cluster.url_as_user()).with_deadline(PATIENT)).unwrap();
        let users: Vec<_> = (0..300).map(|user| format!("user-{user}")).collect();
        for user in &users {
            assert!(gate.check(&Request::new().with("user", user)).await.is_allowed());
        }
        let (mut next, mut steps) = (None, 0);
        let last = loop {
            let step = gate.reset_policy_step("a", next.as_ref(), 50).await.unwrap();
            assert_eq!(step.keys, Some(600));
            steps += 1;
            match step.next {
                // Whichever instance goes on with it.
                Some(cursor) => next = Some(cursor.to_string().parse().unwrap()),
                None => break step,
            }
        };
        assert_eq!(last.forgotten, 300);
        assert!(steps > 6, "{steps} steps of 50 keys each");
        for user in &users {
            let request = Request::new().with("user", user);
            let used: Vec<_> = gate.peek(&request).await.iter().map(|one| one.decision().used()).collect();
            assert_eq!(used, [0, 1]);
        }
        for node in masters {
            node.admin(&["ACL", "SETUSER", USER, "-scan", "-dbsize"]);
        }
    });
}
