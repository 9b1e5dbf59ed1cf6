//! Keys with holds: decided and changed by the scripts and by the module, in turn, on random
//! histories.

use slidegate_testkit::redis::Reply;

use crate::SCRIPTS;
use crate::calls::{Algorithm, Both, By, NEVER_LATE, NOW_US, Quota, bytes};
use crate::decide::{Call, Hold, Part, everything, linger_ms, names};
use crate::histories::{ALGORITHMS, Random, SECOND, quota, step};

/// Numbers of changes.
const SETTLE: u64 = 1;
const CANCEL: u64 = 3;
const REFUND: u64 = 4;
const EXTEND_TIME: u64 = 6;

/// The largest cost.
const MOST: u64 = (1 << 53) - 1;

/// The change of the hold on one key.
#[derive(Debug, Clone, Copy)]
struct Change {
    key: usize,
    id: u64,
    kind: u64,
    total: u64,
    ttl_us: u64,
    amount: u64,
    until: u64,
    is_dropped: bool,
    made: u64,
}

impl Change {
    fn bytes(&self) -> Vec<u8> {
        bytes(&[
            (self.id, 8),
            (self.kind, 1),
            (self.total, 7),
            (self.ttl_us, 5),
            (self.amount, 7),
            (self.until, 7),
            (self.is_dropped.into(), 1),
            (self.made, 7),
        ])
    }
}

fn with_linger(quota: &Quota) -> Vec<u8> {
    [quota.for_script(), bytes(&[(linger_ms(quota), 7)])].concat()
}

fn list(reply: &Reply) -> &[Reply] {
    let Reply::List(items) = reply else { panic!("{reply:?} is not a list") };
    items
}

fn decide(both: &mut Both, call: &Call, prefixes: &[String; 3], turn: By, what: &str) {
    let by_script = call.run(both, By::Script, &prefixes[0]);
    let by_module = call.run(both, By::Module, &prefixes[1]);
    assert!(matches!(&by_script, Reply::List(_)), "{by_script:?}, {what}");
    assert_eq!(by_module, by_script, "{what}");
    let shared = call.run(both, turn, &prefixes[2]);
    assert_eq!(list(&shared)[..2], list(&by_module)[..2], "{what}");
}

fn change_by_scripts(both: &mut Both, changes: &[Change], quotas: &[Quota], prefix: &str) -> Reply {
    let [names, usages] = names(prefix, quotas.len());
    let mut keys: Vec<_> = changes.iter().map(|one| names[one.key].clone()).collect();
    keys.extend(changes.iter().map(|one| usages[one.key].clone()));
    let mut args = vec![NEVER_LATE.into()];
    for one in changes {
        let quota = &quotas[one.key];
        args.extend([vec![quota.letter()], with_linger(quota), one.bytes()]);
    }
    both.eval(&SCRIPTS.change_holds, &keys, &args)
}

fn change_by_module(both: &mut Both, changes: &[Change], quotas: &[Quota], prefix: &str) -> Reply {
    let [names, usages] = names(prefix, quotas.len());
    let mut call = bytes(&[(2, 1), ((1 << 53) - 1, 7)]);
    for one in changes {
        call.extend(quotas[one.key].for_module());
        call.extend(one.bytes());
    }
    let mut command: Vec<&[u8]> = vec![b"SLIDEGATE.CHANGE", &call];
    command.extend(changes.iter().map(|one| names[one.key].as_slice()));
    command.extend(changes.iter().map(|one| usages[one.key].as_slice()));
    both.call(&command)
}

fn change(
    both: &mut Both,
    changes: &[Change],
    quotas: &[Quota],
    prefixes: &[String; 3],
    turn: By,
    what: &str,
) {
    let by_script = change_by_scripts(both, changes, quotas, &prefixes[0]);
    let by_module = change_by_module(both, changes, quotas, &prefixes[1]);
    assert!(matches!(&by_script, Reply::List(_)), "{by_script:?}, {what}");
    assert_eq!(by_module, by_script, "{what}");
    match turn {
        By::Script => drop(change_by_scripts(both, changes, quotas, &prefixes[2])),
        By::Module => assert_eq!(change_by_module(both, changes, quotas, &prefixes[2]), by_module, "{what}"),
    }
}

/// Holds that were made: id, keys, amount, end, whether it is dropped, when it was made.
type Made = (u64, Vec<usize>, u64, u64, bool, u64);

fn random_call(random: &mut Random, quotas: &[Quota], made: &mut Vec<Made>, now: u64) -> Call {
    let mut keys: Vec<usize> = (0..quotas.len()).collect();
    while keys.len() > 1 && random.below(2) == 0 {
        keys.remove(usize::try_from(random.below(keys.len() as u64)).unwrap());
    }
    let id = 1 + random.below(u64::MAX - 1);
    let ttl_us = random.one_of(&[1_000, 700_000, SECOND, 10 * SECOND, 60 * SECOND, 3600 * SECOND]);
    let is_dropped = random.below(3) == 0;
    let limit = keys.iter().map(|key| quotas[*key].limit).min().unwrap_or(1);
    let cost = random.one_of(&[1, 1, 2, 3, 0, (limit / 4).max(1), limit, 70_000.min(limit)]);
    let mut held = Vec::new();
    let mut parts = Vec::new();
    for key in keys {
        // What is in flight is held, and never charged.
        let verbs: &[u8] =
            if quotas[key].algorithm == Algorithm::InFlight { b"hhhhpx" } else { b"hhhhhhcpnrx" };
        let verb = random.one_of(verbs);
        let mut part = Part::plain(key, char::from(verb));
        match verb {
            b'h' => {
                held.push(key);
                part.hold = Some(Hold { id, ttl_us, is_dropped });
            }
            b'x' => {
                let at = usize::try_from(random.below(made.len().max(1) as u64)).unwrap();
                let id = made.get(at).map_or(id, |made| made.0);
                part.hold = Some(Hold { id, ttl_us: 0, is_dropped: false });
            }
            b'c' if random.below(3) == 0 => part.mode = format!("ce{}d-", random.one_of(&['+', '!'])),
            _ => {}
        }
        part.own_cost = (random.below(5) == 0).then(|| random.below(4));
        parts.push(part);
    }
    if !held.is_empty() {
        made.push((id, held, cost, now + ttl_us, is_dropped, now));
    }
    let has_refund = parts.iter().any(|part: &Part| matches!(part.verb(), b'r' | b'x'));
    let has_hold = parts.iter().any(|part| part.verb() == b'h');
    let is_batch = !has_refund && !has_hold && random.below(4) == 0;
    let costs = if is_batch { vec![cost, 1, cost] } else { vec![cost] };
    Call { quotas: quotas.to_vec(), costs, parts, has_holds: true, once_ms: None }
}

fn random_changes(random: &mut Random, made: &[Made], keys: usize) -> Vec<Change> {
    let at = usize::try_from(random.below(made.len() as u64)).unwrap();
    let (id, held, amount, until, is_dropped, made) = made[at].clone();
    let kind = random.one_of(&[SETTLE, SETTLE, SETTLE, 2, 2, CANCEL, REFUND, 5, 5, EXTEND_TIME]);
    let total = random.one_of(&[0, 1, amount / 2, amount, (amount + 1).min(MOST), (amount * 2).min(MOST)]);
    let ttl_us = random.one_of(&[1_000, SECOND, 60 * SECOND]);
    // A refund is that of a key that was charged at once.
    let held = if kind == REFUND { (0..keys).filter(|key| !held.contains(key)).collect() } else { held };
    let one = |key| Change { key, id, kind, total, ttl_us, amount, until, is_dropped, made };
    held.into_iter().map(one).collect()
}

/// Scripts add up what is held and what is used, which is not exact above 2^53.
fn rate(random: &mut Random, algorithm: Algorithm) -> Quota {
    let quota = quota(random, algorithm);
    Quota { limit: quota.limit.min(1 << 50), burst: quota.burst.min(1 << 50), ..quota }
}

fn run(both: &mut Both, seed: u64) {
    let mut random = Random(seed);
    let mut now = NOW_US + random.below(100 * SECOND);
    let any_quota = |random: &mut Random| match random.below(5) {
        0 => Quota::new(Algorithm::InFlight, random.one_of(&[1, 3, 40]), 30 * SECOND),
        _ => {
            let algorithm = random.one_of(&ALGORITHMS);
            rate(random, algorithm)
        }
    };
    let mut quotas: Vec<_> = (0..random.below(3) + 1).map(|_| any_quota(&mut random)).collect();
    both.at(now);
    let sets = ["script", "module", "both"].map(|name| format!("{name}:{seed}"));
    let mut made: Vec<Made> = Vec::new();
    for at in 0..50 {
        if random.below(20) == 0 {
            let changed = usize::try_from(random.below(quotas.len() as u64)).unwrap();
            let algorithm = quotas[changed].algorithm;
            if algorithm != Algorithm::InFlight {
                quotas[changed] = rate(&mut random, algorithm);
            }
        }
        let window = random.one_of(&[quotas[0].window_us, SECOND, 10_000, 60 * SECOND, 0, 0]).max(3);
        now = now.saturating_add_signed(step(&mut random, window));
        both.at(now);
        let turn = random.one_of(&[By::Script, By::Module]);
        let changes = if !made.is_empty() && random.below(2) == 0 {
            random_changes(&mut random, &made, quotas.len())
        } else {
            Vec::new()
        };
        let what = if changes.is_empty() {
            let call = random_call(&mut random, &quotas, &mut made, now);
            let what = format!("seed {seed}, step {at} at {now}, {turn:?}: {call:?}");
            decide(both, &call, &sets, turn, &what);
            what
        } else {
            let what = format!("seed {seed}, step {at} at {now}, {turn:?}: {changes:?} under {quotas:?}");
            change(both, &changes, &quotas, &sets, turn, &what);
            what
        };
        let [script, module, shared] = sets.each_ref().map(|set| everything(both, set, quotas.len()));
        for (key, (of_script, lives_ms)) in script.iter().enumerate() {
            for (who, (stored, lives)) in [("module", &module[key]), ("both", &shared[key])] {
                assert_eq!(stored, of_script, "key {key} by {who}, {what}");
                let table = of_script.as_deref().filter(|stored| stored[0] == 0x15);
                if let Some(table) = table {
                    // Scripts renew it more often, also to a shorter window. Here it lasts as long by
                    // all, so that it ends by its holds.
                    for set in &sets {
                        let [names, usages] = names(set, quotas.len());
                        let name = [names, usages].concat()[key].clone();
                        both.call(&[b"PEXPIRE", &name, lives_ms.to_string().as_bytes()]);
                    }
                    let latest = table[15..22].iter().rev().fold(0, |sum, byte| sum << 8 | i64::from(*byte));
                    let held_ms = (latest - now.cast_signed()) / 1000;
                    assert!(*lives >= held_ms + 4000, "{lives} and {held_ms} ms, key {key} by {who}, {what}");
                } else {
                    assert!(
                        (lives - lives_ms).abs() <= 1,
                        "{lives} and {lives_ms} ms, key {key} by {who}, {what}"
                    );
                }
            }
        }
    }
    both.call(&[b"FLUSHALL"]);
}

/// A fleet in which some servers have the module holds, settles and extends as one without.
#[test]
fn holds_do_not_show_who_made_or_changed_them() {
    let mut both = Both::start();
    crate::each_seed(|seed| run(&mut both, seed));
}

/// A random history by the module alone. Returns how many keys there may be.
pub(crate) fn run_by_module(both: &mut Both, seed: u64, from_us: u64) {
    let mut random = Random(seed);
    let quotas = [
        Quota::new(Algorithm::Log, 20, 10 * SECOND),
        Quota::new(Algorithm::Bucket, 300, 60 * SECOND),
        Quota::new(Algorithm::InFlight, 5, 30 * SECOND),
    ];
    let (mut made, mut now): (Vec<Made>, _) = (Vec::new(), from_us);
    let prefix = format!("held:{seed}");
    for _ in 0..60 {
        now += random.one_of(&[1, 1000, 300_000, SECOND]);
        both.at(now);
        let reply = if !made.is_empty() && random.below(2) == 0 {
            let changes = random_changes(&mut random, &made, quotas.len());
            if changes.is_empty() {
                continue;
            }
            change_by_module(both, &changes, &quotas, &prefix)
        } else {
            random_call(&mut random, &quotas, &mut made, now).run(both, By::Module, &prefix)
        };
        assert!(matches!(reply, Reply::List(_)), "{reply:?}");
    }
}

fn hold_one(id: u64) -> Call {
    let hold = Some(Hold { id, ttl_us: 3600 * SECOND, is_dropped: false });
    let parts = vec![Part { hold, ..Part::plain(0, 'h') }];
    let quotas = vec![Quota::new(Algorithm::Log, 1_000_000, 60 * SECOND)];
    Call { quotas, costs: vec![1], parts, has_holds: true, once_ms: None }
}

/// A table has a bound, which both find at the same hold.
#[test]
fn a_full_table_takes_no_more_holds_until_one_is_settled() {
    let mut both = Both::start();
    let sets = ["script", "module", "both"].map(str::to_owned);
    for id in 1..=1030u64 {
        both.at(NOW_US + id);
        let call = hold_one(id);
        if (2..1020).contains(&id) {
            for set in &sets {
                call.run(&mut both, By::Module, set);
            }
            continue;
        }
        let turn = if id % 2 == 0 { By::Script } else { By::Module };
        decide(&mut both, &call, &sets, turn, &format!("hold {id}"));
    }
    let quotas = hold_one(0).quotas;
    let change_of = |id, kind| Change {
        key: 0,
        id,
        kind,
        total: 1,
        ttl_us: SECOND,
        amount: 1,
        until: NOW_US + 3600 * SECOND,
        is_dropped: false,
        made: NOW_US,
    };
    for (id, kind) in [(1, SETTLE), (1024, CANCEL), (500, 2), (501, EXTEND_TIME), (1030, SETTLE)] {
        change(&mut both, &[change_of(id, kind)], &quotas, &sets, By::Module, &format!("{kind} of {id}"));
        decide(&mut both, &hold_one(2000 + id), &sets, By::Script, &format!("after {id}"));
        let stored = sets.each_ref().map(|set| everything(&mut both, set, 1));
        assert_eq!(stored[1][0].0, stored[0][0].0, "{kind} of {id}");
        assert_eq!(stored[2][0].0, stored[0][0].0, "{kind} of {id}");
    }
    let stored = both.stored("module:key:0").unwrap();
    assert_eq!(u16::from_le_bytes([stored[29], stored[30]]), 1024);
}
