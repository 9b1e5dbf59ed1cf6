//! Replies of scripts: what no script sends is rejected, and never panics.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use redis::Value;
use slidegate::{Algorithm, Policy, PolicySet, Quota, Request, verb::Verb};
use slidegate_redis::fuzzing::script_reply;

#[derive(Debug, Arbitrary)]
struct Input {
    quotas: Vec<(u8, u64, u32)>,
    verb: u8,
    costs: Vec<u64>,
    reply: Reply,
}

/// A reply whose parts are mostly of the right types.
#[derive(Debug, Arbitrary)]
enum Reply {
    /// Numbers of seven bytes, and perhaps runs after them.
    Packed(Vec<u64>, Option<Vec<i64>>),
    /// How many pass, the time, and the numbers of each key.
    Listed(i64, i64, Vec<Vec<i64>>),
    Bytes(Vec<u8>),
}

fuzz_target!(|input: Input| {
    let most = (1 << 53) - 1;
    let policies = input.quotas.iter().take(3).enumerate().map(|(at, (algorithm, limit, window))| {
        let algorithm = Algorithm::ALL[usize::from(*algorithm) % Algorithm::ALL.len()];
        let window = Duration::from_micros(1000 + u64::from(*window));
        let quota = Quota::new((*limit).min(most), window).unwrap().with_algorithm(algorithm);
        Policy::new(format!("p{at}"), quota).unwrap()
    });
    let policies = PolicySet::new(policies).unwrap();
    let verbs = [Verb::Check, Verb::Peek, Verb::Refund, Verb::Penalize];
    let verb = verbs[usize::from(input.verb) % verbs.len()];
    let costs: Vec<u64> = input.costs.iter().take(4).map(|cost| (*cost).min(most)).collect();
    let Some(reply) = value(input.reply) else { return };
    match script_reply(&policies, &Request::new(), verb, &costs, reply) {
        Ok(answers) => {
            for decision in answers.iter().flatten() {
                assert!(decision.remaining() <= decision.limit(), "{decision:?}");
                assert!(decision.is_allowed() || decision.cost() == 0, "{decision:?}");
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
});

fn value(reply: Reply) -> Option<Value> {
    let numbers = |numbers: Vec<i64>| numbers.into_iter().map(Value::Int);
    let packed = |numbers: Vec<u64>| {
        Value::BulkString(numbers.iter().flat_map(|number| number.to_le_bytes()[..7].to_vec()).collect())
    };
    Some(match reply {
        Reply::Packed(head, None) => packed(head),
        Reply::Packed(head, Some(runs)) => {
            Value::Array([packed(head)].into_iter().chain(numbers(runs)).collect())
        }
        Reply::Listed(passed, now, keys) => {
            let keys = keys.into_iter().map(|key| Value::Array(numbers(key).collect()));
            Value::Array([Value::Int(passed), Value::Int(now)].into_iter().chain(keys).collect())
        }
        Reply::Bytes(bytes) => redis::parse_redis_value(&bytes).ok()?,
    })
}
