//! The native module, inside of other people's Redis: any call on any values is carried out or
//! refused, and what it writes can be read.

#![no_main]

use std::borrow::Cow;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use slidegate::Algorithm;
use slidegate::internal::QuotaFields;
use slidegate_stored::{
    ChangeCall, DecideCall, Decided, Pair, Requests, UnusableKey, check, decide, lettered_quota, quota_of,
};

/// The largest count.
const MOST: u64 = (1 << 53) - 1;
/// The bounds of a window.
const WINDOWS: (u64, u64) = (1_000, 31_622_400_000_000);
/// The bounds of a lease.
const LEASES: (u64, u64) = (1_000_000, 3_600_000_000);
/// A time about which values and calls are, so that charges and holds count.
const NOW_US: u64 = 1_700_000_000_000_000;

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    quotas: [QuotaInput; 2],
    steps: Vec<Step>,
    /// What is stored at first: of the two keys, and of their usage beside holds.
    values: Option<[&'a [u8]; 4]>,
    now_us: Option<u64>,
    /// Calls as others may send them.
    raw: &'a [u8],
}

#[derive(Debug, Arbitrary)]
struct QuotaInput {
    algorithm: u8,
    window_us: u64,
    limit: u64,
    own: u64,
}

#[derive(Debug, Arbitrary)]
struct Step {
    later_us: i32,
    seconds: i8,
    call: Call,
}

#[derive(Debug, Arbitrary)]
enum Call {
    Decide { costs: Vec<u32>, parts: Vec<Part> },
    Change { changes: [Change; 2] },
    Check { requests: Vec<(u64, u8)> },
}

#[derive(Debug, Arbitrary)]
struct Part {
    is_second: bool,
    modes: [u8; 5],
    own_cost: Option<u64>,
    hold: Hold,
}

#[derive(Debug, Arbitrary)]
struct Hold {
    id: u8,
    ttl_us: u32,
    is_dropped: bool,
}

#[derive(Debug, Arbitrary)]
struct Change {
    kind: u8,
    total: u32,
    amount: u32,
    until: u32,
    hold: Hold,
}

fn push(bytes: &mut Vec<u8>, number: u64, width: usize) {
    bytes.extend_from_slice(&number.to_le_bytes()[..width]);
}

impl QuotaInput {
    fn bytes(&self) -> Vec<u8> {
        let all = Algorithm::ALL.into_iter().chain([Algorithm::InFlight]).collect::<Vec<_>>();
        let algorithm = all[usize::from(self.algorithm) % all.len()];
        // A lease has bounds of its own.
        let (least, most) = if algorithm == Algorithm::InFlight { LEASES } else { WINDOWS };
        let (window_us, slots) = (least + self.window_us % (most - least + 1), 1 + self.own as u16 % 2_000);
        let (limit, burst) = (self.limit & MOST, Some(self.own & MOST));
        let fields = QuotaFields { limit, window_us, burst, algorithm, slots, calendar: None };
        lettered_quota(&fields.quota().expect("a window in its range"))
    }
}

impl Hold {
    fn id(&self) -> u64 {
        1 + u64::from(self.id % 8)
    }
}

fn decide_call(quotas: &[QuotaInput; 2], costs: &[u32], parts: &[Part]) -> Vec<u8> {
    let mut call = vec![2, 1];
    push(&mut call, MOST, 7);
    push(&mut call, costs.len() as u64, 2);
    costs.iter().for_each(|cost| push(&mut call, (*cost).into(), 7));
    let mut known = Vec::new();
    for part in parts {
        let at = usize::from(part.is_second);
        let number = known.iter().position(|key| *key == at).unwrap_or(known.len());
        push(&mut call, number as u64, 2);
        let letters: [&[u8]; 5] = [b"cphrxn", b"es", b"-+!", b"dtk", b"o-"];
        let mode = part.modes.iter().zip(letters).map(|(one, of)| of[usize::from(*one) % of.len()]);
        let verb = call.len();
        call.extend(mode);
        push(&mut call, part.own_cost.map_or((1 << 56) - 1, |cost| cost & MOST), 7);
        if number == known.len() {
            known.push(at);
            call.extend(quotas[at].bytes());
        }
        if matches!(call[verb], b'h' | b'x') {
            push(&mut call, part.hold.id(), 8);
            push(&mut call, part.hold.ttl_us.into(), 5);
            call.push(part.hold.is_dropped.into());
        }
    }
    call
}

fn change_call(quotas: &[QuotaInput; 2], changes: &[Change; 2]) -> Vec<u8> {
    let mut call = vec![2];
    push(&mut call, MOST, 7);
    for (quota, change) in quotas.iter().zip(changes) {
        call.extend(quota.bytes());
        push(&mut call, change.hold.id(), 8);
        call.push(1 + change.kind % 6);
        push(&mut call, change.total.into(), 7);
        push(&mut call, change.hold.ttl_us.into(), 5);
        push(&mut call, change.amount.into(), 7);
        push(&mut call, NOW_US + u64::from(change.until), 7);
        call.push(change.hold.is_dropped.into());
        push(&mut call, NOW_US, 7);
    }
    call
}

/// Carries out a call, and does what it says.
fn run(
    pairs: &mut [Pair<'static>],
    call: impl FnOnce(&mut [Pair<'static>]) -> Result<Decided, UnusableKey>,
) -> Result<(), UnusableKey> {
    let mut copies = pairs.to_vec();
    match call(&mut copies) {
        Ok(decided) => {
            for (key, effect) in &decided.effects {
                pairs[*key].apply(effect);
            }
            assert!(!decided.reply.items().is_empty());
            Ok(())
        }
        Err(unusable) => {
            if let Some((key, effect)) = unusable.effect.as_deref() {
                pairs[*key].apply(effect);
            }
            assert!(unusable.message.starts_with("SLIDEGATE value ") && !unusable.message.contains('\n'));
            Err(unusable)
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let Input { quotas, steps, values, now_us, raw } = input;
    let _ = (DecideCall::read(raw), ChangeCall::read(raw), quota_of(raw), DecideCall::first_reply(raw));
    let owned = |value: &[u8]| (!value.is_empty()).then(|| Cow::Owned(value.to_vec()));
    let of = |key: usize| {
        values.map_or_else(Pair::default, |all| Pair { key: owned(all[key]), usage: owned(all[2 + key]) })
    };
    let mut pairs: [Pair<'static>; 2] = [of(0), of(1)];
    // Values of the module's own are always read.
    let is_own = values.is_none();
    let mut now = now_us.map_or(NOW_US, |now| now & MOST);
    for Step { later_us, seconds, call } in &steps {
        now = now.saturating_add_signed(i64::from(*later_us) + i64::from(*seconds) * 1_000_000).min(MOST);
        let done = match call {
            Call::Decide { costs, parts } => {
                let Some(call) = DecideCall::read(&decide_call(&quotas, costs, parts)) else { continue };
                // The keys in the order in which parts name them.
                let is_swapped = parts.first().is_some_and(|part| part.is_second);
                if is_swapped {
                    pairs.swap(0, 1);
                }
                let done = run(&mut pairs[..call.keys()], |pairs| call.decide(pairs, now));
                if is_swapped {
                    pairs.swap(0, 1);
                }
                done
            }
            Call::Change { changes } => {
                let call = ChangeCall::read(&change_call(&quotas, changes)).expect("a change");
                run(&mut pairs, |pairs| call.change(pairs, now))
            }
            Call::Check { requests } => {
                let Some(quota) = quota_of(&quotas[0].bytes()) else { continue };
                let of = |&(cost, count): &(u64, u8)| Requests { cost: cost & MOST, count: count.into() };
                let requests: Vec<_> = requests.iter().map(of).collect();
                let value = pairs[0].key.as_deref();
                let _ = check(value, &quota, now, &requests);
                let _ = decide(value, &quota, now, requests.first().map_or(1, |one| one.cost));
                continue;
            }
        };
        assert!(done.is_ok() || !is_own, "{done:?} at {now}");
    }
});
