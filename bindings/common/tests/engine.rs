//! Gates in plain values, as every package uses them.

use std::pin::pin;
use std::time::Duration;

use slidegate::{clock::ManualClock, verb::Verb};
use slidegate_bindings::{Amount, BindingError, Call, ClientRule, Engine, EngineOptions, poll_once, quota};
use slidegate_config::policies::Policies;

const POLICIES: &str = "
policies:
  - {name: per-user, scope: [user], limit: 3, window: 1m}
  - {name: per-ip, scope: [ip], limit: 100, window: 1m}
  - {name: trial, scope: [user], limit: 1, window: 1m, mode: shadow}
attributes: {addresses: [ip]}
";

fn engine(clock: &ManualClock) -> Engine {
    let policies = Policies::parse(POLICIES, "policies.yaml").expect("valid");
    let options = EngineOptions { clock: Some(clock.clone()), ..EngineOptions::default() };
    Engine::memory(policies, &options).expect("valid")
}

fn call(attributes: &[(&str, &str)]) -> Call {
    let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()));
    Call { attributes: attributes.collect(), ..Call::default() }
}

/// What a gate in memory answers.
fn now<T>(future: impl Future<Output = Result<T, BindingError>>) -> Result<T, BindingError> {
    poll_once(pin!(future)).unwrap_or_else(|_| panic!("a gate in memory does not wait"))
}

/// A service that knows no Rust must get all that a service in Rust gets.
#[test]
fn an_answer_has_every_policys_decision_and_what_the_response_says() {
    let clock = ManualClock::new();
    let engine = engine(&clock);
    let alice = Call { wants_headers: true, ..call(&[("user", "alice"), ("ip", "203.0.113.7")]) };
    for remaining in (0..3).rev() {
        let answer = now(engine.decide(Verb::Check, &alice)).expect("decided");
        assert!(answer.allowed && answer.status == 200 && answer.why.is_none());
        assert_eq!(answer.policies[0].remaining, remaining);
    }
    let answer = now(engine.decide(Verb::Check, &alice)).expect("decided");
    assert!(!answer.allowed);
    assert_eq!((answer.status, answer.strictest), (429, Some(0)));
    let why = answer.why.expect("a sentence");
    assert!(why.contains("`per-user` (3/1m)") && why.contains("key `alice` has used 3 of 3"), "{why}");
    let policies: Vec<_> = answer
        .policies
        .iter()
        .map(|one| (one.policy.as_str(), one.allowed, one.enforced, one.used))
        .collect();
    // The denied request was charged nowhere, and the shadow policy denies nothing.
    assert_eq!(
        policies,
        [("per-user", false, true, 3), ("per-ip", true, true, 3), ("trial", false, false, 1)]
    );
    assert_eq!(answer.policies[0].reason, Some("over_limit"));
    assert_eq!(answer.policies[0].window_us, Some(60_000_000));
    assert_eq!(answer.policies[0].retry_after_us, Some(60_000_000));
    assert!(answer.headers.contains(&("retry-after", "60".to_owned())), "{:?}", answer.headers);
    clock.advance(Duration::from_secs(60));
    assert!(now(engine.decide(Verb::Check, &alice)).expect("decided").allowed);
    assert!(now(engine.reset(&alice)).expect("reset"));
    assert_eq!(now(engine.decide(Verb::Peek, &alice)).expect("decided").policies[0].used, 0);
}

/// Two spellings of one address are one client.
#[test]
fn attributes_that_are_addresses_are_counted_as_addresses() {
    let engine = engine(&ManualClock::new());
    for spelling in ["203.0.113.7", "::ffff:203.0.113.7"] {
        now(engine.decide(Verb::Check, &call(&[("ip", spelling)]))).expect("decided");
    }
    let answer = now(engine.decide(Verb::Peek, &call(&[("ip", "203.0.113.7")]))).expect("decided");
    assert_eq!(answer.policies[0].used, 2);
}

/// Programs react to codes; texts are for people.
#[test]
fn errors_have_a_code_and_say_what_is_wrong() {
    let engine = engine(&ManualClock::new());
    let under = |policy: &str| Call { policy: Some(policy.to_owned()), ..Call::default() };
    let code = |error: BindingError| error.code;
    assert_eq!(now(engine.decide(Verb::Check, &under("typo"))).map_err(code), Err("unknown_policy"));
    assert_eq!(now(engine.decide(Verb::Check, &under("per-user"))).map_err(code), Err("missing_attribute"));
    assert_eq!(now(engine.cancel("no ticket")).map_err(code), Err("invalid_ticket"));
    assert_eq!(quota("100/0s", None, None).map_err(code), Err("invalid_quota"));
    assert_eq!(quota("100/1m", Some("leaky"), None).map_err(code), Err("invalid_quota"));
    assert_eq!(ClientRule::new(None, &["nowhere".into()], None).map_err(code).err(), Some("invalid_address"));
    let draft = EngineOptions { draft: Some("draft-1".into()), ..EngineOptions::default() };
    assert_eq!(draft.headers().map_err(code).err(), Some("invalid_headers"));
}

/// A typo in a new file must leave the limits that there were.
#[test]
fn policies_are_replaced_as_a_whole_and_usage_stays() {
    let engine = engine(&ManualClock::new());
    let alice = call(&[("user", "alice")]);
    now(engine.decide(Verb::Check, &alice)).expect("decided");
    let text = "policies: [{name: per-user, scope: [user], limit: 10, window: 1m}]";
    engine.configure(Policies::parse(text, "policies.yaml").expect("valid")).expect("configured");
    let answer = now(engine.decide(Verb::Peek, &alice)).expect("decided");
    assert_eq!((answer.policies.len(), answer.policies[0].limit, answer.policies[0].used), (1, 10, 1));
}

/// What is not known before is reserved, and settled by the ticket's text alone.
#[test]
fn a_reservation_is_settled_extended_and_cancelled_by_its_ticket() {
    let engine = engine(&ManualClock::new());
    let alice = Call { cost: Some(Amount::Number(3)), ..call(&[("user", "alice")]) };
    let reserved = now(engine.reserve(&alice, None)).expect("reserved");
    let ticket = reserved.ticket.expect("allowed");
    assert_eq!(reserved.policies[0].held, 3);
    let denied = now(engine.reserve(&alice, None)).expect("decided");
    assert_eq!((denied.allowed, denied.ticket), (false, None));
    let part = now(engine.settle(&ticket, &Amount::Number(1), false)).expect("settled");
    let decision = &part.policies[0].decision;
    assert_eq!((part.status, decision.used, decision.held), ("changed", 1, 2));
    let extended = now(engine.extend(&part.ticket, Some(Duration::from_secs(5)), Some(&Amount::Number(2))));
    assert_eq!(extended.expect("extended").policies[0].decision.held, 1);
    let settled = now(engine.settle(&part.ticket, &Amount::Number(2), true)).expect("settled");
    assert_eq!((settled.status, settled.policies[0].decision.used), ("changed", 2));
    assert_eq!(
        now(engine.settle(&ticket, &Amount::Number(2), true)).expect("known").status,
        "already_settled"
    );
    let other = now(engine.reserve(&Call { cost: Some(Amount::Number(1)), ..alice.clone() }, None));
    now(engine.cancel(&other.expect("reserved").ticket.expect("allowed"))).expect("cancelled");
    assert_eq!(now(engine.decide(Verb::Peek, &alice)).expect("decided").policies[0].used, 2);
}

/// What is not known before is estimated by the policy.
#[test]
fn a_reservation_without_a_cost_holds_what_its_policy_estimates() {
    let text = "policies: [{name: tokens, limit: 1000, window: 1m, estimate: 200}]";
    let policies = Policies::parse(text, "policies.yaml").expect("valid");
    let engine = Engine::memory(policies, &EngineOptions::default()).expect("valid");
    let reserved = now(engine.reserve(&Call::default(), None)).expect("reserved");
    assert_eq!(reserved.policies[0].held, 200);
    assert_eq!(now(engine.decide(Verb::Check, &Call::default())).expect("decided").policies[0].cost, 1);
}

/// A client must not choose its own key.
#[test]
fn the_client_is_found_behind_trusted_proxies_only() {
    let rule = ClientRule::new(None, &["10.0.0.0/8".into()], None).expect("valid");
    assert_eq!(rule.header(), Some("x-forwarded-for"));
    let lines = [&b"6.6.6.6, 203.0.113.7"[..]];
    assert_eq!(rule.client(Some("10.0.0.1"), lines), "203.0.113.7");
    assert_eq!(rule.client(Some("198.51.100.9"), lines), "198.51.100.9");
    assert_eq!(
        rule.client(Some("2001:db8::1:2:3:4%eth0"), lines),
        rule.client(Some("2001:db8::5:6:7:8"), lines)
    );
    assert_eq!(rule.client(None, lines), "unknown");
}
