//! The module's commands.

use std::ffi::c_int;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slidegate::internal::{millis_ceil, secs_ceil};
use slidegate::{Algorithm, Decision, Quota};
use slidegate_stored::{
    ChangeCall, DecideCall, Decided, Item, Pair, Reply, Requests, Unusable, UnusableKey, check, decide,
    quota_of,
};

use crate::api::{Arguments, Context, Key, WrongType, entry_points, server_time_us};
use crate::arguments::{MOST, named, number, requests};
use crate::value::{Keys, store};

/// The module version shown by `MODULE LIST`: the version of its arguments and replies.
const VERSION: c_int = 2;

entry_points! {
    VERSION:
    c"slidegate.check1" ONE_KEY run_check1 = check1;
    c"slidegate.decide" KEYS_AT_END run_decide = decide_call;
    c"slidegate.change" KEYS_AT_END run_change = change_call;
    c"rl.check" ONE_KEY run_rl_check = rl_check;
    c"cl.throttle" ONE_KEY run_cl_throttle = cl_throttle;
}

/// Maximum requests per call, as sent by the library: each is a step.
const MAX_REQUESTS: usize = 1024;

/// The reply if a key does not hold a string, as from the scripts.
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The reply to a call unknown to this version. Callers then run the script.
const MISMATCH: &str = "ERR invalid call: the caller and the module do not match";

const WRONG_KEYS: &str = "ERR invalid keys: must be those of the call, each once";

/// Index of the first key in a call for any number of keys.
const FIRST_KEY: usize = 2;

/// Up to this many names are compared pairwise; more are sorted.
const FEW_KEYS: usize = 8;

/// The server's time in microseconds since the Unix epoch, like its `TIME` command.
#[allow(clippy::disallowed_methods)] // the only clock read of a command
fn now_us() -> u64 {
    if let Some(now_us) = server_time_us() {
        return now_us;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// `SLIDEGATE.CHECK1 key latest quota cost [requests cost [requests ...]]`: as `check.lua`.
///
/// `latest` is the latest time at which it may still charge, in microseconds. `quota` is packed, see
/// `stored/quota_bytes.rs`. The reply equals the script's.
fn check1(context: &Context<'_>, arguments: Arguments<'_>) {
    const FIRST: usize = 4;
    let count = arguments.len().saturating_sub(FIRST);
    if count == 0 {
        return context.reply_wrong_arity();
    }
    let (Some(latest), Some(quota)) = (number(arguments.get(2), 0, MOST), quota_of(arguments.get(3))) else {
        return context.reply_error(MISMATCH);
    };
    // Most calls have one request and allocate nothing.
    let (one, many);
    let requests = if count == 1 {
        one = number(arguments.get(FIRST), 0, MOST).map(|cost| [Requests { cost, count: 1 }]);
        one.as_ref().map(<[Requests; 1]>::as_slice)
    } else {
        let read = || requests(|at| arguments.get(FIRST + at), count);
        many = (count <= 2 * MAX_REQUESTS).then(read).flatten();
        many.as_deref()
    };
    let Some(requests) = requests else {
        let most = 2 * MAX_REQUESTS;
        return context.reply_error(&format!(
            "ERR invalid requests: must be up to {most} whole numbers, costs and how many requests of each"
        ));
    };
    let now = now_us();
    if now > latest {
        context.reply_list(2);
        context.reply_number(-1);
        return context.reply_number(signed(now));
    }
    let Some(mut key) = open(context, arguments, 1) else { return };
    match check(key.value(), &quota, now, requests) {
        Ok(checked) => {
            if let Some(write) = &checked.write {
                store(&mut key, write);
            }
            if !checked.entries.is_empty() {
                context.reply_list(1 + 2 * checked.entries.len());
            }
            context.reply_bytes(checked.numbers.as_bytes());
            for (timestamp, cost) in checked.entries {
                context.reply_number(signed(timestamp));
                context.reply_number(signed(cost));
            }
        }
        Err(unusable) => reply_unusable(context, &mut key, &unusable),
    }
}

/// `SLIDEGATE.DECIDE call key [key ...]`: as `decide.lua`, and with holds as the script `decide_with_holds`.
///
/// The call is packed, see `stored/call.rs`. If keys may have holds, as many usage keys follow; with an
/// idempotency key, the key of the first reply comes last.
fn decide_call(context: &Context<'_>, arguments: Arguments<'_>) {
    let Some(call) = DecideCall::read(arguments.get(1)) else { return context.reply_error(MISMATCH) };
    let (keys, is_once) = (call.keys(), call.is_once());
    let named = keys * if call.has_holds() { 2 } else { 1 };
    if !are_keys(arguments, named + usize::from(is_once)) {
        return context.reply_error(WRONG_KEYS);
    }
    let now = now_us();
    let mut once = None;
    if is_once && now <= call.latest_us() {
        let Some(key) = open(context, arguments, FIRST_KEY + named) else { return };
        if let Some(first) = key.value() {
            return match DecideCall::first_reply(first) {
                Some(reply) => send(context, &reply),
                None => context.reply_error("SLIDEGATE first reply is damaged"),
            };
        }
        once = Some(key);
    }
    let run = |pairs: &mut [Pair<'_>]| call.decide(pairs, now);
    let opens = if now > call.latest_us() { 0 } else { keys };
    let Some(decided) = carry_out(context, arguments, opens, call.has_holds(), run) else { return };
    if let (Some((bytes, at_ms)), Some(key)) = (&decided.first_reply, &mut once) {
        key.replace(bytes);
        key.expire_at(*at_ms);
        key.replicate_set(bytes, *at_ms);
        key.signal();
    }
    send(context, &decided.reply);
}

/// `SLIDEGATE.CHANGE call key [key ...] usage [usage ...]`: settles, extends and cancels holds, as
/// `change_holds.lua`.
fn change_call(context: &Context<'_>, arguments: Arguments<'_>) {
    let Some(call) = ChangeCall::read(arguments.get(1)) else { return context.reply_error(MISMATCH) };
    if !are_keys(arguments, 2 * call.keys()) {
        return context.reply_error(WRONG_KEYS);
    }
    let now = now_us();
    let opens = if now > call.latest_us() { 0 } else { call.keys() };
    let run = |pairs: &mut [Pair<'_>]| call.change(pairs, now);
    let Some(decided) = carry_out(context, arguments, opens, true, run) else { return };
    send(context, &decided.reply);
}

/// Opens a call's keys, decides it, and then writes. `None` if an error was replied.
fn carry_out(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    count: usize,
    has_holds: bool,
    run: impl FnOnce(&mut [Pair<'_>]) -> Result<Decided, UnusableKey>,
) -> Option<Decided> {
    let mut keys = Vec::with_capacity(count);
    for at in FIRST_KEY..FIRST_KEY + count {
        let key = open(context, arguments, at)?;
        let usage = if has_holds { Some(open(context, arguments, at + count)?) } else { None };
        keys.push(Keys { key, usage });
    }
    let decided = {
        let mut pairs: Vec<_> = keys.iter().map(Keys::pair).collect();
        run(&mut pairs)
    };
    match decided {
        Ok(decided) => {
            for (key, effect) in &decided.effects {
                keys[*key].apply(effect);
            }
            Some(decided)
        }
        Err(UnusableKey { message, effect }) => {
            if let Some((key, effect)) = effect.as_deref() {
                keys[*key].apply(effect);
            }
            context.reply_error(&message);
            None
        }
    }
}

/// Whether this many distinct keys follow the call: two handles of one key would overwrite each other's
/// changes.
fn are_keys(arguments: Arguments<'_>, count: usize) -> bool {
    if arguments.len() != FIRST_KEY + count {
        return false;
    }
    let name = |at: usize| arguments.get(FIRST_KEY + at);
    if count <= FEW_KEYS {
        return (1..count).all(|at| (0..at).all(|other| name(other) != name(at)));
    }
    let mut names: Vec<_> = (0..count).map(name).collect();
    names.sort_unstable();
    names.windows(2).all(|two| two[0] != two[1])
}

fn send(context: &Context<'_>, reply: &Reply) {
    for item in reply.items() {
        match item {
            Item::Number(number) => context.reply_number(*number),
            Item::Bytes(bytes) => context.reply_bytes(bytes),
            Item::List(length) => context.reply_list(*length),
        }
    }
}

/// `RL.CHECK key limit window [COST n]`: the exact sliding window.
fn rl_check(context: &Context<'_>, arguments: Arguments<'_>) {
    let has_cost = arguments.len() == 6 && arguments.get(4).eq_ignore_ascii_case(b"COST");
    if arguments.len() != 4 && !has_cost {
        return context.reply_wrong_arity();
    }
    let parsed = (|| {
        let limit = named("limit", arguments.get(2), 0, MOST)?;
        let window = String::from_utf8_lossy(arguments.get(3));
        let window = Quota::parse_window(&window).map_err(|error| format!("ERR {error}"))?;
        let quota = Quota::new(limit, window).map_err(|error| format!("ERR {error}"))?;
        let cost = if has_cost { named("cost", arguments.get(5), 0, MOST)? } else { 1 };
        Ok((quota, cost))
    })();
    reply_decision(context, arguments, parsed, |decision| {
        context.reply_list(5);
        context.reply_number(i64::from(decision.is_allowed()));
        context.reply_number(signed(decision.limit()));
        context.reply_number(signed(decision.remaining()));
        context.reply_number(decision.retry_after().map_or(-1, |wait| signed(millis_ceil(wait))));
        context.reply_number(signed(millis_ceil(decision.reset_after())));
    });
}

/// `CL.THROTTLE key max_burst count period [quantity]`: the command and the reply of redis-cell.
fn cl_throttle(context: &Context<'_>, arguments: Arguments<'_>) {
    if !(5..=6).contains(&arguments.len()) {
        return context.reply_wrong_arity();
    }
    let parsed = (|| {
        let max_burst = named("max_burst", arguments.get(2), 0, MOST - 1)?;
        let count = named("count", arguments.get(3), 1, MOST)?;
        let period = named("period", arguments.get(4), 1, Quota::MAX_WINDOW.as_secs())?;
        let quantity = if arguments.len() == 6 { named("quantity", arguments.get(5), 0, MOST)? } else { 1 };
        let quota = Quota::new(count, Duration::from_secs(period)).map_err(|error| format!("ERR {error}"))?;
        Ok((quota.with_algorithm(Algorithm::TokenBucket).with_burst(max_burst + 1), quantity))
    })();
    reply_decision(context, arguments, parsed, |decision| {
        context.reply_list(5);
        context.reply_number(i64::from(decision.is_denied()));
        context.reply_number(signed(decision.limit()));
        context.reply_number(signed(decision.remaining()));
        let wait = decision.retry_after().filter(|_| decision.is_denied());
        context.reply_number(wait.map_or(-1, |wait| signed(secs_ceil(wait))));
        context.reply_number(signed(secs_ceil(decision.reset_after())));
    });
}

/// Decides one request on the key of the first argument, and replies.
fn reply_decision(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    parsed: Result<(Quota, u64), String>,
    reply: impl FnOnce(&Decision),
) {
    let (quota, cost) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return context.reply_error(&error),
    };
    let Some(mut key) = open(context, arguments, 1) else { return };
    match decide(key.value(), &quota, now_us(), cost) {
        Ok((decision, write)) => {
            if let Some(write) = &write {
                store(&mut key, write);
            }
            reply(&decision);
        }
        Err(unusable) => reply_unusable(context, &mut key, &unusable),
    }
}

fn open<'c>(context: &'c Context<'c>, arguments: Arguments<'c>, at: usize) -> Option<Key<'c>> {
    match context.open(arguments, at) {
        Ok(key) => Some(key),
        Err(WrongType) => {
            context.reply_error(WRONG_TYPE);
            None
        }
    }
}

/// Replies with the error of the scripts.
fn reply_unusable(context: &Context<'_>, key: &mut Key<'_>, unusable: &Unusable) {
    if let Some(write) = &unusable.write {
        store(key, write);
    }
    context.reply_error(&format!("SLIDEGATE value is {}", unusable.message));
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
