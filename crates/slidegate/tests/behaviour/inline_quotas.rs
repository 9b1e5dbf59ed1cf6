//! Requests that name their policy, carry an inline quota, or are decided together, as protocols
//! with inline quotas do.

use std::time::Duration;

use proptest::prelude::*;
use slidegate::{
    Algorithm, Decision, Excess, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
    verb::Verb,
};

fn gate(policies: impl IntoIterator<Item = Policy>) -> (Gate, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    (Gate::with_memory(PolicySet::new(policies).unwrap(), store), clock)
}

fn policy(name: &str, quota: Quota) -> Policy {
    Policy::new(name, quota).unwrap().with_scope(["user"])
}

fn used(gate: &Gate, request: &Request<'_>) -> u64 {
    gate.peek(request).iter().next().expect("a policy applies").decision().used()
}

/// Callers that name a policy have chosen: a condition meant for others must not lift the limit.
#[test]
fn a_named_policy_decides_alone_and_whatever_its_conditions() {
    let login =
        policy("login", Quota::per_minute(1)).with_condition("path", slidegate::Match::equals("/login"));
    let (gate, _) = gate([policy("all", Quota::per_minute(1)), login]);
    let alice = Request::new().with("user", "alice").under("login");
    assert!(gate.check(&alice).is_allowed());
    let decisions = gate.check(&alice);
    assert!(decisions.is_denied());
    assert_eq!(decisions.iter().map(|one| one.policy().name().to_owned()).collect::<Vec<_>>(), ["login"]);
    assert_eq!(used(&gate, &Request::new().with("user", "alice").under("all")), 0);
}

/// Usage that has expired under the key's inline quota would still count under the policy's own.
#[test]
fn a_reset_judges_usage_by_the_quota_it_is_under() {
    for algorithm in Algorithm::ALL {
        let quota = |seconds| Quota::new(5, Duration::from_secs(seconds)).unwrap().with_algorithm(algorithm);
        let (gate, clock) = gate([policy("p", quota(3600))]);
        for (user, seconds) in [("alice", 1), ("bob", 7200)] {
            let request = Request::new().with("user", user).with_quota(quota(seconds)).with_cost(4);
            assert!(gate.check(&request).is_allowed());
        }
        clock.advance(Duration::from_secs(2));
        let is_used = |user| gate.reset(&Request::new().with("user", user)).unwrap();
        assert_eq!(["alice", "bob"].map(is_used), [false, true], "{algorithm}");
    }
}

/// A step of a random history: on a key, without or with one of two inline quotas.
#[derive(Debug, Clone, Copy)]
enum Step {
    Check { key: usize, inline: Option<usize>, cost: u64 },
    Reserve { key: usize, inline: Option<usize>, cost: u64 },
    Advance(u64),
    Configure(u64),
    Reset(usize),
}

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let inline = || prop_oneof![2 => Just(None), 5 => Just(Some(0)), 2 => Just(Some(1))];
    let step = prop_oneof![
        12 => (0..KEYS.len(), inline(), 0u64..4).prop_map(|(key, inline, cost)| Step::Check { key, inline, cost }),
        2 => (0..KEYS.len(), inline(), 1u64..4).prop_map(|(key, inline, cost)| Step::Reserve { key, inline, cost }),
        4 => (0u64..40_000).prop_map(Step::Advance),
        1 => (4u64..9).prop_map(Step::Configure),
        1 => (0..KEYS.len()).prop_map(Step::Reset),
    ];
    proptest::collection::vec(step, 1..60)
}

/// What came of a step on a gate, whose policy has the quota of this limit.
fn run(gate: &Gate, clock: &ManualClock, algorithm: Algorithm, step: Step) -> Option<String> {
    let quota =
        |limit, seconds| Quota::new(limit, Duration::from_secs(seconds)).unwrap().with_algorithm(algorithm);
    let inline_quotas = [quota(6, 30), quota(3, 90)];
    let request = |key: usize, inline: Option<usize>, cost| {
        let request = Request::new().with("user", KEYS[key]).with_cost(cost);
        inline.map_or(request.clone(), |at| request.with_quota(inline_quotas[at]))
    };
    let text = |decision: &slidegate::Decision| {
        format!(
            "{:?}",
            (
                decision.verdict(),
                decision.limit(),
                decision.used(),
                decision.held(),
                decision.retry_after(),
                decision.reset_after()
            )
        )
    };
    match step {
        Step::Check { key, inline, cost } => {
            gate.check(&request(key, inline, cost)).iter().next().map(|one| text(one.decision()))
        }
        Step::Reserve { key, inline, cost } => gate
            .reserve(&request(key, inline, cost))
            .decisions()
            .iter()
            .next()
            .map(|one| text(one.decision())),
        Step::Advance(ms) => {
            clock.advance(Duration::from_millis(ms));
            None
        }
        Step::Configure(limit) => {
            gate.configure(PolicySet::new([policy("p", quota(limit, 60))]).unwrap()).unwrap();
            None
        }
        Step::Reset(key) => Some(gate.reset(&request(key, None, 1)).unwrap().to_string()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// The quota that most keys of a policy are under is stored once. A key must not be taken for
    /// one of those, whatever others do: each is decided as in a store of its own, where another key
    /// came first under the policy's own quota, so that every inline quota is listed.
    #[test]
    fn keys_of_one_policy_are_under_different_quotas_without_being_confused(
        at in 0..Algorithm::ALL.len(),
        steps in steps(),
    ) {
        let algorithm = Algorithm::ALL[at];
        let own = Quota::per_minute(5).with_algorithm(algorithm);
        let (together, clock) = gate([policy("p", own)]);
        let alone = KEYS.map(|_| {
            let (gate, clock) = gate([policy("p", own)]);
            assert!(gate.check(&Request::new().with("user", "first")).is_allowed());
            (gate, clock)
        });
        for (number, step) in steps.into_iter().enumerate() {
            let found = run(&together, &clock, algorithm, step);
            for (key, (gate, clock)) in alone.iter().enumerate() {
                match step {
                    Step::Check { key: of, .. } | Step::Reserve { key: of, .. } | Step::Reset(of) if of != key => {}
                    step => prop_assert_eq!(&run(gate, clock, algorithm, step), &found, "{}: {:?}", number, step),
                }
            }
        }
    }
}

/// Inline quotas are stored beside keys: those of evicted keys must not accumulate.
#[test]
fn inline_quotas_of_many_keys_that_leave_do_no_harm() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).max_keys(200).build();
    let gate = Gate::with_memory(PolicySet::new([policy("p", Quota::per_minute(1))]).unwrap(), store);
    for round in 0..50u64 {
        for key in 0..100u64 {
            let user = format!("{key}-{round}");
            let request = Request::new().with("user", &user).with_quota(Quota::per_second(1 + key % 3));
            assert!(gate.check(&request).is_allowed(), "{user}");
        }
        clock.advance(Duration::from_secs(3));
    }
    assert!(gate.store().stats().keys <= 200, "{:?}", gate.store().stats());
}

/// What was consumed is known afterwards: it has to be waited out, not forgotten because it did not
/// fit.
#[test]
fn charged_excess_is_admitted_once_and_waited_out() {
    for algorithm in Algorithm::ALL {
        let quota = Quota::per_minute(10).with_algorithm(algorithm);
        let (gate, clock) =
            gate([policy("tokens", quota).with_excess(Excess::Charge), policy("calls", quota)]);
        let of = |name, cost| Request::new().with("user", "alice").under(name).with_cost(cost);
        assert!(gate.check(&of("tokens", 9)).is_allowed());
        let many = of("tokens", 11);
        let over = gate.check(&many);
        let over = over.strictest().unwrap();
        assert_eq!(
            (
                over.decision().is_allowed(),
                over.decision().used(),
                over.decision().remaining(),
                over.decision().cost()
            ),
            (true, 20, 0, 11),
            "{algorithm}"
        );
        let denied = gate.check(&many);
        let denied = denied.strictest().unwrap();
        assert_eq!(
            (denied.decision().is_denied(), denied.decision().used(), denied.decision().cost()),
            (true, 20, 0),
            "{algorithm}"
        );
        let wait = denied.decision().retry_after().expect("a token fits again");
        assert!(gate.check(&of("tokens", 0)).is_allowed(), "zero means zero");
        clock.advance(wait.checked_sub(Duration::from_micros(1)).unwrap());
        assert!(gate.peek(&many).is_denied(), "{algorithm}");
        clock.advance(Duration::from_micros(1));
        assert!(gate.check(&many).is_allowed(), "{algorithm}: {denied:?}");
        // Another policy that denies keeps the excess from being charged.
        let before = used(&gate, &of("tokens", 0));
        assert!(gate.apply_all(Verb::Check, &[of("tokens", 1), of("calls", 11)]).is_denied());
        assert_eq!(used(&gate, &of("tokens", 0)), before, "{algorithm}");
    }
}

/// Anyone who moves from a limiter that counts every hit must be able to keep its numbers, and the
/// promised wait must hold.
#[test]
fn counted_denials_are_charged_and_waited_out_by_every_policy() {
    for algorithm in Algorithm::ALL {
        let quota = Quota::per_minute(10).with_algorithm(algorithm);
        let (gate, clock) = gate([policy("all", quota).with_excess(Excess::Count), policy("calls", quota)]);
        let of = |name, cost| Request::new().with("user", "alice").under(name).with_cost(cost);
        assert!(gate.check(&of("all", 7)).is_allowed());
        let many = of("all", 5);
        let denied = gate.check(&many);
        let denied = denied.strictest().unwrap();
        assert_eq!(
            (
                denied.decision().is_denied(),
                denied.decision().used(),
                denied.decision().remaining(),
                denied.decision().cost()
            ),
            (true, 12, 0, 5),
            "{algorithm}"
        );
        let wait = denied.decision().retry_after().expect("it fits again");
        clock.advance(wait.checked_sub(Duration::from_micros(1)).unwrap());
        assert!(gate.peek(&many).is_denied(), "{algorithm}");
        clock.advance(Duration::from_micros(1));
        assert!(gate.peek(&many).is_allowed(), "{algorithm}: {denied:?}");

        // Another policy denies: this one counts, that one does not.
        clock.advance(Duration::from_secs(300));
        assert!(gate.apply_all(Verb::Check, &[of("calls", 11), of("all", 3)]).is_denied());
        assert_eq!((used(&gate, &of("all", 0)), used(&gate, &of("calls", 0))), (3, 0), "{algorithm}");
        assert!(gate.apply_all(Verb::Check, &[of("calls", 4), of("all", 8)]).is_denied());
        assert_eq!((used(&gate, &of("all", 0)), used(&gate, &of("calls", 0))), (11, 0), "{algorithm}");
    }
}

/// A request in vain, or a look, under another algorithm must not give back what was used.
#[test]
fn usage_under_one_algorithm_outlives_what_another_does_not_charge() {
    for (own, other) in Algorithm::ALL.into_iter().flat_map(|own| Algorithm::ALL.map(|other| (own, other))) {
        let [own, other] = [own, other].map(|algorithm| Quota::per_minute(5).with_algorithm(algorithm));
        let (gate, _) = gate([policy("p", own)]);
        let alice = || Request::new().with("user", "alice");
        assert!(gate.check(&alice().with_cost(5)).is_allowed());
        gate.peek(&alice().with_quota(other));
        assert!(gate.check(&alice().with_quota(other).with_cost(6)).is_denied());
        assert_eq!(used(&gate, &alice()), 5, "{own:?} {other:?}");
    }
}

/// What a gate decides whose quota is configured before each request; of those before, only what was charged counts.
fn configured(
    charged: &[(Timestamp, Quota, u64)],
    (now, quota, cost): (Timestamp, Quota, u64),
    verb: Verb,
) -> Decision {
    let (gate, clock) = gate([policy("p", quota)]);
    let alice = Request::new().with("user", "alice");
    let apply = |(at, quota, cost): (Timestamp, Quota, u64), verb| {
        clock.set(at);
        gate.configure(PolicySet::new([policy("p", quota)]).unwrap()).unwrap();
        *gate.apply_all(verb, &[alice.clone().with_cost(cost)]).strictest().unwrap().decision()
    };
    for &step in charged {
        assert!(apply(step, Verb::Check).is_allowed());
    }
    apply((now, quota, cost), verb)
}

proptest! {
    /// A quota that comes with each request decides as one that is configured before each. A request
    /// that charges nothing leaves no trace of its quota.
    #[test]
    fn inline_quotas_decide_as_configured_ones(
        algorithm in proptest::sample::select(Algorithm::ALL.as_slice()),
        steps in proptest::collection::vec((0u64..3000, 0usize..4, 0u64..5, 0usize..2), 1..40),
    ) {
        let quotas = [(3, 1000), (5, 1000), (2000, 2500), (4, 700)].map(|(limit, ms)| {
            let quota = Quota::new(limit, Duration::from_millis(ms)).unwrap();
            quota.with_algorithm(algorithm).with_slots(8)
        });
        let (found, clock) = gate([policy("p", quotas[0])]);
        let (mut charged, mut now) = ([vec![], vec![]], Timestamp::from_micros(0));
        for (ms, quota, cost, user) in steps {
            now = now + Duration::from_millis(ms);
            clock.set(now);
            let step = (now, quotas[quota], cost);
            for (at, verb) in [(1 - user, Verb::Peek), (user, Verb::Check)] {
                let request = Request::new().with("user", ["alice", "bob"][at]);
                let request = request.with_cost(cost).with_quota(quotas[quota]);
                let ours = *found.apply_all(verb, &[request]).strictest().unwrap().decision();
                let theirs = configured(&charged[at], step, verb);
                prop_assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
                if verb == Verb::Check && ours.is_allowed() && cost > 0 {
                    charged[at].push(step);
                }
            }
        }
    }
}
