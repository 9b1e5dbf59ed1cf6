//! Every format is decided line by line as a naive limiter decides it.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

use slidegate::{Policy, PolicySet, Quota};
use slidegate_replay::{LogFormat, LogOptions, LogReader, Options, PlainWording, Plan, Replay, Wording};

mod clock_changes;
mod columns;
mod inputs;
mod visit;
mod writer;

use visit::{FIXTURE, FIXTURE_FORMAT, Visit, visits};
use writer::Written;

/// What the naive limiter knows of a policy: charges of each key.
type Charges = HashMap<Vec<String>, Vec<u64>>;

/// IPv6 clients count by their /64: here, by their first four groups.
fn network(ip: &str) -> String {
    ip.split(':').take(4).collect::<Vec<_>>().join(":")
}

/// Whether each visit is allowed, in order of time: lists of charges, pruned every time.
fn naive_decisions(visits: &[Visit], times_us: &[u64], has_user: bool) -> Vec<bool> {
    let mut order: Vec<usize> = (0..visits.len()).collect();
    order.sort_by_key(|at| times_us[*at]);
    let mut policies: [(u64, usize, Charges); 3] =
        [(60, 20, Charges::new()), (30, 5, Charges::new()), (600, 10, Charges::new())];
    let mut decisions = Vec::new();
    for at in order {
        let (visit, now) = (&visits[at], times_us[at]);
        let keys = [
            Some(vec![network(&visit.ip)]),
            Some(vec![network(&visit.ip), visit.path.to_owned()]),
            visit.user.filter(|_| has_user).map(|user| vec![user.to_owned(), visit.method.to_owned()]),
        ];
        for ((window, _, charges), key) in policies.iter_mut().zip(&keys) {
            if let Some(list) = key.as_ref().and_then(|key| charges.get_mut(key)) {
                list.retain(|charged| charged + *window * 1_000_000 > now);
            }
        }
        let mut allowed = true;
        for ((_, limit, charges), key) in policies.iter().zip(&keys) {
            let Some(key) = key else { continue };
            allowed &= charges.get(key).map_or(0, Vec::len) < *limit;
        }
        if allowed {
            for ((_, _, charges), key) in policies.iter_mut().zip(keys) {
                charges.entry(key.unwrap_or_default()).or_default().push(now);
            }
        }
        decisions.push(allowed);
    }
    decisions
}

fn policies() -> PolicySet {
    let policy = |name: &str, limit, seconds, scope: &[&str]| {
        let quota = Quota::new(limit, std::time::Duration::from_secs(seconds)).unwrap();
        Policy::new(name, quota).unwrap().with_scope(scope.iter().copied())
    };
    PolicySet::new([
        policy("per-ip", 20, 60, &["ip"]),
        policy("per-path", 5, 30, &["ip", "path"]),
        policy("per-user", 10, 600, &["user", "method"]),
    ])
    .unwrap()
}

fn options_of(log: &Written) -> LogOptions {
    LogOptions {
        format: log.given.as_deref().map(|name| LogFormat::parse(name).unwrap()),
        fields: log.fields.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect(),
        ..LogOptions::default()
    }
}

fn reader(log: &Written) -> LogReader {
    LogReader::from_reader_with(Cursor::new(log.text.clone().into_bytes()), options_of(log)).unwrap()
}

/// A writer whose text can be read afterwards.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether each request of a log is allowed, in the order of decision.
fn decisions(reader: &mut LogReader) -> Vec<bool> {
    decisions_of(policies(), reader)
}

fn decisions_of(policies: PolicySet, reader: &mut LogReader) -> Vec<bool> {
    let wording: Arc<dyn Wording> = Arc::new(PlainWording);
    let each = Shared::default();
    let plan = Plan::of(policies, Options::default());
    let mut replay = Replay::with_each(plan, &wording, Some(Box::new(each.clone()))).unwrap();
    while let Some(entry) = reader.next_entry().unwrap() {
        replay.push(&entry).unwrap();
    }
    replay.finish(reader.stats()).unwrap();
    let text = String::from_utf8(each.0.lock().unwrap().clone()).unwrap();
    let allowed =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["allowed"].as_bool().unwrap();
    text.lines().map(allowed).collect()
}

/// A log in any format is the same traffic: a parser that errs by one field decides otherwise.
#[test]
fn every_format_is_decided_as_a_naive_limiter_decides_it() {
    let visits = visits();
    for log in writer::all() {
        let expected = naive_decisions(&visits, &log.times_us, log.has_user);
        let denied = expected.iter().filter(|allowed| !**allowed).count();
        assert!(denied > 50 && denied < visits.len() / 2, "{}: {denied} of {}", log.name, visits.len());
        let mut reader = reader(log);
        let decided = decisions(&mut reader);
        let stats = reader.stats();
        assert_eq!((stats.malformed, stats.late), (0, 0), "{}: {:#?}", log.name, stats.malformed_lines);
        assert_eq!(stats.other, log.other, "{}", log.name);
        assert_eq!(decided.len(), expected.len(), "{}", log.name);
        let first = decided.iter().zip(&expected).position(|(one, other)| one != other);
        assert_eq!(
            first, None,
            "{}: the first request, in the order of time, that is decided otherwise",
            log.name
        );
        assert_eq!(stats.logs[0].format, log.detected, "{}", log.name);
        assert_eq!(stats.logs[0].is_detected, log.given.is_none());
    }
}

/// The file itself must be decided as the naive limiter decides it, not only what is written from
/// it.
#[test]
fn the_log_of_the_fixture_is_decided_as_a_naive_limiter_decides_it() {
    let visits = visits();
    let times_us: Vec<u64> = visits.iter().map(|visit| visit.start_ms * 1000).collect();
    let format = LogFormat::parse(&format!("nginx:{FIXTURE_FORMAT}")).unwrap();
    let options = LogOptions { format: Some(format), ..LogOptions::default() };
    let mut reader = LogReader::from_reader_with(Cursor::new(FIXTURE), options).unwrap();
    let decided = decisions(&mut reader);
    assert_eq!((reader.stats().entries, reader.stats().malformed), (visits.len() as u64, 0));
    assert_eq!(decided, naive_decisions(&visits, &times_us, true));
}

/// Policies may be about any field, so each has to be the one of its request.
#[test]
fn every_format_gives_the_fields_it_has() {
    let visits = visits();
    for log in writer::all() {
        let mut order: Vec<usize> = (0..visits.len()).collect();
        order.sort_by_key(|at| log.times_us[*at]);
        let mut reader = reader(log);
        for at in order {
            let (visit, entry) =
                (&visits[at], reader.next_entry().unwrap().expect("as many entries as visits"));
            let context = format!("{}: {visit:?}", log.name);
            assert_eq!(entry.time_us, log.times_us[at], "{context}");
            let client = String::from_utf8_lossy(entry.client);
            assert!(
                client.starts_with(&visit.ip) || client.starts_with(&format!("[{}]", visit.ip)),
                "{client} {context}"
            );
            let request = entry.request.as_ref().expect("a request");
            assert_eq!(
                (request.method, request.path()),
                (visit.method.as_bytes(), visit.path.as_bytes()),
                "{context}"
            );
            assert_eq!(entry.status, visit.status, "{context}");
            let user = visit.user.filter(|_| log.has_user).map(str::as_bytes);
            assert_eq!(entry.user.as_deref(), user, "{context}");
            let host = log.has_host.then_some(&b"shop.example"[..]);
            assert_eq!(entry.host.as_deref(), host, "{context}");
            if log.has_agent {
                let agent = (!visit.agent.is_empty()).then_some(visit.agent.as_bytes());
                assert_eq!(entry.user_agent.as_deref(), agent, "{context}");
            }
            if log.name == "caddy" {
                assert_eq!(entry.extra.get("header.x-tenant"), Some(&b"t1"[..]), "{context}");
            }
        }
        assert!(reader.next_entry().unwrap().is_none(), "{}", log.name);
    }
}

/// A `log_format` of one's own is the rule with nginx, and its variables become attributes.
#[test]
fn nginx_with_a_given_format_gives_times_fields_and_attributes() {
    let visits = visits();
    let log = writer::nginx_custom(&visits);
    let mut order: Vec<usize> = (0..visits.len()).collect();
    order.sort_by_key(|at| log.times_us[*at]);
    let mut reader = reader(&log);
    for at in order {
        let (visit, entry) = (&visits[at], reader.next_entry().unwrap().unwrap());
        assert_eq!(entry.time_us, log.times_us[at]);
        assert_eq!(entry.client, visit.ip.replace(':', "_").as_bytes());
        let request = entry.request.as_ref().unwrap();
        assert_eq!((request.method, &*request.target), (visit.method.as_bytes(), visit.target().as_bytes()));
        assert_eq!((entry.status, entry.host.as_deref()), (visit.status, Some(&b"shop.example"[..])));
        let tenant = format!("t{}", visit.port % 3);
        assert_eq!(entry.extra.get("tenant"), Some(tenant.as_bytes()));
        assert_eq!(entry.extra.get("header.x-tenant"), Some(tenant.as_bytes()));
    }
}
