//! Random logs, and a replay in a few lines.

use std::io::Cursor;
use std::sync::Arc;

use slidegate::{Algorithm, Match, Policy, PolicySet, Quota};
use slidegate_replay::{Diff, DiffOutcome, LogReader, Options, Outcome, PlainWording, Plan, Replay, Wording};

/// A request of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestRequest {
    pub(crate) second: u64,
    pub(crate) ip: String,
    pub(crate) path: &'static str,
}

/// Seconds since the Unix epoch of 2026-11-20T10:00:00Z.
pub(crate) const START: u64 = 1_795_168_800;

/// A generator of random numbers, the same on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// Busy, bursty and quiet clients, in order of time, for up to an hour.
pub(crate) fn random_traffic(seed: u64, requests: usize) -> Vec<TestRequest> {
    let mut random = Random(seed);
    let mut second = random.below(50);
    let mut traffic = Vec::new();
    while traffic.len() < requests {
        let ip = format!("192.0.2.{}", random.below(9) * random.below(9) / 3);
        let path = ["/", "/login", "/items"][usize::try_from(random.below(3)).unwrap()];
        for _ in 0..=random.below(6) {
            traffic.push(TestRequest { second, ip: ip.clone(), path });
            second += random.below(2) * random.below(2);
        }
        second += random.below(4);
    }
    traffic
}

/// The combined format.
pub(crate) fn log_of(traffic: &[TestRequest]) -> Vec<u8> {
    let line = |request: &TestRequest| {
        let (hour, minute, second) =
            (10 + request.second / 3600, request.second / 60 % 60, request.second % 60);
        let TestRequest { ip, path, .. } = request;
        format!(
            "{ip} - - [20/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 5 \"-\" \"-\"\n"
        )
    };
    traffic.iter().map(line).collect::<String>().into_bytes()
}

pub(crate) fn wording() -> Arc<dyn Wording> {
    Arc::new(PlainWording)
}

pub(crate) fn replayed(plan: Plan, traffic: &[TestRequest]) -> Outcome {
    finished(Replay::new(plan, &wording()).unwrap(), reader(log_of(traffic)))
}

pub(crate) fn reader(log: impl Into<Vec<u8>>) -> LogReader {
    LogReader::from_reader(Cursor::new(log.into())).unwrap()
}

/// Replays a whole log.
pub(crate) fn finished(mut replay: Replay, mut reader: LogReader) -> Outcome {
    while let Some(entry) = reader.next_entry().unwrap() {
        replay.push(&entry).unwrap();
    }
    replay.finish(reader.stats()).unwrap()
}

/// How two sets of policies differ on a whole log.
pub(crate) fn diffed(
    old: &PolicySet,
    new: &PolicySet,
    options: Options,
    mut reader: LogReader,
) -> DiffOutcome {
    let mut diff = Diff::new(old, new, &wording(), options);
    while let Some(entry) = reader.next_entry().unwrap() {
        diff.push(&entry);
    }
    diff.finish(reader.stats())
}

pub(crate) fn options() -> Options {
    Options { max_keys: 100_000, top: 1000, ..Options::default() }
}

/// One policy for each client, and one for logins of each client.
pub(crate) fn two_policies(algorithm: Algorithm) -> PolicySet {
    let quota = |text: &str| text.parse::<Quota>().unwrap().with_algorithm(algorithm);
    PolicySet::new([
        Policy::new("per-ip", quota("12/1m")).unwrap().with_scope(["ip"]),
        Policy::new("login", quota("4/30s"))
            .unwrap()
            .with_condition("path", Match::equals("/login"))
            .with_scope(["ip"]),
    ])
    .unwrap()
}
