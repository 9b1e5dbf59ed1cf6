//! Blocks: a blocked key is denied with its own numbers, and the wait is the rest of the block.

use std::time::Duration;

use slidegate::{
    Algorithm, Block, DecisionSource, Gate, MemoryStore, Policy, PolicySet, Quota, Reason, Request,
    clock::{ManualClock, Timestamp},
};

/// Where the manual clock starts.
const START: Timestamp = Timestamp::from_secs(1_000_000_000);
const TEN_MINUTES: Duration = Duration::from_secs(600);

fn per_user() -> Policy {
    Policy::new("per-user", Quota::per_minute(5)).unwrap().with_scope(["user"])
}

fn gate(policies: impl IntoIterator<Item = Policy>) -> (Gate, ManualClock) {
    let clock = ManualClock::at(START);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    (Gate::with_memory(PolicySet::new(policies).unwrap(), store), clock)
}

/// A request of the blocked user. Kept for as long as the test, as decisions borrow it.
fn mallory(cost: u64) -> &'static Request<'static> {
    Box::leak(Box::new(Request::new().with("user", "mallory").with_cost(cost)))
}

fn ten_minutes() -> Block {
    Block::until(START + TEN_MINUTES).by("ops")
}

/// Who is blocked must learn so, with the limit that he has and the time after which he may come
/// again.
#[test]
fn a_blocked_key_keeps_its_limit_and_waits_for_the_rest_of_its_block() {
    for algorithm in Algorithm::ALL {
        let policy = Policy::new("per-user", Quota::per_minute(5).with_algorithm(algorithm)).unwrap();
        let policy = policy.with_scope(["user"]);
        let (gate, clock) = gate([policy.clone()]);
        let request = mallory(2);
        let _ = gate.check(request);
        gate.configure(PolicySet::new([policy.with_block(["mallory"], ten_minutes())]).unwrap()).unwrap();
        clock.advance(Duration::from_secs(1));
        for decisions in [gate.check(request), gate.peek(request), gate.check_once(request, "id")] {
            assert!(decisions.is_denied(), "{algorithm}");
            let one = decisions.strictest().unwrap();
            assert_eq!(one.decision().reason(), Some(Reason::Blocked));
            assert_eq!(
                (
                    one.decision().limit(),
                    one.decision().used(),
                    one.decision().remaining(),
                    one.decision().cost()
                ),
                (5, 2, 0, 0),
                "{algorithm}"
            );
            assert_eq!(one.decision().retry_after(), Some(Duration::from_secs(599)));
            assert_eq!(one.decision().frees_after(), Some(Duration::from_secs(599)));
            assert_eq!(one.decision().reset_after(), Duration::from_secs(599));
            assert_eq!(one.decision().source(), DecisionSource::Store);
            let block = one.block().unwrap();
            assert_eq!((block.ends_at(), block.blocked_by()), (Some(START + TEN_MINUTES), Some("ops")));
            assert_eq!(one.quota().limit(), 5);
        }
        let bob = Request::new().with("user", "bob");
        let decisions = gate.check(&bob);
        let one = decisions.strictest().unwrap();
        assert!(one.decision().is_allowed() && !one.decision().is_blocked() && one.block().is_none());
    }
}

/// The promised wait is exact: a microsecond earlier the block holds, at its end nobody has to lift
/// it.
#[test]
fn a_block_ends_by_itself_to_the_microsecond() {
    let (gate, clock) = gate([per_user().with_block(["mallory"], ten_minutes())]);
    let wait = gate.check(mallory(1)).strictest().unwrap().decision().retry_after().unwrap();
    clock.advance(wait - Duration::from_micros(1));
    let decisions = gate.check(mallory(1));
    let wait = decisions.strictest().unwrap().decision().retry_after();
    assert_eq!(wait, Some(Duration::from_micros(1)));
    clock.advance(Duration::from_micros(1));
    let decisions = gate.check(mallory(1));
    let one = decisions.strictest().unwrap();
    assert!(one.decision().is_allowed() && !one.decision().is_blocked());
    assert_eq!((one.decision().used(), one.decision().remaining(), one.decision().reason()), (1, 4, None));
}

/// A client that waits for `retry_after` must pass: a key that is also full waits for the later of
/// the two.
#[test]
fn a_blocked_key_that_is_also_full_stays_blocked_and_waits_for_both() {
    let short = Block::until(START + Duration::from_secs(10));
    let (gate, clock) = gate([per_user().with_block(["mallory"], short)]);
    gate.penalize(mallory(5));
    let denied = gate.check(mallory(1));
    let one = denied.strictest().unwrap();
    assert_eq!((one.decision().reason(), one.decision().used()), (Some(Reason::Blocked), 5));
    assert_eq!(one.decision().retry_after(), Some(Duration::from_secs(60)));
    clock.advance(Duration::from_secs(10));
    assert_eq!(gate.check(mallory(1)).strictest().unwrap().decision().reason(), Some(Reason::OverLimit));
    clock.advance(Duration::from_secs(50));
    assert!(gate.check(mallory(1)).is_allowed());
}

/// A block without an end promises nothing: no number in `Retry-After`, and none in `t`.
#[test]
fn a_block_for_ever_has_no_wait() {
    let (gate, _clock) = gate([per_user().with_block(["mallory"], Block::forever())]);
    let decisions = gate.check(mallory(1));
    let one = decisions.strictest().unwrap();
    assert_eq!((one.decision().retry_after(), one.decision().frees_after()), (None, None));
    assert_eq!((one.decision().limit(), one.block().unwrap().ends_at()), (5, None));
}

/// All or nothing holds for blocks: what denies charges nobody.
#[test]
fn a_blocked_key_denies_the_request_and_no_policy_is_charged() {
    let everyone = Policy::new("everyone", Quota::per_minute(100)).unwrap();
    let shadow = Policy::new("trial", Quota::per_minute(100)).unwrap().with_enforced(false);
    let blocked = per_user().with_block(["mallory"], ten_minutes());
    let (gate, _clock) = gate([everyone, blocked, shadow]);
    for _ in 0..3 {
        let decisions = gate.check(mallory(1));
        assert!(decisions.is_denied());
        assert_eq!(decisions.strictest().unwrap().policy().name(), "per-user");
        let used: Vec<_> = decisions
            .iter()
            .map(|one| (one.decision().used(), one.decision().cost(), one.decision().is_denied()))
            .collect();
        assert_eq!(used, [(0, 0, false), (0, 0, true), (0, 0, false)]);
    }
}

/// A shadow policy reports its block, denies nothing and charges itself nothing; the other policies
/// count as ever.
#[test]
fn a_block_in_a_shadow_policy_denies_nothing() {
    let everyone = Policy::new("everyone", Quota::per_minute(2)).unwrap();
    let (gate, _clock) =
        gate([per_user().with_enforced(false).with_block(["mallory"], ten_minutes()), everyone]);
    for used in 1..=2 {
        let decisions = gate
            .check_once(mallory(1), &used.to_string())
            .iter()
            .map(|one| *one.decision())
            .collect::<Vec<_>>();
        assert_eq!((decisions[0].reason(), decisions[0].used()), (Some(Reason::Blocked), 0));
        assert_eq!((decisions[1].reason(), decisions[1].used()), (None, used));
    }
    let decisions = gate.check(mallory(1));
    assert!(decisions.is_denied());
    assert_eq!(decisions.strictest().unwrap().policy().name(), "everyone");
}

/// Operators correct usage while a key is blocked: that moves what counts, and lifts no block. Cost
/// 0 passes everywhere.
#[test]
fn refunds_penalties_and_free_requests_work_on_a_blocked_key() {
    let (gate, _clock) = gate([per_user().with_block(["mallory"], ten_minutes())]);
    let moved = |decisions: slidegate::Decisions<'_>| {
        let one = decisions.strictest().unwrap();
        assert!(decisions.is_allowed() && one.decision().is_blocked());
        (one.decision().cost(), one.decision().used(), one.decision().remaining())
    };
    assert_eq!(moved(gate.penalize(mallory(4))), (4, 4, 0));
    assert_eq!(moved(gate.refund(mallory(1))), (1, 3, 0));
    assert_eq!(moved(gate.check(mallory(0))), (0, 3, 0));
    let found = &gate.inspect(mallory(1)).unwrap()[0];
    assert_eq!((found.decision.reason(), found.decision.used()), (Some(Reason::Blocked), 3));
    assert!(gate.reset(mallory(1)).unwrap());
    assert!(gate.check(mallory(1)).is_denied());
}

/// A block lifted by an operator must let the next request pass, with the override and the usage
/// that the key had.
#[test]
fn lifting_a_block_brings_back_the_keys_own_limit_and_usage() {
    let own = per_user().with_override(["mallory"], Quota::per_minute(9));
    let (gate, _clock) = gate([own.clone()]);
    let _ = gate.check(mallory(1));
    gate.configure(PolicySet::new([own.clone().with_block(["mallory"], ten_minutes())]).unwrap()).unwrap();
    let decisions = gate.check(mallory(1));
    let one = decisions.strictest().unwrap();
    assert_eq!(
        (one.decision().limit(), one.decision().used(), one.decision().reason()),
        (9, 1, Some(Reason::Blocked))
    );
    gate.configure(PolicySet::new([own]).unwrap()).unwrap();
    let decisions = gate.check(mallory(1));
    let one = decisions.strictest().unwrap();
    assert!(one.decision().is_allowed());
    assert_eq!((one.decision().limit(), one.decision().used()), (9, 2));
}

/// A request that never fits does not fit after the block either.
#[test]
fn a_cost_above_the_limit_never_fits_however_the_block_ends() {
    let (gate, _clock) = gate([per_user().with_block(["mallory"], ten_minutes())]);
    let decisions = gate.check(mallory(6));
    let one = decisions.strictest().unwrap();
    assert_eq!((one.decision().reason(), one.decision().retry_after()), (Some(Reason::Blocked), None));
}

/// A block of the wrong shape is refused whole, as an override is; of two on one key the last
/// counts.
#[test]
fn a_block_has_a_value_for_each_attribute_of_the_scope() {
    let wrong = per_user().with_block(["a", "b"], Block::forever());
    assert_eq!(
        PolicySet::new([wrong]).unwrap_err().to_string(),
        "policy `per-user`: invalid block: has 2 values, the scope has 1 attributes; give one value for each"
    );
    let twice = per_user().with_block(["mallory"], Block::forever()).with_block(["mallory"], ten_minutes());
    assert_eq!(twice.options().block_count(), 2);
    let (gate, _clock) = gate([twice]);
    let decisions = gate.check(mallory(1));
    assert_eq!(decisions.strictest().unwrap().decision().retry_after(), Some(TEN_MINUTES));
}

/// The usage reported by a denied check must not stand in for its charge when it is sent again
/// after the block.
#[test]
fn a_blocked_check_with_an_id_is_charged_when_it_is_repeated_after_the_block() {
    let (gate, _clock) = gate([per_user().with_block(["mallory"], ten_minutes())]);
    assert!(gate.check_once(mallory(1), "order").is_denied());
    gate.configure(PolicySet::new([per_user()]).unwrap()).unwrap();
    for _ in 0..2 {
        assert_eq!(gate.check_once(mallory(1), "order").strictest().unwrap().decision().used(), 1);
    }
    assert_eq!(gate.peek(mallory(1)).strictest().unwrap().decision().used(), 1);
}
