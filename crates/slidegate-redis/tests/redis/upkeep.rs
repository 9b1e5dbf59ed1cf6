//! Upkeep: what one instance tells the others, what examinations find, and whole policies
//! forgotten.

use std::time::Duration;

use slidegate::store::ServiceStore;
use slidegate::{Algorithm, DecisionSource, Decisions, Match, Policy, PolicySet, Quota, Request};
use slidegate_redis::RedisGate;
use slidegate_testkit::proxy::{Mode, Proxy};
use slidegate_testkit::redis::acl::{BESIDES, USER};
use slidegate_testkit::redis::{FakeRedis, RedisServer};

use crate::callers::redis_gate;
use crate::hostile::{bulk, numbers};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A gate of one policy, `per-user`, whose decisions have all the time they need.
fn gate(server: &RedisServer, quota: Quota) -> RedisGate {
    let policies = PolicySet::new([Policy::new("per-user", quota).unwrap().with_scope(["user"])]).unwrap();
    let options = crate::callers::options(&server.url_as_user());
    redis_gate(policies, options).unwrap()
}

/// Asks until a denial comes from memory: from then on this gate hears what others tell.
async fn until_cached(gate: &RedisGate, request: &Request<'_>) {
    for _ in 0..500 {
        let decisions = gate.check(request).await;
        assert!(decisions.is_denied());
        if decisions.strictest().unwrap().decision().source() == DecisionSource::CachedDenial {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no denial is ever cached");
}

/// Support gives a customer room again on one machine; nobody must have to wait for the others to
/// notice.
#[test]
fn a_refund_or_a_reset_ends_cached_denials_in_every_instance() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let (here, there) = (gate(&server, Quota::per_hour(2)), gate(&server, Quota::per_hour(2)));
        let request = Request::new().with("user", "alice");
        for give_room in ["refund", "reset"] {
            while here.check(&request).await.is_allowed() {}
            until_cached(&here, &request).await;
            match give_room {
                "refund" => {
                    assert_eq!(there.refund(&request).await.iter().next().unwrap().decision().cost(), 1);
                }
                _ => assert!(there.reset(&request).await.unwrap()),
            }
            let mut asked = 0;
            while here.check(&request).await.is_denied() {
                asked += 1;
                assert!(asked < 500, "{give_room}: the denial outlives it");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
}

/// A denial that nobody can end would lock out anyone who was given room.
#[test]
fn nothing_is_cached_while_no_invalidations_arrive() {
    let server = RedisServer::start();
    server.admin(&["ACL", "SETUSER", USER, "-subscribe"]);
    runtime().block_on(async {
        let gate = gate(&server, Quota::per_hour(1));
        let request = Request::new().with("user", "alice");
        assert!(gate.check(&request).await.is_allowed());
        for _ in 0..50 {
            assert_eq!(
                gate.check(&request).await.strictest().unwrap().decision().source(),
                DecisionSource::Store
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

/// After a bad deploy a policy's counters are worth nothing; those of others are.
#[test]
fn a_policy_is_forgotten_whole_and_no_other() {
    let server = RedisServer::start();
    server.admin(&[&["ACL", "SETUSER", USER][..], &BESIDES.split(' ').collect::<Vec<_>>()].concat());
    runtime().block_on(async {
        let policy = |name: &str| Policy::new(name, Quota::per_hour(10)).unwrap().with_scope(["user"]);
        let policies = PolicySet::new([policy("a"), policy("aa"), policy("b")]).unwrap();
        let options = crate::callers::options(&server.url_as_user());
        for options in [options.clone(), options.with_hash_tag("user").hashed_keys()] {
            let gate = redis_gate(policies.clone(), options).unwrap();
            let users: Vec<_> = (0..2500).map(|user| format!("user-{user}")).collect();
            for user in &users {
                assert!(gate.check(&Request::new().with("user", user)).await.is_allowed());
            }
            assert_eq!(gate.reset_policy("a").await.unwrap(), 2500);
            assert_eq!(gate.reset_policy("a").await.unwrap(), 0);
            let request = Request::new().with("user", &users[0]);
            let used: Vec<_> = gate.peek(&request).await.iter().map(|one| one.decision().used()).collect();
            assert_eq!(used, [0, 1, 1]);
            assert_eq!(gate.reset_policy("aa").await.unwrap() + gate.reset_policy("b").await.unwrap(), 5000);
        }
    });
}

/// Names of policies are free: one that happens to be called as what the store keeps for itself
/// counts as any other.
#[test]
fn policies_called_as_the_stores_own_keys_meet_none_of_them() {
    let server = RedisServer::start();
    server.admin(&[&["ACL", "SETUSER", USER][..], &BESIDES.split(' ').collect::<Vec<_>>()].concat());
    runtime().block_on(async {
        let names = ["canary", "control", "once", "forget"];
        let policy = |name: &str| Policy::new(name, Quota::per_hour(10)).unwrap().with_scope(["user"]);
        let policies = PolicySet::new(names.map(policy)).unwrap();
        let options = crate::callers::options(&server.url_as_user());
        let gate = redis_gate(policies, options.without_denial_cache()).unwrap();
        assert_eq!(gate.store().primary().examine().await, [""; 0]);
        server.admin(&["SET", "sg1:control", "changes"]);
        // The first canary and the first place of everything else that is numbered have this name.
        let request = Request::new().with("user", "0");
        for used in 1..=3 {
            let decisions = gate.check(&request).await;
            assert!(decisions.is_allowed(), "{decisions:?}: {:?}", gate.store().stats());
            let counted: Vec<_> =
                decisions.iter().map(|one| (one.decision().used(), one.decision().source())).collect();
            assert_eq!(counted, [(used, DecisionSource::Store); 4]);
            assert_eq!(gate.store().primary().examine().await, [""; 0]);
        }
        // To reset a policy forgets no first reply: asked again, the request is not charged again.
        let one = Request::new().with("user", "1");
        assert_eq!(gate.check_once(&one, "id").await.strictest().unwrap().decision().used(), 1);
        for name in names {
            assert_eq!(gate.reset_policy(name).await.unwrap(), 2, "{name}");
        }
        assert_eq!(gate.check_once(&one, "id").await.strictest().unwrap().decision().used(), 1);
        let after: Vec<_> = gate.peek(&one).await.iter().map(|one| one.decision().used()).collect();
        assert_eq!(after, [0; 4], "charged again");
        assert_eq!(server.admin(&["GET", "sg1:control"]), "changes");
    });
}

/// Each of these resets limits without a word in any log; a limiter that keeps silent is believed.
#[test]
fn examinations_find_what_silently_breaks_limits() {
    let server = RedisServer::builder().with_clock().start();
    server.admin(&[&["ACL", "SETUSER", USER][..], &BESIDES.split(' ').collect::<Vec<_>>()].concat());
    runtime().block_on(async {
        let gate = gate(&server, Quota::per_hour(10));
        assert_eq!(gate.store().primary().examine().await, [""; 0]);
        assert_eq!(gate.store().primary().examine().await, [""; 0]);

        server.admin(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
        let address = server.address();
        assert_eq!(
            gate.store().primary().examine().await,
            [format!(
                "redis at {address} evicts keys when it is full (maxmemory-policy is `allkeys-lru`), which resets limits; \
                 set it to `noeviction`"
            )]
        );
        server.admin(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);

        server.admin(&["FLUSHALL"]);
        let lost = gate.store().primary().examine().await;
        assert!(lost.len() == 1 && lost[0].starts_with("redis has lost history (1 counters went back)"), "{lost:?}");
        assert_eq!(gate.store().primary().stats().usage_losses, 1);

        let request = Request::new().with("user", "alice");
        assert!(gate.check(&request).await.is_allowed());
        server.clock().set(-3_600_000_000);
        assert!(gate.check(&request).await.is_allowed());
        let jumped = gate.store().primary().examine().await;
        let says = format!("the clock of redis at {address} jumped back by 3600.");
        let alternative = format!("the clock of redis at {address} jumped back by 3599.");
        let found = jumped.len() == 1 && (jumped[0].starts_with(&says) || jumped[0].starts_with(&alternative));
        assert!(found && jumped[0].contains("(1 such jumps)"), "{jumped:?}");
        assert_eq!(gate.store().primary().examine().await, [""; 0]);
    });
}

/// A denial may be cached until the end of a month. Once usage is lost, nobody is denied by what is only remembered.
#[test]
fn cached_denials_end_everywhere_when_history_is_lost() {
    let server = RedisServer::builder().with_clock().start();
    server.admin(&[&["ACL", "SETUSER", USER][..], &BESIDES.split(' ').collect::<Vec<_>>()].concat());
    runtime().block_on(async {
        let gates = [(); 2].map(|()| gate(&server, Quota::per_day(1)));
        let request = Request::new().with("user", "alice");
        assert_eq!(gates[0].store().primary().examine().await, [""; 0]);
        assert!(gates[0].check(&request).await.is_allowed());
        for gate in &gates {
            until_cached(gate, &request).await;
        }
        server.admin(&["FLUSHALL"]);
        assert!(gates[0].check(&request).await.is_denied(), "it is not known yet");
        assert_eq!(gates[0].store().primary().examine().await.len(), 1);
        let mut asked = 0;
        while gates[1].peek(&request).await.is_denied() {
            asked += 1;
            assert!(asked < 1000, "the other instance has not heard");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(gates[0].check(&request).await.is_allowed());
    });
}

/// A user without the permission gets no result, and nothing else fails.
#[test]
fn the_least_user_is_examined_as_far_as_it_may() {
    let server = RedisServer::start();
    server.admin(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    runtime().block_on(async {
        let gate = gate(&server, Quota::per_hour(10));
        assert_eq!(gate.store().primary().examine().await, [""; 0]);
        server.admin(&["FLUSHALL"]);
        assert_eq!(gate.store().primary().examine().await.len(), 1);
        let refused = gate.reset_policy("per-user").await.unwrap_err().to_string();
        assert!(refused.contains("NOPERM") && refused.contains("scan"), "{refused}");
    });
}

/// Redis 6.2 takes the first line of a checked script for a mistake; it must be served all the
/// same.
#[test]
fn a_server_that_cannot_check_scripts_gets_plain_ones() {
    let loaded = std::sync::Mutex::new(Vec::new());
    let loaded = std::sync::Arc::new(loaded);
    let heard = loaded.clone();
    let server = FakeRedis::greeting(move |command| {
        let words: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        match words[0].as_str() {
            "TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".into(),
            "SCRIPT" if words[2].starts_with("#!lua") => {
                "-ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'\r\n"
                    .into()
            }
            "SCRIPT" => {
                heard.lock().unwrap().push(words[2].clone());
                "+OK\r\n".into()
            }
            "EVALSHA" if heard.lock().unwrap().is_empty() => "-NOSCRIPT No matching script.\r\n".into(),
            "EVALSHA" => {
                let now = 1_700_000_000_000_000;
                bulk(&numbers(&[1, now, now, now + 3_600_000_000, 0])).into()
            }
            _ => "-ERR unknown command\r\n".into(),
        }
    });
    runtime().block_on(async {
        let quota = Quota::per_hour(10).with_algorithm(Algorithm::FixedWindow);
        let policies =
            PolicySet::new([Policy::new("per-user", quota).unwrap().with_scope(["user"])]).unwrap();
        let options = crate::callers::options(&server.url());
        let gate = redis_gate(policies, options).unwrap();
        for _ in 0..2 {
            let request = Request::new().with("user", "alice");
            let decisions = gate.check(&request).await;
            let decision = decisions.strictest().unwrap();
            assert_eq!(
                (decision.decision().source(), decision.decision().used()),
                (DecisionSource::Store, 1),
                "{:?}",
                gate.store().stats()
            );
        }
    });
    let loaded = loaded.lock().unwrap();
    assert_eq!(loaded.len(), 1);
    let (plain, header) = (&loaded[0], "#!lua");
    assert!(plain.contains("local call") && !plain.starts_with(header), "{plain}");
}

/// A client that counts its requests from one for each kind of them would pass the second kind for
/// nothing.
#[test]
fn an_id_is_that_of_one_request_and_of_no_other() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let policy = |name: &str| Policy::new(name, Quota::per_hour(10)).unwrap().with_scope(["user"]);
        let policies =
            PolicySet::new([policy("all"), policy("some").with_condition("path", Match::equals("/x"))])
                .unwrap();
        let options = crate::callers::options(&server.url_as_user());
        let gate = redis_gate(policies, options).unwrap();
        let request = Request::new().with("user", "alice");
        for (request, used) in [
            (request.clone(), vec![1]),
            (request.clone().with_cost(3), vec![4]),
            (request.clone().with("path", "/x"), vec![5, 1]),
            (request.clone().with_cost(3), vec![4]),
        ] {
            let decisions = gate.check_once(&request, "1").await;
            let outcome: Vec<_> =
                decisions.iter().map(|one| (one.decision().source(), one.decision().used())).collect();
            let expected: Vec<_> = used.into_iter().map(|used| (DecisionSource::Store, used)).collect();
            assert_eq!(outcome, expected, "{:?}", gate.store().stats());
        }
        let request = request.with("path", "/x");
        let peeked = gate.peek(&request).await;
        assert_eq!(peeked.iter().map(|one| one.decision().used()).collect::<Vec<_>>(), [5, 1]);

        // What costs nothing is stored nowhere.
        let nobody = Request::new().with("user", "nobody").with_cost(0);
        assert!(gate.check_once(&nobody, "1").await.is_allowed());
        assert_eq!(server.admin(&["KEYS", "*nobody*"]).trim(), "");
    });
}

/// A client that got no answer asks again; it must not pay twice, nor hear another answer.
#[test]
fn a_request_with_an_id_is_charged_once_and_answered_alike() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port());
    runtime().block_on(async {
        let policy =
            |name: &str, limit| Policy::new(name, Quota::per_hour(limit)).unwrap().with_scope(["user"]);
        let policies = PolicySet::new([policy("a", 3), policy("b", 2)]).unwrap();
        let options = crate::callers::options(&proxy.url());
        let gate = redis_gate(policies, options).unwrap();
        let request = Request::new().with("user", "alice");
        let outcome = |decisions: Decisions<'_>| format!("{decisions:?}");
        let first = outcome(gate.check_once(&request, "one").await);
        assert_eq!(outcome(gate.check_once(&request, "one").await), first);
        let used =
            async || gate.peek(&request).await.iter().map(|one| one.decision().used()).collect::<Vec<_>>();
        assert_eq!(used().await, [1, 1]);

        // The reply is lost on its way: asked again by itself, it is not charged again.
        proxy.set(Mode::CutReplyAfter(1));
        let second = {
            let asked = gate.check_once(&request, "two");
            let heal = async {
                while server.commandstats("evalsha").calls < 4 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                proxy.set(Mode::Pass);
            };
            tokio::join!(asked, heal).0
        };
        assert!(
            second.is_allowed() && second.iter().all(|one| one.decision().source() == DecisionSource::Store),
            "{second:?}"
        );
        assert_eq!(used().await, [2, 2]);

        // A denial has charged nothing, and is no answer forever.
        assert!(gate.check_once(&request, "three").await.is_denied());
        gate.refund(&request).await;
        assert!(gate.check_once(&request, "three").await.is_allowed());
    });
}
