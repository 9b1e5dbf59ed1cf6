//! Requests that name their policy: a name that the gate does not have must never lift a limit.

use slidegate::{Gate, Policy, PolicySet, Quota, Request, verb::Verb};

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_minute(2)).unwrap().with_scope(["user"])
}

fn gate(names: &[&str]) -> Gate {
    Gate::new(PolicySet::new(names.iter().map(|name| policy(name))).unwrap())
}

fn used(gate: &Gate, policy: &str) -> u64 {
    gate.peek(&Request::new().with("user", "alice").under(policy)).strictest().unwrap().decision().used()
}

/// A developer who mistypes a policy must find out from the first request, not from the first
/// attack.
#[test]
fn every_verb_under_an_unknown_name_is_denied_with_an_error() {
    let gate = gate(&["login", "search"]);
    let request = Request::new().with("user", "alice").under("lo\ngin");
    let expected = "unknown policy `lo\\ngin`: the gate has `login`, `search`";
    for verb in [Verb::Check, Verb::Peek, Verb::Refund, Verb::Penalize] {
        let decisions = gate.apply_all(verb, std::slice::from_ref(&request));
        assert!(decisions.is_denied() && !decisions.is_allowed(), "{verb:?}");
        assert_eq!(decisions.iter().len(), 0);
        assert!(decisions.strictest().is_none());
        let error = decisions.error().unwrap();
        assert!(error.is_unknown_policy() && !error.is_missing_attribute());
        assert_eq!(error.to_string(), expected);
    }
    let once = gate.check_once(&request, "order-1");
    assert!(once.is_denied() && once.error().is_some());
    assert_eq!(gate.reset(&request).unwrap_err().to_string(), expected);
    assert_eq!(gate.inspect(&request).unwrap_err().to_string(), expected);
}

/// A request that cannot be counted where it was meant to be must not pass uncounted.
#[test]
fn a_named_policy_needs_the_attributes_of_its_scope() {
    let gate = gate(&["login"]);
    let request = Request::new().with("usr", "alice").under("login");
    let decisions = gate.check(&request);
    assert!(decisions.is_denied());
    let error = decisions.error().unwrap();
    assert!(error.is_missing_attribute());
    assert_eq!(
        error.to_string(),
        "policy `login`: the request lacks attribute `user`; add `.with(\"user\", ...)`"
    );
    assert!(gate.reset(&request).is_err());
}

/// Without a name nothing has changed: a request that no policy applies to is allowed, and an
/// answer has no error.
#[test]
fn requests_that_name_no_policy_have_no_error() {
    let gate = gate(&["login"]);
    for request in [Request::new(), Request::new().with("user", "alice")] {
        let decisions = gate.check(&request);
        assert!(decisions.is_allowed() && decisions.error().is_none());
    }
    assert!(gate.apply_all(Verb::Check, &[]).is_allowed());
    let named = Request::new().with("user", "bob").under("login");
    assert!(gate.check(&named).error().is_none());
    let _ = gate.check(&named);
    let denied = gate.check(&named);
    assert!(denied.is_denied() && denied.error().is_none());
}

/// Of several requests in one step all are charged or none: a typo in one leaves the others
/// uncharged.
#[test]
fn one_unknown_name_denies_all_requests_of_its_step() {
    let gate = gate(&["login"]);
    let of = |name| Request::new().with("user", "alice").under(name);
    let requests = [of("login"), of("typo")];
    let decisions = gate.apply_all(Verb::Check, &requests);
    assert!(decisions.is_denied() && decisions.error().is_some());
    assert_eq!(used(&gate, "login"), 0);
}

/// A reload between parsing and deciding must not admit the request, and restoring the policy must
/// limit it again.
#[test]
fn a_policy_that_is_removed_by_a_reload_denies_until_it_is_back() {
    let gate = gate(&["login", "search"]);
    let request = Request::new().with("user", "alice").under("login");
    assert!(gate.check(&request).is_allowed());
    gate.configure(PolicySet::new([policy("search")]).unwrap()).unwrap();
    let error = gate.check(&request).error().unwrap();
    assert_eq!(error.to_string(), "unknown policy `login`: the gate has `search`");
    gate.configure(PolicySet::new([policy("login"), policy("search")]).unwrap()).unwrap();
    assert!(gate.check(&request).is_allowed());
    assert_eq!(used(&gate, "login"), 2);
}

/// Sets may have thousands of policies; an error is one line.
#[test]
fn the_error_lists_a_bounded_number_of_policies() {
    let names: Vec<_> = (0..1000).map(|n| format!("p{n}")).collect();
    let gate = gate(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let request = Request::new().under("typo");
    let error = gate.check(&request).error().unwrap().to_string();
    assert_eq!(
        error,
        "unknown policy `typo`: the gate has `p0`, `p1`, `p2`, `p3`, `p4`, `p5`, `p6`, `p7`, `p8`, `p9` and 990 more"
    );
    let empty = Gate::new(PolicySet::default());
    let error = empty.check(&request).error().unwrap().to_string();
    assert_eq!(error, "unknown policy `typo`: the gate has no policies");
}
