//! How the cost of a decision grows with the policies of a set, of which one applies, and with the
//! policies that apply.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use cpu_time::ThreadTime;
use slidegate::{Gate, Match, Policy, PolicySet, Quota, Request};

use crate::options::Options;

/// Checks of a gate in a round.
const CALLS: u32 = 50_000;
/// Never reached.
const LIMIT: u64 = 1_000_000_000;
/// Policies in a set of which one applies.
const SETS: [usize; 5] = [10, 100, 1000, 4000, 10_000];
/// Policies that all apply.
const APPLYING: [usize; 5] = [1, 2, 4, 8, 16];

/// The condition by which one policy of a set applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Equals,
    Prefix,
    Glob,
    Network,
}

struct Row {
    name: String,
    gate: Gate,
    rounds: Vec<f64>,
}

pub(crate) fn run(options: &Options) {
    let mut rows: Vec<Row> = APPLYING.into_iter().map(applying).collect();
    for condition in [Condition::Equals, Condition::Prefix, Condition::Glob, Condition::Network] {
        rows.extend(SETS.into_iter().map(|policies| one_of(policies, condition)));
    }
    for _ in 0..options.rounds {
        rows.iter_mut().for_each(|row| row.rounds.push(round(&row.gate)));
    }
    println!("\n## policies in memory, one thread, one hot key, CPU ns of a check\n");
    println!("| policies | median | best |");
    println!("|---|--:|--:|");
    for Row { name, rounds, .. } in &mut rows {
        rounds.sort_by(f64::total_cmp);
        println!("| {name} | {:.0} | {:.0} |", rounds[rounds.len() / 2], rounds[0]);
    }
}

fn policy(at: usize) -> Policy {
    Policy::new(format!("p{at}"), Quota::per_hour(LIMIT)).expect("a name").with_scope(["user"])
}

fn row(name: String, policies: impl Iterator<Item = Policy>) -> Row {
    let gate = Gate::new(PolicySet::new(policies).expect("different names"));
    Row { name, gate, rounds: Vec::new() }
}

fn applying(policies: usize) -> Row {
    row(format!("{policies} that apply"), (0..policies).map(policy))
}

fn one_of(policies: usize, condition: Condition) -> Row {
    let with_condition = |at: usize| {
        let (attribute, condition) = match condition {
            Condition::Equals => ("path", Match::equals(format!("/service/{at}"))),
            Condition::Prefix => ("path", Match::prefix(format!("/service/{at}"))),
            Condition::Glob => ("path", Match::glob(format!("/service/{at}*")).expect("a pattern")),
            Condition::Network => {
                ("ip", Match::networks([format!("10.{}.{}.0/24", at / 256, at % 256)]).expect("a network"))
            }
        };
        policy(at).with_condition(attribute, condition)
    };
    // Numbers of five digits: no prefix begins with another.
    let first = if condition == Condition::Network { 0 } else { 10_000 };
    let set = (0..policies).map(|at| with_condition(first + at));
    row(format!("1 of {policies}, {condition:?}"), set)
}

/// CPU nanoseconds of a check.
fn round(gate: &Gate) -> f64 {
    let request = Request::new()
        .with("user", "user-0000001")
        .with("path", "/service/10009")
        .with("ip", IpAddr::from(Ipv4Addr::new(10, 0, 9, 1)));
    assert!(gate.check(&request).iter().len() >= 1);
    let start = ThreadTime::now();
    for _ in 0..CALLS {
        assert!(black_box(gate.check(black_box(&request))).is_allowed());
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}
