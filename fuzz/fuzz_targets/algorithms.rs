//! Every algorithm against the naive model of its definition, field by field.

#![no_main]

use std::time::Duration;

use history::{Step, run};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use slidegate::{Algorithm, Quota};

#[path = "../../crates/slidegate/tests/behaviour/oracle/history.rs"]
mod history;
#[path = "../../crates/slidegate/tests/behaviour/oracle/model.rs"]
mod model;

#[derive(Debug, Arbitrary)]
struct Input {
    algorithm: u8,
    limit: u8,
    window_ms: u8,
    burst: Option<u8>,
    start_us: u16,
    steps: Vec<Next>,
}

/// Small numbers, so that steps meet the borders of windows, and a few at the ends of the range.
#[derive(Debug, Arbitrary)]
enum Next {
    Advance(u16),
    AdvanceTens(u8),
    Check(u8),
    CheckLarge(u64),
    Peek(u8),
    Refund(u8),
    RefundLarge(u64),
    Penalize(u8),
    PenalizeLarge(u64),
    Reset,
    Limit(u8),
    Window(u8),
}

fuzz_target!(|input: Input| {
    let algorithm = Algorithm::ALL[usize::from(input.algorithm) % Algorithm::ALL.len()];
    let window = Duration::from_millis(u64::from(input.window_ms.max(1)));
    let quota = Quota::new(input.limit.into(), window).unwrap().with_algorithm(algorithm);
    let quota = match input.burst {
        Some(burst) if algorithm == Algorithm::TokenBucket => quota.with_burst(burst.into()),
        _ => quota,
    };
    let steps = input.steps.into_iter().take(200).map(|next| match next {
        Next::Advance(us) => Step::Advance(us.into()),
        Next::AdvanceTens(tens) => Step::Advance(u64::from(tens) * 10_000),
        Next::Check(cost) => Step::Check(cost.into()),
        Next::CheckLarge(cost) => Step::Check(cost),
        Next::Peek(cost) => Step::Peek(cost.into()),
        Next::Refund(cost) => Step::Refund(cost.into()),
        Next::RefundLarge(cost) => Step::Refund(cost),
        Next::Penalize(cost) => Step::Penalize(cost.into()),
        Next::PenalizeLarge(cost) => Step::Penalize(cost),
        Next::Reset => Step::Reset,
        Next::Limit(limit) => Step::Limit(limit.into()),
        Next::Window(ms) => Step::Window(u64::from(ms.max(1)) * 1000),
    });
    run(quota, 1_000_000_000 + u64::from(input.start_us), steps.collect());
});
