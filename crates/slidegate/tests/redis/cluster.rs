//! Cluster: nodes that fail, slots that move, and requests whose keys are in several slots.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::{
    DecisionSource, Excess, OnStoreError, Policy, PolicySet, Quota, RedisOptions, Request, SharedGate, Value,
};
use slidegate_testkit::redis::{RedisCluster, RedisServer, Shape, acl::USER};
use slidegate_testkit::until_true;
use tokio::task::JoinSet;

use crate::callers::{
    LATER, Storm, Tally, check_cost, gate, hasty, hourly, named, options, until_by_store, until_used, used,
};
use crate::harness;

/// The deadline of gates that must not fall back, on a busy machine.
const PATIENT: Duration = Duration::from_secs(5);
/// The deadline where a node is silent: its callers wait that long, and other nodes reply sooner.
const SILENCE: Duration = Duration::from_secs(1);

/// Runs a test on the cluster that others use as well, one after the other.
fn on_cluster(test: impl AsyncFnOnce(&RedisCluster)) {
    let cluster = harness::cluster();
    runtime().block_on(async {
        test(&cluster).await;
        // For the next test.
        for node in cluster.nodes() {
            if node.admin(&["ROLE"]).starts_with("master") {
                node.admin(&["FLUSHALL"]);
            }
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A user on each of many slots.
fn user(number: usize) -> String {
    format!("u{}", number % 8)
}

/// What is charged to all of them.
async fn used_by_all(url: &str) -> u64 {
    let mut sum = 0;
    for number in 0..8 {
        sum += used(url, &user(number)).await;
    }
    sum
}

async fn until_all_used(gate: &SharedGate) {
    for number in 0..8 {
        until_used(gate, &user(number)).await;
    }
}

fn evalsha_calls(node: &RedisServer) -> u64 {
    node.commandstats("evalsha").calls
}

fn masters(cluster: &RedisCluster) -> [&RedisServer; 3] {
    [0, 6000, 12_000].map(|slot| cluster.master_of(slot))
}

/// One failed node of three must not need an operator: callers are served as soon as there is a new
/// master.
#[test]
fn a_master_that_freezes_or_dies_is_left_for_its_replica_and_nobody_is_charged_twice() {
    let cluster = RedisCluster::of_three();
    runtime().block_on(async {
        let gate = gate([hourly(1_000_000)], options(&cluster.url()).deadline(SILENCE));
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
        let gate = gate([hourly(limit)], options(&cluster.url()).deadline(LATER).without_denial_cache());
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
        let gate = gate([hourly(1_000_000)], options(&cluster.url()).deadline(PATIENT));
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
        let options = options(&cluster.url()).deadline(PATIENT).hash_tag("tenant");
        let gate = gate([hourly(10)], options);
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
                        (outcome.source(), outcome.used()),
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
        let gate = gate([hourly(1_000_000)], options(&cluster.url()));
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

/// Users whose keys under these policies lie in three slots on different masters, so many of them.
fn spread_users(cluster: &RedisCluster, policies: [&str; 3], count: usize) -> Vec<String> {
    let is_spread = |user: &String| {
        let ports =
            policies.map(|name| cluster.master_of(cluster.slot_of(&format!("sg1:{name}:{user}"))).port());
        ports.into_iter().collect::<BTreeSet<_>>().len() == 3
    };
    (0..).map(|number| format!("s{number}")).filter(is_spread).take(count).collect()
}

/// A denied request costs nothing, also where no single call can ensure that.
#[test]
fn a_denial_in_any_of_several_slots_leaves_the_other_policies_uncharged() {
    on_cluster(async |cluster| {
        let names = ["a", "b", "c"];
        let users = spread_users(cluster, names, 2);
        for user in &users {
            for denier in names {
                for coalescing in [true, false] {
                    let policies = names.map(|name| named(name, if name == denier { 1 } else { 100 }));
                    let options = options(&cluster.url()).deadline(PATIENT).without_denial_cache();
                    let options = if coalescing { options } else { options.without_batching() };
                    let gate = gate(policies, options);
                    let request = Request::new().with("user", user);
                    gate.reset(&request).await.unwrap();
                    assert!(gate.check(&request).await.is_allowed());
                    // At first the slots are asked in their order, then the one that denies before
                    // the others.
                    for round in 0..20 {
                        let calls = gate.store().primary().stats().calls;
                        let decisions = gate.check(&request).await;
                        if round > 0 {
                            // It alone, and a peek at each of the others: nothing to refund.
                            assert_eq!(
                                gate.store().primary().stats().calls - calls,
                                3,
                                "{denier} denies {user}, round {round}"
                            );
                        }
                        let strictest = decisions.strictest().unwrap();
                        assert_eq!((decisions.is_denied(), strictest.policy().name()), (true, denier));
                        for outcome in decisions.iter() {
                            assert_eq!(
                                (outcome.source(), outcome.cost()),
                                (DecisionSource::Store, 0),
                                "round {round}: {decisions:?}"
                            );
                            assert_eq!(outcome.is_denied(), outcome.policy().name() == denier);
                        }
                        if round % 5 == 0 {
                            // Charges of a denied request are refunded in the background.
                            let mut used = Vec::new();
                            for _ in 0..1000 {
                                used = until_used(&gate, user).await;
                                if used == [1, 1, 1] {
                                    break;
                                }
                            }
                            assert_eq!(used, [1, 1, 1], "{denier} denies {user}, round {round}");
                        }
                    }
                }
            }
        }
    });
}

/// A policy that counts denials must count requests that another slot has denied, and keep them.
#[test]
fn denied_requests_that_count_are_counted_in_every_slot() {
    on_cluster(async |cluster| {
        let names = ["a", "b", "c"];
        let user = &spread_users(cluster, names, 1)[0];
        let request = Request::new().with("user", user);
        for denier in names {
            // One of the two that count is soon over its limit, too.
            let mut limits = [3, 100].into_iter();
            let policies = names.map(|name| {
                if name == denier {
                    named(name, 1)
                } else {
                    named(name, limits.next().unwrap()).excess(Excess::Count)
                }
            });
            let options = options(&cluster.url()).deadline(PATIENT);
            let gate = gate(policies, options);
            gate.reset(&request).await.unwrap();
            assert!(gate.check(&request).await.is_allowed());
            for asked in 2..=10 {
                let decisions = gate.check(&request).await;
                assert!(decisions.is_denied());
                for outcome in decisions.iter().filter(|outcome| outcome.policy().name() != denier) {
                    assert_eq!(
                        (outcome.used(), outcome.cost(), outcome.is_denied()),
                        (asked, 1, asked > outcome.limit()),
                        "{denier} denies: {decisions:?}"
                    );
                }
            }
            let counted = |name: &str| if name == denier { 1 } else { 10 };
            // Charges of a denied request are refunded in the background.
            let mut used = Vec::new();
            for _ in 0..1000 {
                used = until_used(&gate, user).await;
                if used == names.map(counted) {
                    break;
                }
            }
            assert_eq!(used, names.map(counted), "{denier} denies");
        }
    });
}

/// A fallback must not admit a request that a policy has just denied.
#[test]
fn a_denial_in_one_slot_holds_although_another_does_not_answer() {
    on_cluster(async |cluster| {
        let names = ["a", "b", "c"];
        let user = &spread_users(cluster, names, 1)[0];
        let request = Request::new().with("user", user);
        let node_of = |name: &str| cluster.master_of(cluster.slot_of(&format!("sg1:{name}:{user}")));
        // Whether the one that denies is asked before the one that is silent or together with it,
        // each denies.
        for (denier, silent) in [("a", "b"), ("b", "a"), ("c", "a"), ("a", "c"), ("b", "c"), ("c", "b")] {
            let policies = || {
                names.map(|name| {
                    let limit = if name == denier { 1 } else { 100 };
                    named(name, limit).on_store_error(OnStoreError::Allow)
                })
            };
            let gate = gate(policies(), options(&cluster.url()).deadline(SILENCE).without_denial_cache());
            until_used(&gate, user).await;
            gate.reset(&request).await.unwrap();
            assert!(gate.check(&request).await.is_allowed());
            for known in [false, true] {
                if known {
                    assert!(gate.check(&request).await.is_denied());
                }
                let node = node_of(silent);
                node.pause();
                let decisions = gate.check(&request).await;
                node.resume();
                let outcome = decisions.iter().find(|one| one.policy().name() == denier).unwrap();
                // A node that is silent may be asked first, and then nobody knows.
                if outcome.source() == DecisionSource::Store {
                    assert!(
                        outcome.is_denied() && decisions.is_denied(),
                        "{denier}, {silent}: {decisions:?}"
                    );
                }
                if known {
                    assert_eq!(outcome.source(), DecisionSource::Store, "{denier}, {silent}: {decisions:?}");
                    assert!(decisions.is_denied());
                    let other = decisions.iter().find(|one| one.policy().name() == silent).unwrap();
                    assert_eq!(other.source(), DecisionSource::Allow, "{denier}, {silent}: {decisions:?}");
                }
                until_used(&gate, user).await;
            }
        }
    });
}

/// A client that disconnects must not leave only some of its policies charged.
#[test]
fn a_caller_who_gives_up_leaves_no_policy_charged_alone() {
    on_cluster(async |cluster| {
        let names = ["a", "b", "c"];
        let user = &spread_users(cluster, names, 1)[0];
        let request = Request::new().with("user", user);
        for silent in names {
            for coalescing in [true, false] {
                let options = options(&cluster.url()).deadline(SILENCE).without_denial_cache();
                let options = if coalescing { options } else { options.without_batching() };
                let gate = gate(names.map(|name| named(name, 100)), options);
                until_used(&gate, user).await;
                gate.reset(&request).await.unwrap();
                let node = cluster.master_of(cluster.slot_of(&format!("sg1:{silent}:{user}")));
                node.pause();
                let hurried = tokio::time::timeout(SILENCE / 3, gate.check(&request)).await;
                assert!(hurried.is_err(), "{silent} answers");
                drop(hurried);
                node.resume();
                let mut used = Vec::new();
                for _ in 0..200 {
                    used = until_used(&gate, user).await;
                    if used.iter().all(|charged| *charged == used[0]) {
                        break;
                    }
                }
                assert!(used == [0, 0, 0] || used == [1, 1, 1], "{silent} was silent: {used:?}");
            }
        }
    });
}

/// Several policies of one client are worth one step and one round trip, if somebody says what
/// keeps them together.
#[test]
fn a_hash_tag_puts_the_keys_of_a_request_in_one_slot_and_one_call() {
    on_cluster(async |cluster| {
        let policies = [named("a", 9), named("b", 9), named("c", 9)];
        let gate = gate(policies, options(&cluster.url()).deadline(PATIENT).hash_tag("user"));
        let mut slots = BTreeSet::new();
        for user in ["alice", "bob", "{carol}", "dave"] {
            until_used(&gate, user).await;
            let evalsha = || masters(cluster).map(evalsha_calls);
            let (before, calls) = (evalsha(), gate.store().primary().stats().calls);
            assert_eq!(check_cost(&gate, user, 1).await.used, 1);
            assert_eq!(gate.store().primary().stats().calls, calls + 1);
            let called = evalsha().iter().zip(before).filter(|(after, before)| **after > *before).count();
            assert_eq!(called, 1, "{user}");
            assert_eq!(until_used(&gate, user).await, [1, 1, 1]);
        }
        let keys = masters(cluster).map(|node| node.admin(&["KEYS", "sg1:{*}:*"]));
        let keys: Vec<_> = keys.iter().flat_map(|keys| keys.lines()).collect();
        assert_eq!(keys.len(), 12);
        slots.extend(keys.iter().map(|key| cluster.slot_of(key)));
        assert_eq!(slots.len(), 4);
    });
}

/// Clients choose their ids: they must not meet each other's usage with them, nor all crowd into
/// one slot.
#[test]
fn hostile_ids_never_collide_nor_choose_their_slot() {
    on_cluster(async |cluster| {
        let long = ["x".repeat(10_000), "x".repeat(10_001), "x".repeat(9_999) + "y"];
        let mut ids: Vec<Value<'_>> = [
            "",
            "*",
            "#",
            "{",
            "{}",
            "{a}",
            "{a}b",
            "{a}c",
            "}a{",
            "a\0b",
            "a\0",
            "a",
            "a\n",
            "a\nb",
            "a\r\nb",
            "a b",
            "a:b",
            "p:a",
            "sg1:p:a",
            "@10.0.0.1",
            "10.0.0.1",
            "a,b",
            "\u{fffd}",
            "é",
        ]
        .map(Value::from)
        .into();
        ids.push(Value::from(&[0xff, 0xfe]));
        ids.push(Value::from(IpAddr::from(Ipv4Addr::new(10, 0, 0, 1))));
        ids.extend(long.iter().map(Value::from));
        let plain = options(&cluster.url()).deadline(PATIENT);
        for (name, options) in [("p", plain.clone()), ("h", plain.hashed_keys().key_secret("of this test"))] {
            let gate = gate([named(name, 9)], options);
            for round in [1, 2] {
                for id in &ids {
                    let request = Request::new().with("user", *id);
                    let decisions = gate.check(&request).await;
                    let outcome = decisions.strictest().unwrap();
                    assert_eq!((outcome.source(), outcome.used()), (DecisionSource::Store, round), "{id:?}");
                }
            }
            let keys = masters(cluster).map(|node| node.admin(&["KEYS", &format!("sg1:{name}:*")]));
            let keys: Vec<_> = keys.iter().flat_map(|keys| keys.lines()).collect();
            assert_eq!(keys.len(), ids.len());
            assert!(keys.iter().all(|key| key.len() <= 80 && !key.contains('{')), "{keys:?}");
            if name == "h" {
                assert!(
                    keys.iter().all(|key| key.starts_with("sg1:h:#") && key.len() == 6 + 1 + 22),
                    "{keys:?}"
                );
            }
        }

        // One tag, many slots; another secret, other slots.
        let mut spread = Vec::new();
        for secret in ["one", "two"] {
            let options = RedisOptions::new(&cluster.url()).unwrap().deadline(LATER).hashed_keys();
            let gate = gate([named(secret, 9)], options.key_secret(secret));
            for number in 0..30 {
                assert!(check_cost(&gate, &format!("{{a}}{number}"), 1).await.by_store());
            }
            let keys = masters(cluster).map(|node| node.admin(&["KEYS", &format!("sg1:{secret}:*")]));
            let keys = keys.iter().flat_map(|keys| keys.lines());
            spread.push(keys.map(|key| cluster.slot_of(key)).collect::<BTreeSet<_>>());
        }
        assert!(spread.iter().all(|slots| slots.len() >= 28), "{spread:?}");
        assert!(spread[0].intersection(&spread[1]).count() <= 2, "{spread:?}");
    });
}

/// A minority does not know what the others admit: it must not decide, and is used again without a
/// restart.
#[test]
fn a_cluster_without_a_majority_decides_nothing_and_is_used_again_when_it_has_one() {
    let cluster = RedisCluster::start(Shape { masters: 3, replicas_each: 0 });
    runtime().block_on(async {
        let gate = gate([hourly(100)], hasty(&cluster.url()));
        let users: Vec<_> = (0..30).map(|user| format!("user-{user}")).collect();
        for user in &users {
            assert_eq!(until_used(&gate, user).await, [0]);
        }
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

/// A reset of a policy must reach its keys on all nodes, and no key of another policy.
#[test]
fn a_policy_is_reset_on_all_nodes_step_by_step() {
    on_cluster(async |cluster| {
        let masters = masters(cluster);
        for node in masters {
            node.admin(&["ACL", "SETUSER", USER, "+scan", "+dbsize"]);
        }
        let policy = |name| Policy::new(name, Quota::per_hour(9)).unwrap().scope(["user"]);
        let policies = PolicySet::new([policy("a"), policy("aa")]).unwrap();
        let gate = SharedGate::redis(policies, options(&cluster.url_as_user()).deadline(PATIENT)).unwrap();
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
            let used: Vec<_> = gate.peek(&request).await.iter().map(|one| one.used()).collect();
            assert_eq!(used, [0, 1]);
        }
        for node in masters {
            node.admin(&["ACL", "SETUSER", USER, "-scan", "-dbsize"]);
        }
    });
}
