//! A service that starts while the machine's date is wrong, as machines without a battery do, and
//! the date is corrected.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use slidegate_testkit::clock::ClockOffset;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until};

const DAY_S: i64 = 86_400;
const MICROSECONDS: i64 = 1_000_000;

/// The true date, in seconds since the epoch.
#[allow(clippy::disallowed_methods)] // the expected values come from the wall clock itself
fn date() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()).unwrap()
}

/// A service on a wall clock that the test moves.
struct Moved {
    clock: ClockOffset,
    server: Server,
    _dir: TempDir,
}

impl Moved {
    fn start(offset_s: i64) -> Self {
        let dir = TempDir::new("wall_clock");
        let clock = ClockOffset::create(dir.path());
        clock.set(offset_s * MICROSECONDS);
        let server = Server::start_with(&["--policy", "3/1m per user"], &clock.variables());
        Self { clock, server, _dir: dir }
    }

    /// `X-RateLimit-Reset` of a check.
    fn reset(&self, user: &str) -> i64 {
        let answer = self.server.post("/v1/check", &json!({ "attributes": { "user": user } }).to_string());
        answer.header("x-ratelimit-reset").unwrap().parse().unwrap()
    }

    /// Waits until what the service says of itself and of new keys goes by a date that is off by so
    /// much.
    fn says(&self, offset_s: i64, user: &str) {
        until("the service follows the corrected date", || {
            let now = date() + offset_s;
            let resets_in = self.reset(user) - now;
            (30..=62).contains(&resets_in).then_some(())
        });
    }
}

/// Clients that sleep until `X-RateLimit-Reset` sleep for years, or not at all, if it keeps the
/// date of the start.
#[test]
fn reported_dates_follow_the_wall_clock_wherever_it_is_set() {
    let wrong = -20 * 365 * DAY_S;
    let moved = Moved::start(wrong);
    moved.says(wrong, "at the start");
    for offset in [0, -DAY_S, 3 * DAY_S, 0] {
        moved.clock.set(offset * MICROSECONDS);
        moved.says(offset, &format!("new at {offset}"));
    }

    let status = moved.server.get("/v1/status").json();
    let started: jiff::Timestamp = status["started_at"].as_str().unwrap().parse().unwrap();
    assert!((date() - started.as_second()).abs() < 300, "{status}");
    assert!(status["uptime_ms"].as_u64().unwrap() < 300_000, "{status}");
    let metrics = moved.server.get("/metrics").body;
    let start_time = metrics.lines().find_map(|line| line.strip_prefix("slidegate_start_time_seconds "));
    #[allow(clippy::cast_possible_truncation)] // seconds since the epoch
    let start_time = start_time.unwrap().parse::<f64>().unwrap() as i64;
    assert!((date() - start_time).abs() < 300, "{start_time}");
}

/// The correction itself must not hand out the limit again, or anybody who can move NTP can.
#[test]
fn a_corrected_date_frees_nobody_of_a_window_that_slides() {
    let moved = Moved::start(-DAY_S);
    let used = || {
        let answer =
            moved.server.post("/v1/check", &json!({ "attributes": { "user": "alice" } }).to_string());
        answer.json()["policies"][0]["used"].as_u64().unwrap()
    };
    for expected in 1..=3 {
        assert_eq!(used(), expected);
    }
    for offset in [0, DAY_S, -DAY_S] {
        moved.clock.set(offset * MICROSECONDS);
        moved.says(offset, &format!("new at {offset}"));
        assert_eq!(used(), 3, "after a step to {offset} s");
    }
}
