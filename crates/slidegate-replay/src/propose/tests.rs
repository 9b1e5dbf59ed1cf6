//! Proposals for small logs, checked by hand and against a naive count.

use super::*;
use crate::reader::LogReader;

/// A line of this client, this many seconds after ten.
fn line(client: &str, user: &str, second: u64, request: &str) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!("{client} - {user} [20/Nov/2026:10:{minute:02}:{second:02} +0000] \"{request} HTTP/1.1\" 200 5\n")
}

fn proposal(log: &str, deny_at_most: &str) -> String {
    let deny_at_most = deny_at_most.parse().unwrap();
    let options = ProposalOptions { window: Duration::from_secs(60), deny_at_most };
    let read = |each: &mut dyn FnMut(&Entry<'_>)| {
        let mut reader = LogReader::from_reader(std::io::Cursor::new(log.as_bytes().to_vec())).unwrap();
        // An empty log is an error of the reader, after its last entry.
        while let Ok(Some(entry)) = reader.next_entry() {
            each(&entry);
        }
    };
    let mut survey = Survey::new(options);
    read(&mut |entry| survey.count(entry));
    let mut proposal = survey.propose();
    read(&mut |entry| proposal.try_out(entry));
    proposal.yaml("access.log")
}

/// The limit of a policy in a proposal.
fn limit(yaml: &str, policy: &str) -> u64 {
    let (_, rest) =
        yaml.split_once(&format!("- name: {policy}\n")).unwrap_or_else(|| panic!("{policy}: {yaml}"));
    let text = rest.lines().find_map(|line| line.trim().strip_prefix("limit: ")).unwrap();
    text.parse().unwrap()
}

/// A hundred ordinary clients with up to 20 requests a minute.
fn ordinary() -> String {
    (0..100u64)
        .flat_map(|client| {
            (0..=client % 20).map(move |n| line(&format!("10.0.0.{client}"), "-", client + n * 2, "GET /"))
        })
        .collect()
}

/// Ordinary clients must have room: twice what the busiest of them needs, as a number that reads
/// well.
#[test]
fn the_limit_is_twice_what_ordinary_clients_use_rounded_up() {
    let yaml = proposal(&ordinary(), "0.1%");
    assert_eq!(limit(&yaml, "per-ip"), 50);
    assert!(yaml.contains("# 2 times what 99.9 % use, rounded up."), "{yaml}");
    assert!(yaml.contains("deny 0 requests (0%)"), "{yaml}");
    assert!(!yaml.contains("per-user") && !yaml.contains("login"), "{yaml}");
    assert_eq!([1, 4, 5, 6, 10, 11, 40, 999, 1001].map(human), [1, 5, 5, 10, 10, 20, 50, 1000, 2000]);
    assert_eq!(human(u64::MAX), u64::MAX);
}

/// The share that was asked for is a promise, also where one client is far busier than the others.
#[test]
fn a_limit_that_denies_too_much_is_raised_until_it_does_not() {
    // Among 2000 clients one scans at 10 requests a second for a minute: it is beyond 99.9 %.
    let many: String = (0..2000u64)
        .map(|client| line(&format!("10.1.{}.{}", client / 250, client % 250), "-", client / 10, "GET /"))
        .collect();
    let scan: String = (0..600u64).map(|n| line("192.0.2.1", "-", n / 10, "GET /x")).collect();
    let log = many + &scan;
    let denied = |limit: u64| 600 - limit;
    // 2600 requests: 590 denied are 22.7 %, 570 are 21.9 %, and 100 are 3.8 %.
    for (share, expected) in [("30%", 10), ("22%", 30), ("4%", 500), ("3%", 1000)] {
        let yaml = proposal(&log, share);
        assert_eq!(limit(&yaml, "per-ip"), expected, "{share}: {yaml}");
        if expected < 600 {
            assert!(yaml.contains(&format!("it would deny {} requests", denied(expected))), "{yaml}");
        }
    }
}

/// Guessing passwords takes many attempts, and ordinary clients need few.
#[test]
fn paths_for_logging_in_get_a_stricter_limit() {
    let logins: String = (0..50u64)
        .flat_map(|client| {
            let ip = format!("10.0.0.{client}");
            [line(&ip, "-", client, "GET /login"), line(&ip, "-", client + 3, "POST /login")]
        })
        .collect();
    let yaml = proposal(&(ordinary() + &logins), "0.1%");
    assert_eq!(limit(&yaml, "login-per-ip"), 5);
    assert!(yaml.contains("path: { one_of: [\"/login\"] }\n      method: [POST, PUT]"), "{yaml}");
    for path in ["/api/v1/Sessions", "/users/sign-in", "/wp-login.php"] {
        assert!(login::is_login(path), "{path}");
    }
    for path in ["/blog/login-tips", "/authors", "/tokens-of-love", "/"] {
        assert!(!login::is_login(path), "{path}");
    }
}

/// Users behind one address are counted separately where the log has them.
#[test]
fn users_get_a_policy_if_the_log_has_them() {
    let users: String =
        (0..30u64).map(|n| line("10.9.9.9", &format!("user{}", n % 3), n * 4, "GET /")).collect();
    let yaml = proposal(&users, "0.1%");
    assert_eq!(limit(&yaml, "per-user"), 20);
    assert!(yaml.contains("ip (100%), user (100%), method (100%)"), "{yaml}");
}

/// The figures must not be too low, whatever the step.
#[test]
fn peaks_are_at_least_those_of_any_window_and_at_most_a_step_more() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..200 {
        let mut now = random(100_000_000);
        let times: Vec<u64> = (0..random(200) + 1)
            .map(|_| {
                now += if random(20) == 0 { random(200_000_000) } else { random(2_000_000) };
                now
            })
            .collect();
        let mut peaks = KeyPeaks::new(Duration::from_secs(60));
        times.iter().for_each(|time| peaks.count(1, *time, 1));
        let most = |window: u64| {
            let within = |from: &u64| times.iter().filter(|at| (*from..from + window).contains(at)).count();
            times.iter().map(within).max().unwrap() as u64
        };
        let found = peaks.percentiles().max;
        assert!((most(60_000_000)..=most(65_000_000)).contains(&found), "{found} of {times:?}");
    }
}

/// A path is chosen by anyone who sends a request: it must not become configuration.
#[test]
fn texts_of_the_log_cannot_leave_their_quotes() {
    for (text, expected) in [
        ("/login", "\"/login\""),
        ("/a\"b\\c\nd", "\"/a\\\"b\\\\c\\nd\""),
        ("/\u{2028}\u{85}", "\"/\\u2028\\u0085\""),
        ("/\u{202e}x", "\"/\\u202ex\""),
        ("/\u{1f600}", "\"/\\ud83d\\ude00\""),
    ] {
        assert_eq!(quoted(text), expected);
    }
}

/// An empty log has nothing to propose, and must not divide by it.
#[test]
fn a_log_without_requests_is_an_empty_list() {
    let options = ProposalOptions { window: Duration::from_secs(60), deny_at_most: Share::ONE_IN_A_THOUSAND };
    assert!(Survey::new(options).propose().yaml("access.log").ends_with("policies:\n  []\n"));
}
