//! Calls for several keys: by the scripts and by the module, in turn, on random histories.

use slidegate_testkit::redis::Reply;

use crate::SCRIPTS;
use crate::calls::{Algorithm, Both, By, CALENDAR, HOUR, NEVER_LATE, NOW_US, Quota, bytes};
use crate::histories::{ALGORITHMS, Random, SECOND, quota, step};

/// A hold that is made or cancelled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hold {
    pub(crate) id: u64,
    pub(crate) ttl_us: u64,
    pub(crate) is_dropped: bool,
}

/// One key's part of the requests.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// Which of the call's keys.
    pub(crate) key: usize,
    /// Verb, enforcement, excess, role, and whether it is denied over the limit.
    pub(crate) mode: String,
    pub(crate) own_cost: Option<u64>,
    pub(crate) hold: Option<Hold>,
}

/// A call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) quotas: Vec<Quota>,
    pub(crate) costs: Vec<u64>,
    pub(crate) parts: Vec<Part>,
    pub(crate) has_holds: bool,
    /// How long the first reply is stored.
    pub(crate) once_ms: Option<u64>,
}

impl Part {
    pub(crate) fn plain(key: usize, verb: char) -> Self {
        Self { key, mode: format!("{verb}e-d-"), own_cost: None, hold: None }
    }

    pub(crate) fn verb(&self) -> u8 {
        self.mode.as_bytes()[0]
    }
}

impl Hold {
    fn bytes(&self) -> Vec<u8> {
        bytes(&[(self.id, 8), (self.ttl_us, 5), (self.is_dropped.into(), 1)])
    }
}

/// How long usage lasts after its last hold, in milliseconds.
pub(crate) fn linger_ms(quota: &Quota) -> u64 {
    let limit = quota.limit.max(1);
    let windows = match quota.algorithm {
        Algorithm::Bucket => {
            let burst = if quota.limit == 0 { 0 } else { quota.burst };
            (burst + limit).min((1 << 53) - 1).div_ceil(limit).max(2)
        }
        Algorithm::InFlight => 0,
        _ => 2,
    };
    // Of a calendar, the module knows no length.
    let window_us = if quota.window_us >= CALENDAR { 366 * 24 * HOUR } else { quota.window_us };
    (windows.saturating_mul(window_us) / 1000 + 6000).min(3_155_760_000_000)
}

/// The keys of a call under names that begin with this; those of usage; that of the first reply.
pub(crate) fn names(prefix: &str, keys: usize) -> [Vec<Vec<u8>>; 2] {
    ["key", "usage"].map(|of| (0..keys).map(|key| format!("{prefix}:{of}:{key}").into_bytes()).collect())
}

impl Call {
    fn once_name(prefix: &str) -> Vec<u8> {
        format!("{prefix}:once").into_bytes()
    }

    /// Keys and arguments of the script.
    fn for_script(&self, prefix: &str) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let number = |number: u64| number.to_string().into_bytes();
        let [names, usages] = names(prefix, self.quotas.len());
        let of = |all: &[Vec<u8>]| self.parts.iter().map(|part| all[part.key].clone()).collect::<Vec<_>>();
        let mut keys = of(&names);
        if self.has_holds {
            keys.extend(of(&usages));
        }
        let mut args = vec![NEVER_LATE.into(), b"apply".to_vec(), number(self.costs.len() as u64)];
        if self.once_ms.is_some() {
            keys.push(Self::once_name(prefix));
            args[1] = b"once".to_vec();
        }
        args.extend(self.costs.iter().map(|cost| number(*cost)));
        for (at, part) in self.parts.iter().enumerate() {
            let first = self.parts.iter().position(|other| other.key == part.key).unwrap();
            let quota = &self.quotas[part.key];
            args.push(if first == at { vec![quota.letter()] } else { number(first as u64 + 1) });
            args.push(part.mode.clone().into_bytes());
            let mut packed = quota.for_script();
            if self.has_holds {
                packed.extend(part.hold.iter().flat_map(Hold::bytes));
                packed.extend(bytes(&[(linger_ms(quota), 7)]));
            }
            args.push(packed);
            args.push(part.own_cost.map(number).unwrap_or_default());
        }
        args.extend(self.once_ms.map(number));
        (keys, args)
    }

    /// The arguments of `SLIDEGATE.DECIDE`.
    pub(crate) fn for_module(&self, prefix: &str) -> Vec<Vec<u8>> {
        self.for_module_until(prefix, (1 << 53) - 1)
    }

    fn for_module_until(&self, prefix: &str, latest: u64) -> Vec<Vec<u8>> {
        let flags = u64::from(self.has_holds) + 2 * u64::from(self.once_ms.is_some());
        let mut call = bytes(&[(2, 1), (flags, 1), (latest, 7)]);
        call.extend(self.once_ms.iter().flat_map(|once_ms| bytes(&[(*once_ms, 7)])));
        call.extend(bytes(&[(self.costs.len() as u64, 2)]));
        call.extend(self.costs.iter().flat_map(|cost| bytes(&[(*cost, 7)])));
        // Keys are numbered in the order in which parts name them.
        let mut order = Vec::new();
        for part in &self.parts {
            let known = order.iter().position(|key| *key == part.key);
            call.extend(bytes(&[(known.unwrap_or(order.len()) as u64, 2)]));
            call.extend(part.mode.as_bytes());
            call.extend(bytes(&[(part.own_cost.unwrap_or((1 << 56) - 1), 7)]));
            if known.is_none() {
                call.extend(self.quotas[part.key].for_module());
                order.push(part.key);
            }
            call.extend(part.hold.iter().flat_map(Hold::bytes));
        }
        let [names, usages] = names(prefix, self.quotas.len());
        let mut args = vec![call];
        args.extend(order.iter().map(|key| names[*key].clone()));
        if self.has_holds {
            args.extend(order.iter().map(|key| usages[*key].clone()));
        }
        args.extend(self.once_ms.map(|_| Self::once_name(prefix)));
        args
    }

    pub(crate) fn run(&self, both: &mut Both, by: By, prefix: &str) -> Reply {
        match by {
            By::Script => {
                let (keys, args) = self.for_script(prefix);
                let script = if self.has_holds { &SCRIPTS.decide_with_holds } else { &SCRIPTS.decide_all };
                both.eval(script, &keys, &args)
            }
            By::Module => {
                let args = self.for_module(prefix);
                let command: Vec<&[u8]> =
                    [&b"SLIDEGATE.DECIDE"[..]].into_iter().chain(args.iter().map(Vec::as_slice)).collect();
                both.call(&command)
            }
        }
    }
}

/// A call of parts with random verbs and roles.
pub(crate) fn random_call(random: &mut Random, quotas: &[Quota]) -> Call {
    let largest = quotas.iter().map(|quota| quota.limit).max().unwrap_or(1);
    let mut parts: Vec<Part> = Vec::new();
    for _ in 0..random.below(5) + 1 {
        let key = usize::try_from(random.below(quotas.len() as u64)).unwrap();
        let verb = random.one_of(b"ccccpprn");
        // The store adds up checks of one key.
        let is_known = parts.iter().any(|part| part.key == key && part.verb() == b'c');
        let verb = if verb == b'c' && is_known { b'p' } else { verb };
        let enforced = random.one_of(b"eees");
        let excess = if verb == b'c' || verb == b'p' { random.one_of(b"---+!") } else { b'-' };
        let role = random.one_of(b"ddddttt");
        let over = if verb == b'c' || verb == b'p' { random.one_of(b"---o") } else { b'-' };
        let mode = String::from_utf8(vec![verb, enforced, excess, role, over]).unwrap();
        let own_cost = (random.below(4) == 0).then(|| random.below(6));
        let is_base = verb == b'c' || verb == b'p';
        parts.push(Part { key, mode, own_cost, hold: None });
        if is_base && random.below(6) == 0 {
            let base = parts.len() - 1;
            let key = usize::try_from(random.below(quotas.len() as u64)).unwrap();
            let verb = if verb == b'c' { 'n' } else { 'p' };
            let enforced = char::from(enforced);
            let mode = format!("{verb}{enforced}-k-");
            if key != parts[base].key {
                parts.push(Part { key, mode, own_cost: None, hold: None });
            }
        }
    }
    let has_refund = parts.iter().any(|part| part.verb() == b'r');
    let requests = if has_refund || random.below(3) > 0 { 1 } else { random.below(4) + 1 };
    let cost = |random: &mut Random| {
        let large = (largest / 3).max(1);
        random.one_of(&[1, 1, 1, 1, 0, 2, 3, 300.min(large), 70_000.min(large), large, largest])
    };
    let costs = (0..requests).map(|_| cost(random)).collect();
    Call { quotas: quotas.to_vec(), costs, parts, has_holds: false, once_ms: None }
}

/// Value and expiry of all keys of a call.
pub(crate) fn everything(both: &mut Both, prefix: &str, keys: usize) -> Vec<(Option<Vec<u8>>, i64)> {
    let [names, usages] = names(prefix, keys);
    let mut of = |name: &Vec<u8>| {
        let name = std::str::from_utf8(name).unwrap();
        (both.stored(name), both.lives_ms(name))
    };
    names.iter().chain(&usages).map(&mut of).collect()
}

fn run(both: &mut Both, seed: u64) {
    let mut random = Random(seed);
    let mut now = NOW_US + random.below(100 * SECOND);
    let count = random.below(4) + 1;
    let any_quota = |random: &mut Random| {
        let algorithm = random.one_of(&ALGORITHMS);
        quota(random, algorithm)
    };
    let mut quotas: Vec<_> = (0..count).map(|_| any_quota(&mut random)).collect();
    both.at(now);
    let sets = ["script", "module", "both"].map(|name| format!("{name}:{seed}"));
    for at in 0..40 {
        if random.below(15) == 0 {
            let changed = usize::try_from(random.below(count)).unwrap();
            let algorithm =
                if random.below(3) == 0 { random.one_of(&ALGORITHMS) } else { quotas[changed].algorithm };
            quotas[changed] = quota(&mut random, algorithm);
        }
        let window = quotas[usize::try_from(random.below(count)).unwrap()].window_us;
        now = now.saturating_add_signed(step(&mut random, window));
        both.at(now);
        let call = random_call(&mut random, &quotas);
        let turn = random.one_of(&[By::Script, By::Module]);
        let replies = [By::Script, By::Module, turn]
            .iter()
            .zip(&sets)
            .map(|(by, set)| call.run(both, *by, set))
            .collect::<Vec<_>>();
        let what = || format!("seed {seed}, step {at} at {now}: {call:?}");
        assert!(matches!(&replies[0], Reply::List(_)), "{:?}, {}", replies[0], what());
        assert_eq!(replies[1], replies[0], "the module's reply, {}", what());
        assert_eq!(replies[2], replies[0], "{turn:?}, which shares the keys, {}", what());
        let [script, module, shared] = sets.each_ref().map(|set| everything(both, set, quotas.len()));
        for (key, (of_script, lives_ms)) in script.iter().enumerate() {
            for (who, (stored, lives)) in [("module", &module[key]), ("both", &shared[key])] {
                assert_eq!(stored, of_script, "key {key} by {who}, {}", what());
                // How long a bucket drains is a quotient, which scripts round in another digit.
                assert!(
                    (lives - lives_ms).abs() <= 1,
                    "{lives} and {lives_ms} ms, key {key} by {who}, {}",
                    what()
                );
            }
        }
    }
    both.call(&[b"FLUSHALL"]);
}

/// A fleet in which some servers have the module counts every request once: by reply, by byte and by
/// expiry, whatever the request asks for.
#[test]
fn keys_do_not_show_who_decided_a_call() {
    let mut both = Both::start();
    crate::each_seed(|seed| run(&mut both, seed));
}

/// Both must recognize a request that is sent again, by scripts or by the module.
#[test]
fn a_first_reply_is_stored_by_one_and_replied_by_the_other() {
    let mut both = Both::start();
    both.at(NOW_US);
    let log = Quota { slots: 4, ..Quota::new(Algorithm::Log, 300, 60 * SECOND) };
    let quotas = vec![log, Quota::new(Algorithm::Bucket, 5_000_000_000, SECOND)];
    for has_holds in [false, true] {
        let hold = Some(Hold { id: 7, ttl_us: SECOND, is_dropped: false }).filter(|_| has_holds);
        let verb = if has_holds { 'h' } else { 'c' };
        let parts = [0, 1].map(|key| Part { hold, ..Part::plain(key, verb) }).to_vec();
        let once_ms = Some(60_000);
        let call = Call { quotas: quotas.clone(), costs: vec![200], parts, has_holds, once_ms };
        let prefixes = ["by-script", "by-module"].map(|name| format!("{name}:{has_holds}"));
        let first = [By::Script, By::Module].map(|by| call.run(&mut both, by, &prefixes[by as usize]));
        assert_eq!(first[0], first[1]);
        let stored = prefixes.each_ref().map(|prefix| both.stored(&format!("{prefix}:once")));
        assert!(stored[0].is_some());
        assert_eq!(stored[0], stored[1], "what is stored");
        let lives = prefixes.each_ref().map(|prefix| both.lives_ms(&format!("{prefix}:once")));
        assert_eq!(lives, [60_000; 2]);
        both.at(NOW_US + 5);
        let usage = everything(&mut both, &prefixes[0], 2);
        for by in [By::Script, By::Module] {
            for prefix in &prefixes {
                assert_eq!(call.run(&mut both, by, prefix), first[0], "again by {by:?}");
            }
        }
        assert_eq!(everything(&mut both, &prefixes[0], 2), usage, "charged once");
        both.at(NOW_US);
    }
    // A denial is not kept, as room may come.
    let parts = vec![Part::plain(0, 'c'), Part::plain(1, 'c')];
    let denied = Call { quotas, costs: vec![301], parts, has_holds: false, once_ms: Some(60_000) };
    denied.run(&mut both, By::Module, "denied");
    assert_eq!(both.stored("denied:once"), None);
    both.call(&[b"SET", b"denied:once", b"hello"]);
    let reply = denied.run(&mut both, By::Module, "denied");
    assert!(
        matches!(&reply, Reply::Error(error) if error == "SLIDEGATE first reply is damaged"),
        "{reply:?}"
    );
}

/// Late calls belong to callers who have given up.
#[test]
fn a_late_call_for_several_keys_changes_nothing() {
    let mut both = Both::start();
    both.at(NOW_US);
    let quotas = vec![Quota::new(Algorithm::Fixed, 5, SECOND); 2];
    let parts = vec![Part::plain(0, 'c'), Part::plain(1, 'c')];
    let call = Call { quotas, costs: vec![1], parts, has_holds: false, once_ms: None };
    for (latest, is_late) in [(NOW_US - 1, true), (NOW_US, false)] {
        let args = call.for_module_until("late", latest);
        let command: Vec<&[u8]> =
            [&b"SLIDEGATE.DECIDE"[..]].into_iter().chain(args.iter().map(Vec::as_slice)).collect();
        let reply = both.call(&command);
        let late = Reply::List(vec![Reply::Integer(-1), Reply::Integer(NOW_US.cast_signed())]);
        assert_eq!(reply == late, is_late, "{reply:?}");
        assert_eq!(both.stored("late:key:0").is_none(), is_late);
    }
}

fn one_key(quota: Quota, verb: char, cost: u64) -> Call {
    let parts = vec![Part::plain(0, verb)];
    Call { quotas: vec![quota], costs: vec![cost], parts, has_holds: false, once_ms: None }
}

/// A refund of a part of the oldest charge, while a longer window widens the log, must not be lost.
#[test]
fn a_partial_refund_survives_that_the_log_is_rewritten() {
    let mut both = Both::start();
    let short = Quota::new(Algorithm::Log, 20, 60 * SECOND);
    let long = Quota::new(Algorithm::Log, 20, 7_201 * SECOND);
    for by in [By::Script, By::Module] {
        let prefix = format!("{by:?}");
        for (at, cost) in [(0, 5), (1, 7)] {
            both.at(NOW_US + at);
            one_key(short, 'c', cost).run(&mut both, by, &prefix);
        }
        let reply = one_key(long, 'r', 2).run(&mut both, by, &prefix);
        assert!(matches!(reply, Reply::List(_)), "{reply:?}");
        let stored = both.stored(&format!("{prefix}:key:0")).unwrap();
        // What is used; the ring has timestamps of six bytes, and then the cost of the oldest.
        assert_eq!((stored[2], stored[23], stored[48 + 6]), (10, 0x61, 3), "by {by:?}");
    }
}

/// A large burst may take longer to drain than a server takes as an expiry.
#[test]
fn a_bucket_that_drains_for_ages_is_still_written() {
    let mut both = Both::start();
    both.at(NOW_US);
    let month = 30 * 86_400 * SECOND;
    let wide = Quota::new(Algorithm::Bucket, (1 << 53) - 1, month);
    let narrow = Quota { limit: 3, ..wide };
    for by in [By::Script, By::Module] {
        let prefix = format!("{by:?}");
        one_key(wide, 'c', (1 << 53) - 1).run(&mut both, by, &prefix);
        let reply = one_key(narrow, 'n', 1).run(&mut both, by, &prefix);
        assert!(matches!(reply, Reply::List(_)), "{reply:?}");
        let lives = both.lives_ms(&format!("{prefix}:key:0"));
        // A script counts in doubles.
        assert!((lives - (1 << 61) / 1000 - 4000).abs() <= 1, "{lives} ms by {by:?}");
    }
}
