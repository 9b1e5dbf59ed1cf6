//! Costs by name: a name that no policy counts must never lift a limit.

use slidegate::{Counts, Gate, Policy, PolicySet, Quota, Request, verb::Verb};

fn policy(name: &str, counts: Counts) -> Policy {
    Policy::new(name, Quota::per_minute(10_000)).unwrap().with_counts(counts)
}

fn named(name: &str) -> Counts {
    Counts::Named(name.to_owned())
}

fn gate(policies: impl IntoIterator<Item = Policy>) -> Gate {
    Gate::new(PolicySet::new(policies).unwrap())
}

fn used(gate: &Gate) -> Vec<u64> {
    gate.peek(&Request::new()).iter().map(|one| one.decision().used()).collect()
}

const UNKNOWN: &str = "unknown cost `ouput`: no policy counts it, and policy `tpm` counts `output`, which is missing; \
                       correct the name, or add `output`";

/// A gateway that misspells a cost would let through any number of tokens, forever.
#[test]
fn every_verb_with_a_misspelt_cost_is_denied_with_an_error_and_charges_nothing() {
    let with_requests = || [policy("rpm", Counts::Requests), policy("tpm", named("output"))];
    for policies in [vec![policy("tpm", named("output"))], with_requests().to_vec()] {
        let gate = gate(policies);
        let request = Request::new().with_cost([("ouput", 4096)]);
        for verb in [Verb::Check, Verb::Peek, Verb::Refund, Verb::Penalize] {
            let decisions = gate.apply_all(verb, std::slice::from_ref(&request));
            assert!(decisions.is_denied() && decisions.strictest().is_none(), "{verb:?}");
            let error = decisions.error().unwrap();
            assert!(error.is_unknown_cost() && !error.is_unknown_policy());
            assert_eq!(error.to_string(), UNKNOWN);
        }
        assert_eq!(gate.check_once(&request, "order-1").error().unwrap().to_string(), UNKNOWN);
        let reserved = gate.reserve(&request);
        assert!(reserved.decisions().is_denied() && reserved.ticket().is_none());
        assert_eq!(reserved.decisions().error().unwrap().to_string(), UNKNOWN);
        let requests = [Request::new().with_cost([("output", 1)]), request];
        assert!(gate.apply_all(Verb::Check, &requests).error().is_some());
        assert!(used(&gate).iter().all(|used| *used == 0), "{:?}", used(&gate));
    }
}

/// A settlement by the wrong name would give back all that was held.
#[test]
fn a_settlement_or_extension_with_a_misspelt_cost_is_an_error_and_changes_nothing() {
    let gate = gate([policy("tpm", named("output"))]);
    let ticket = gate.reserve(&Request::new().with_cost([("output", 4096)])).into_ticket().unwrap();
    assert_eq!(gate.settle(&ticket, [("ouput", 120)]).unwrap_err().to_string(), UNKNOWN);
    assert_eq!(gate.settle_so_far(&ticket, [("ouput", 120)]).unwrap_err().to_string(), UNKNOWN);
    let extension = slidegate::reserve::Extension::new().with_total([("ouput", 1)]);
    assert!(gate.extend(&ticket, extension).unwrap_err().is_unknown_cost());
    let held = |gate: &Gate| {
        gate.peek(&Request::new()).iter().map(|one| (one.decision().used(), one.decision().held())).next()
    };
    assert_eq!(held(&gate), Some((0, 4096)));
    gate.settle(&ticket, [("output", 120), ("thinking", 7)]).unwrap();
    assert_eq!(held(&gate), Some((120, 0)));
}

/// A gateway says all costs that it knows; which of them are limited is for the operator to say.
#[test]
fn costs_that_nothing_limits_are_no_error_beside_one_that_counts() {
    let input_and_output = || [policy("input", named("input")), policy("output", named("output"))];
    for (policies, cost, expected) in [
        // Beside the one that is counted, or all together.
        (vec![policy("tpm", named("output"))], vec![("input", 900), ("output", 40)], vec![40]),
        (vec![policy("all", Counts::Cost)], vec![("input", 900)], vec![900]),
        (vec![policy("all", Counts::Cost), policy("tpm", named("output"))], vec![("input", 9)], vec![9, 0]),
        // A request of one kind has no costs of another.
        (input_and_output().to_vec(), vec![("input", 900)], vec![900, 0]),
        (vec![policy("rpm", Counts::Requests)], vec![("input", 900)], vec![1]),
    ] {
        let gate = gate(policies);
        let request = Request::new().with_cost(cost.as_slice());
        let decisions = gate.check(&request);
        assert!(decisions.is_allowed() && decisions.error().is_none(), "{cost:?}");
        assert_eq!(used(&gate), expected, "{cost:?}");
    }
    let nothing = gate([policy("tpm", named("output")).with_scope(["user"])]);
    assert!(nothing.check(&Request::new().with_cost([("ouput", 1)])).is_allowed(), "no policy applies");
}
