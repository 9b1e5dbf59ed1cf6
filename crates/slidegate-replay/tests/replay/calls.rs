//! Recorded calls of several requests are decided as a gate decides them: in one step.

use std::fmt::Write as _;

use serde_json::{Value, json};
use slidegate::{
    Algorithm, Gate, ManualClock, MemoryStore, Policy, PolicySet, Quota, Request, Role, Timestamp, Verb,
};
use slidegate_replay::{LogStats, Measurement, Options, Plan, Replay};

use crate::diff::Shared;
use crate::traffic::{Random, START, diffed, finished, options, reader, wording};

/// A request of a call.
#[derive(Clone)]
struct CallRequest {
    user: String,
    path: String,
    cost: u64,
    verb: Verb,
    role: Role,
    policy: Option<&'static str>,
    deny_over_limit: bool,
}

/// What one policy decided on checks, and on peeks that denied a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    seen: u64,
    denied: u64,
}

impl CallRequest {
    fn request(&self) -> Request<'_> {
        let request = Request::new().with("user", &self.user).with("path", &self.path).with_cost(self.cost);
        let request = request.with_verb(self.verb).with_role(self.role);
        let request = if self.deny_over_limit { request.deny_over_limit() } else { request };
        self.policy.into_iter().fold(request, Request::under)
    }

    fn json(&self) -> Value {
        let mut json = json!({"cost": self.cost, "attributes": {"user": self.user, "path": self.path}});
        let verb = match self.verb {
            Verb::Check => None,
            Verb::Peek => Some("peek"),
            Verb::Refund => Some("refund"),
            Verb::Penalize => Some("penalize"),
        };
        let role = match self.role {
            Role::Together => Some("together"),
            Role::Refusals => Some("refusals"),
            _ => None,
        };
        for (name, text) in [("verb", verb), ("role", role), ("policy", self.policy)] {
            if let Some(text) = text {
                json[name] = text.into();
            }
        }
        if self.deny_over_limit {
            json["deny_over_limit"] = true.into();
        }
        json
    }
}

/// Calls of one to five requests with their times in microseconds.
fn random_calls(random: &mut Random) -> Vec<(u64, Vec<CallRequest>)> {
    let mut time_us = START * 1_000_000;
    let mut call = |_| {
        time_us += random.below(3) * random.below(900_000);
        let requests = (0..=random.below(5)).map(|_| {
            let (verb, role) = match random.below(12) {
                0 => (Verb::Peek, Role::Deciding),
                1 => (Verb::Peek, Role::Together),
                2 => (Verb::Refund, Role::Deciding),
                3 => (Verb::Penalize, Role::Deciding),
                4..8 => (Verb::Check, Role::Together),
                _ => (Verb::Check, Role::Deciding),
            };
            CallRequest {
                user: format!("user-{}", random.below(4)),
                path: format!("/{}", random.below(3)),
                cost: if verb == Verb::Peek { random.below(2) } else { random.below(3) + 1 },
                verb,
                role,
                policy: (random.below(4) == 0).then_some("named"),
                deny_over_limit: verb == Verb::Peek,
            }
        });
        let mut requests: Vec<_> = requests.collect();
        if let Some(last) = requests.last_mut()
            && last.verb == Verb::Check
            && random.below(3) == 0
        {
            last.policy = Some("named");
            let refused =
                CallRequest { user: format!("{}-refused", last.user), role: Role::Refusals, ..last.clone() };
            requests.push(refused);
        }
        (time_us, requests)
    };
    (0..600).map(&mut call).collect()
}

fn policies(algorithm: Algorithm) -> PolicySet {
    let quota = |text: &str| text.parse::<Quota>().unwrap().with_algorithm(algorithm);
    PolicySet::new([
        Policy::new("per-user", quota("9/3s")).unwrap().with_scope(["user"]),
        Policy::new("shadow", quota("12/2s")).unwrap().with_scope(["path"]).shadow(),
        Policy::new("all", quota("14/1s")).unwrap(),
        Policy::new("named", quota("5/2s")).unwrap().with_scope(["user"]).only_when_named(),
    ])
    .unwrap()
}

/// A line for each call: of a single ordinary request as ever, and with a list for the others.
fn recording(calls: &[(u64, Vec<CallRequest>)]) -> String {
    let mut text = String::new();
    for (time_us, requests) in calls {
        let time = time_text(*time_us);
        let mut line = match &requests[..] {
            [only] if only.role == Role::Deciding => only.json(),
            _ => json!({"requests": requests.iter().map(CallRequest::json).collect::<Vec<_>>()}),
        };
        line["time"] = time.into();
        writeln!(text, "{line}").unwrap();
    }
    text
}

fn time_text(time_us: u64) -> String {
    let (second, us) = (time_us / 1_000_000 - START, time_us % 1_000_000);
    assert!(second < 3600);
    format!("2026-11-20T10:{:02}:{:02}.{us:06}Z", second / 60, second % 60)
}

/// Whether each call with a check is allowed, and what each policy decided, says a gate.
fn expected(set: PolicySet, calls: &[(u64, Vec<CallRequest>)]) -> (Vec<bool>, Vec<Counts>) {
    let clock = ManualClock::at(Timestamp::EPOCH);
    let mut counts = vec![Counts::default(); set.iter().len()];
    let gate = Gate::with_memory(set, MemoryStore::builder().max_keys(100_000).clock(clock.clone()).build());
    let mut allowed = Vec::new();
    for (time_us, requests) in calls {
        clock.set(Timestamp::from_micros(*time_us));
        let call: Vec<Request<'_>> = requests.iter().map(CallRequest::request).collect();
        let decisions = gate.apply(&call);
        // A single peek decides nothing else.
        let is_single = call.len() == 1 && call[0].role() == Role::Deciding;
        let has_check = requests.iter().any(|one| one.verb == Verb::Check && one.role != Role::Refusals);
        if !has_check && (is_single || decisions.is_allowed()) {
            continue;
        }
        allowed.push(decisions.is_allowed());
        for one in decisions.iter() {
            let is_denied_peek = one.verb() == Verb::Peek && one.is_denied();
            if one.verb() == Verb::Check || is_denied_peek {
                counts[one.position()].seen += 1;
                counts[one.position()].denied += u64::from(one.is_denied());
            }
        }
    }
    (allowed, counts)
}

/// What-ifs of Envoy's calls are wrong if a request that another one of its call denied is charged.
#[test]
fn calls_are_decided_in_one_step_whatever_their_verbs_and_roles() {
    let (mut denied_calls, mut all) = (0, 0);
    for seed in 1..7 {
        let calls = random_calls(&mut Random(seed * 7919));
        let log = recording(&calls);
        for algorithm in Algorithm::ALL {
            let (allowed, counts) = expected(policies(algorithm), &calls);
            let lines = Shared::default();
            let plan = Plan::of(policies(algorithm), options());
            let each = Replay::with_each(plan.clone(), &wording(), Box::new(lines.clone())).unwrap();
            let outcome = finished(each, reader(log.as_str()));
            let lines = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            let found: Vec<bool> = lines
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap()["allowed"] == true)
                .collect();
            assert_eq!(found, allowed, "seed {seed}, {algorithm}");
            let short = finished(Replay::new(plan, &wording()).unwrap(), reader(log.as_str()));
            for outcome in [&outcome, &short] {
                let scenario = &outcome.configured;
                assert_eq!(scenario.requests, allowed.len() as u64);
                assert_eq!(scenario.denied, allowed.iter().filter(|is_allowed| !**is_allowed).count() as u64);
                let of_policies: Vec<Counts> = scenario
                    .policies
                    .iter()
                    .map(|one| Counts { seen: one.seen, denied: one.denied })
                    .collect();
                assert_eq!(of_policies, counts, "seed {seed}, {algorithm}");
            }
            denied_calls += outcome.configured.denied;
            all += outcome.configured.requests;
        }
    }
    assert!(denied_calls > all / 10 && denied_calls < all * 9 / 10, "{denied_calls} of {all}");
}

/// A line for each second.
fn lines(calls: &[Value]) -> String {
    let mut log = String::new();
    for (second, requests) in calls.iter().enumerate() {
        let line = json!({"time": time_text((START + second as u64) * 1_000_000), "requests": requests});
        writeln!(log, "{line}").unwrap();
    }
    log
}

fn of(user: &str) -> Value {
    json!({"attributes": {"user": user}})
}

fn per_user(quota: &str) -> PolicySet {
    let policy = Policy::new("per-user", quota.parse().unwrap()).unwrap().with_scope(["user"]);
    PolicySet::new([policy]).unwrap()
}

/// A call that one of its requests denies charges nothing: a comparison, a sweep, a diff and a
/// forecast that charged the others would count them twice.
#[test]
fn sweeps_and_diffs_decide_calls_in_one_step() {
    // Of two a minute: bob's third denies the call, so that alice's stays free for the next.
    let calls = [
        json!([of("alice"), of("bob")]),
        json!([of("bob")]),
        json!([of("alice"), of("bob")]),
        json!([of("alice"), of("carol")]),
        json!([of("alice")]),
    ];
    let log = lines(&calls);
    let plan = Plan { sweep: Some("limit=1..4:1".parse().unwrap()), ..Plan::of(per_user("2/1m"), options()) };
    let outcome = finished(Replay::new(plan, &wording()).unwrap(), reader(log.as_str()));
    assert_eq!(outcome.configured.denied, 2);
    let points: Vec<u64> =
        outcome.sweep.as_ref().unwrap().points.iter().map(|point| point.requests_denied).collect();
    // With one, the first call takes all that alice and bob have; with three, alice's fourth is denied.
    assert_eq!(points, [4, 2, 1, 0]);

    let outcome = diffed(per_user("2/1m"), per_user("3/1m"), Options::default(), reader(log));
    assert_eq!((outcome.requests, outcome.denied_old, outcome.denied_new), (5, 2, 1));
    assert_eq!((outcome.newly_allowed, outcome.newly_denied), (1, 0));
}

/// A forecast that saw no keys in calls would promise memory that is not enough.
#[test]
fn a_forecast_measures_each_request_of_a_call() {
    let log = lines(&[json!([of("alice"), of("bob"), of("carol")]), json!([of("alice"), of("dave")])]);
    let mut measurement = Measurement::new(per_user("9/1m"), 1000);
    let mut reader = reader(log);
    while let Some(entry) = reader.next_entry().unwrap() {
        measurement.count(&entry);
    }
    assert_eq!(measurement.demands()[0].keys, 4);
}

/// A recording of another configuration must not look as if everything had been denied.
#[test]
fn requests_of_a_call_under_a_policy_that_is_missing_are_left_out_and_counted() {
    let gone = json!({"policy": "gone", "attributes": {"user": "alice"}});
    let log = lines(&[json!([of("alice"), gone]), json!([gone, gone]), json!([of("alice"), gone])]);
    let plan = Plan::of(per_user("1/1m"), options());
    let outcome = finished(Replay::new(plan, &wording()).unwrap(), reader(log.as_str()));
    let scenario = &outcome.configured;
    assert_eq!((scenario.requests, scenario.unknown_policy), (3, 4));
    assert_eq!((scenario.allowed, scenario.denied, scenario.unmatched), (2, 1, 1));
    let outcome = diffed(per_user("1/1m"), per_user("2/1m"), Options::default(), reader(log));
    assert_eq!((outcome.requests, outcome.unknown_policy, outcome.newly_allowed), (3, 4, 1));
}

/// Half a call would be decided otherwise than the whole, so a list that cannot be read is said.
#[test]
fn a_list_that_cannot_be_read_is_a_malformed_line() {
    let log = lines(&[json!([of("alice")]), json!([{"role": "leading", "attributes": {}}]), json!([])]);
    let mut reader = reader(log);
    let mut entries = 0;
    while reader.next_entry().unwrap().is_some() {
        entries += 1;
    }
    let stats: &LogStats = reader.stats();
    assert_eq!((entries, stats.malformed), (1, 2));
    assert_eq!(
        stats.malformed_lines[0].reason.to_string(),
        "invalid or missing requests: expected a list of 1 to 128 requests, each with at most 64 \
         `attributes`, and with `cost`, `costs`, `verb`, `role`, `policy` and `deny_over_limit` as the service \
         records them"
    );
}
