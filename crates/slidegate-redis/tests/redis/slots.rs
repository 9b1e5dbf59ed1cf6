//! Requests whose keys are in several slots of a cluster.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use slidegate::store::ServiceStore;
use slidegate::{DecisionSource, Excess, OnStoreError, Policy, Quota, Request, Value};
use slidegate_redis::RedisOptions;
use slidegate_testkit::poll::until_async;
use slidegate_testkit::redis::RedisCluster;

use crate::callers::{LATER, check_cost, gate, named, options, until_used};
use crate::cluster::{PATIENT, SILENCE, evalsha_calls, masters, on_cluster};

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
                for batching in [true, false] {
                    let policies = names.map(|name| named(name, if name == denier { 1 } else { 100 }));
                    let options = options(&cluster.url()).with_deadline(PATIENT).without_denial_cache();
                    let options = if batching { options } else { options.without_batching() };
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
                                (outcome.decision().source(), outcome.decision().cost()),
                                (DecisionSource::Store, 0),
                                "round {round}: {decisions:?}"
                            );
                            assert_eq!(outcome.decision().is_denied(), outcome.policy().name() == denier);
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
                    named(name, limits.next().unwrap()).with_excess(Excess::Count)
                }
            });
            let options = options(&cluster.url()).with_deadline(PATIENT);
            let gate = gate(policies, options);
            gate.reset(&request).await.unwrap();
            assert!(gate.check(&request).await.is_allowed());
            for asked in 2..=10 {
                let decisions = gate.check(&request).await;
                assert!(decisions.is_denied());
                for outcome in decisions.iter().filter(|outcome| outcome.policy().name() != denier) {
                    assert_eq!(
                        (
                            outcome.decision().used(),
                            outcome.decision().cost(),
                            outcome.decision().is_denied()
                        ),
                        (asked, 1, asked > outcome.decision().limit()),
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
                    named(name, limit).with_on_store_error(OnStoreError::Allow)
                })
            };
            let gate =
                gate(policies(), options(&cluster.url()).with_deadline(SILENCE).without_denial_cache());
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
                if outcome.decision().source() == DecisionSource::Store {
                    assert!(
                        outcome.decision().is_denied() && decisions.is_denied(),
                        "{denier}, {silent}: {decisions:?}"
                    );
                }
                if known {
                    assert_eq!(
                        outcome.decision().source(),
                        DecisionSource::Store,
                        "{denier}, {silent}: {decisions:?}"
                    );
                    assert!(decisions.is_denied());
                    let other = decisions.iter().find(|one| one.policy().name() == silent).unwrap();
                    assert_eq!(
                        other.decision().source(),
                        DecisionSource::Allow,
                        "{denier}, {silent}: {decisions:?}"
                    );
                }
                until_used(&gate, user).await;
            }
        }
    });
}

/// A refund takes the oldest charges of a key. If it comes when the charge it is for no longer
/// counts, it takes those of admitted requests, and others are admitted in their place.
#[test]
fn a_charge_that_no_longer_counts_is_not_refunded() {
    const WINDOW: Duration = Duration::from_secs(1);
    on_cluster(async |cluster| {
        let slot_of = |policy: &str, user: &str| cluster.slot_of(&format!("sg1:{policy}:{user}"));
        // The lower slot is charged first, as long as none has denied.
        let is_short_first = |user: &String| {
            let node_of = |policy| cluster.master_of(slot_of(policy, user)).port();
            slot_of("short", user) < slot_of("long", user) && node_of("short") != node_of("long")
        };
        let user = &(0..).map(|number| format!("late-{number}")).find(is_short_first).unwrap();
        let policies = || {
            let short = Policy::new("short", Quota::new(100, WINDOW).unwrap()).unwrap();
            [short.with_scope(["user"]), named("long", 1)]
        };
        let options = || options(&cluster.url()).with_deadline(PATIENT).without_denial_cache();
        let (gate, witness) = (gate(policies(), options()), gate(policies(), options()));
        let under = |policy: &'static str| Request::new().with("user", user).under(policy);
        let used = async || witness.peek(&under("short")).await.strictest().unwrap().decision().used();
        assert!(gate.check(&under("long")).await.is_allowed());
        assert_eq!(used().await, 0);

        let silent = cluster.master_of(slot_of("long", user));
        silent.pause();
        let denied = {
            let (gate, user) = (gate.clone(), user.clone());
            tokio::spawn(async move { gate.check(&Request::new().with("user", &user)).await.is_denied() })
        };
        until_async("the first slot is charged", async || used().await == 1).await;
        until_async("the charge no longer counts", async || used().await == 0).await;
        for _ in 0..3 {
            assert!(witness.check(&under("short")).await.is_allowed());
        }
        silent.resume();
        assert!(denied.await.unwrap());
        // The refund is made in the background, and this is long enough for it.
        for _ in 0..20 {
            let used = used().await;
            assert_eq!(used, 3, "the charges of admitted requests are left alone");
            tokio::time::sleep(WINDOW / 100).await;
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
            for batching in [true, false] {
                let options = options(&cluster.url()).with_deadline(SILENCE).without_denial_cache();
                let options = if batching { options } else { options.without_batching() };
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
        let gate = gate(policies, options(&cluster.url()).with_deadline(PATIENT).with_hash_tag("user"));
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
        let plain = options(&cluster.url()).with_deadline(PATIENT);
        for (name, options) in
            [("p", plain.clone()), ("h", plain.hashed_keys().with_key_secret("of this test"))]
        {
            let gate = gate([named(name, 9)], options);
            for round in [1, 2] {
                for id in &ids {
                    let request = Request::new().with("user", *id);
                    let decisions = gate.check(&request).await;
                    let outcome = decisions.strictest().unwrap();
                    assert_eq!(
                        (outcome.decision().source(), outcome.decision().used()),
                        (DecisionSource::Store, round),
                        "{id:?}"
                    );
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
            let options = RedisOptions::new(&cluster.url()).unwrap().with_deadline(LATER).hashed_keys();
            let gate = gate([named(secret, 9)], options.with_key_secret(secret));
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
