//! Several threads decide as one does.

use slidegate::Algorithm;
use slidegate_replay::{Options, Plan, Sweep};

use crate::traffic::{options, random_traffic, replayed, two_policies};

/// Figures that depend on the machine cannot be discussed.
#[test]
fn any_number_of_threads_gives_the_same_outcome() {
    let base = two_policies(Algorithm::SlidingLog);
    let traffic = random_traffic(7, 2_000);
    let plan = |threads| Plan {
        policies: base.clone(),
        sweep: Some("per-ip.limit=1..30".parse::<Sweep>().unwrap()),
        options: Options { threads, ..options() },
    };
    let json = |threads| {
        let mut json = Vec::new();
        replayed(plan(threads), &traffic).write_json(&mut json).unwrap();
        String::from_utf8(json).unwrap()
    };
    let one = json(0);
    assert!(one.contains("\"denied\""), "{one}");
    for threads in [1, 3, 100] {
        assert!(json(threads) == one, "{threads} threads");
    }
}
