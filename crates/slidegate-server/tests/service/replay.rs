//! Replaying access logs: what is printed is what would have happened.

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{run, slidegate, text};

const POLICIES: [&str; 4] = ["--policy", "20/1m per ip", "--policy", "5/30s per ip,path"];

/// A line of the combined format, `second` seconds into an hour of 2026.
fn line(ip: &str, second: u32, path: &str) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!(
        "{ip} - - [20/Nov/2026:10:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 5 \"-\" \"Mozilla/5.0\"\n"
    )
}

/// Client, path and second of a line, by splitting at spaces: nothing of the real parser. IPv6
/// clients count by their /64.
fn naive_parse(line: &str) -> (String, String, i64) {
    let words: Vec<&str> = line.split(' ').collect();
    let clock: Vec<i64> = words[3].split(':').skip(1).map(|n| n.parse().unwrap()).collect();
    let day: i64 = words[3][1..3].parse().unwrap();
    let second = ((day * 24 + clock[0]) * 60 + clock[1]) * 60 + clock[2];
    let path = words[6].split('?').next().unwrap();
    let client = words[0].split(':').take(4).collect::<Vec<_>>().join(":");
    (client, path.to_owned(), second)
}

/// Whether each line is allowed under [`POLICIES`], in the order of time: lists of charges,
/// searched every time.
fn naive_decisions(log: &str) -> Vec<bool> {
    let mut requests: Vec<_> = log.lines().map(naive_parse).collect();
    requests.sort_by_key(|(_, _, second)| *second);
    let mut by_ip: HashMap<String, Vec<i64>> = HashMap::new();
    let mut by_path: HashMap<(String, String), Vec<i64>> = HashMap::new();
    let room = |charges: &[i64], now: i64, window, limit| {
        charges.iter().filter(|at| **at > now - window).count() < limit
    };
    let mut decisions = Vec::new();
    for (ip, path, now) in requests {
        let of_ip = by_ip.entry(ip.clone()).or_default();
        let of_path = by_path.entry((ip, path)).or_default();
        let allowed = room(of_ip, now, 60, 20) && room(of_path, now, 30, 5);
        if allowed {
            of_ip.push(now);
            of_path.push(now);
        }
        decisions.push(allowed);
    }
    decisions
}

/// What `replay --each` says of every line, and its report.
fn replayed(log: &str) -> (Vec<bool>, String) {
    let output = run(&[&["replay", log, "--each"], &POLICIES[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let each = out.lines().take_while(|line| line.starts_with('{'));
    let each: Vec<bool> =
        each.map(|line| serde_json::from_str::<Value>(line).unwrap()["allowed"].as_bool().unwrap()).collect();
    let report = out.lines().skip(each.len()).collect::<Vec<_>>().join("\n");
    (each, without_formats(&report))
}

/// A report without the names of logs and their formats.
fn without_formats(report: &str) -> String {
    let others: Vec<_> = report.trim().lines().filter(|line| !line.contains(": format ")).collect();
    assert_eq!(others.len() + 1, report.trim().lines().count(), "{report}");
    others.join("\n")
}

/// A log of busy and quiet clients, its lines up to 20 seconds out of order.
fn shuffled_log() -> String {
    let mut seed = 0x2545_F491_4F6C_DD1Du64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut log = String::new();
    for n in 0..3000u64 {
        let second = u32::try_from(n / 4 + random(20)).unwrap();
        let ip = format!("192.0.2.{}", random(12) * random(12) / 4);
        log += &line(&ip, second, ["/", "/login", "/a?b=c"][usize::try_from(random(3)).unwrap()]);
    }
    log
}

/// A replay that differs from the truth in one line is a lie about the next deploy.
#[test]
fn every_line_is_decided_as_a_naive_limiter_decides_it() {
    let folder = TempDir::new("replay-shuffled");
    let log = shuffled_log();
    let expected = naive_decisions(&log);
    let denied = expected.iter().filter(|allowed| !**allowed).count();
    assert!(denied > 100, "the log is busy enough to mean something");
    let (each, report) = replayed(&folder.file("access.log", &log));
    assert_eq!(each, expected);
    assert!(report.contains(&format!("{denied} requests denied in all")), "{report}");
}

/// "0 denied" for a log in another format would look like success, and a script would continue.
#[test]
fn a_log_without_a_readable_line_is_an_error_that_shows_the_first_lines() {
    let folder = TempDir::new("replay-unreadable");
    let words: String = (0..7).map(|n| format!("message {n}: started\n")).collect();
    let file = folder.file("messages.log", words);
    for each in [&[][..], &["--each"]] {
        let output = run(&[&["replay", &file, "--policy", "5/1m per ip"], each].concat());
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(text(&output.stdout), "", "no report of nothing");
        let error = text(&output.stderr);
        let expected = format!(
            "{file}: no request in 7 lines: its format is not known; name it with `--log-format`, one of `common`, "
        );
        assert!(error.starts_with(&expected), "{error}");
        assert!(error.contains("\n  line 5: ") && error.contains("message 4: started"), "{error}");
        assert!(!error.contains("line 6: "), "{error}");
    }

    let empty = folder.file("empty.log", "");
    let output = run(&["replay", &empty, "--policy", "5/1m per ip"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), format!("{empty}: the log is empty: nothing to replay\n"));
}

/// A file, a gzipped file and a pipe are one log.
#[test]
fn gzip_and_standard_input_give_the_same_report() {
    let folder = TempDir::new("replay-forms");
    let log = shuffled_log();
    let plain = folder.file("access.log", &log);
    let (each, report) = replayed(&plain);
    assert!(Command::new("gzip").args(["-k", &plain]).status().expect("gzip is there").success());
    assert_eq!(replayed(&format!("{plain}.gz")), (each, report.clone()));

    let mut process = slidegate()
        .args(["replay", "-"])
        .args(POLICIES)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(log.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    assert_eq!(without_formats(&text(&output.stdout)), report);
}

/// The report must say who would be hit, and why, without a second tool.
#[test]
fn the_report_names_the_most_denied_keys_and_why() {
    let folder = TempDir::new("replay-report");
    let mut log: String = (0..8).map(|second| line("203.0.113.9", second, "/login")).collect();
    log += &line("2001:db8:1:2::3", 8, "/login");
    log += &(0..7).map(|_| line("198.51.100.1", 9, "/login")).collect::<String>();
    log += "not a log line\n";
    let config = "policies:\n  - name: login\n    when: { path: /login }\n    scope: [ip]\n    limit: 5\n    window: 1m\n  \
        - name: strict\n    mode: shadow\n    scope: [ip]\n    limit: 1\n    window: 1m\n  \
        - name: users\n    scope: [user]\n    limit: 1\n    window: 1m\n";
    let (log, config) = (folder.file("access.log", log), folder.file("slidegate.yaml", config));
    let run_with =
        |more: &[&str]| run(&[&["replay", &log, "--config", &config, "--top", "1"], more].concat());
    assert_eq!(run_with(&[]).status.code(), Some(2), "nothing in the log has users");
    let output = run_with(&["--allow-empty"]);
    let report = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for expected in [
        "17 lines, 16 requests from 2026-11-20T10:00:00Z to 2026-11-20T10:00:09Z",
        "1 malformed line was left out:\n  line 17: ",
        "  seen 16  allowed 11  denied 5 (31.3%)  keys 3\n",
        "         3 x 203.0.113.9  2026-11-20T10:00:05Z to 2026-11-20T10:00:07Z\n",
        "first: login: `203.0.113.9` has used 5 of 5 per 1m; the cost fits in 55 s\n",
        "... and 1 more denied key",
        "  seen 16  allowed 3  would have denied 13 (81.3%)  keys 3\n",
        "  seen 0  allowed 0  denied 0 (0%)  keys 0\n",
        "5 requests denied in all (31.3%)",
    ] {
        assert!(report.contains(expected), "{expected}\nin\n{report}");
    }
}

/// Half a log is better than none, but it must not pass for the whole.
#[test]
fn what_cannot_be_read_is_an_error_that_names_the_file() {
    let output = run(&["replay", "nowhere.log", "--policy", "5/1m per ip"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("nowhere.log: "), "{}", text(&output.stderr));

    let folder = TempDir::new("replay-broken");
    let plain = folder.file("access.log", shuffled_log());
    assert!(Command::new("gzip").args(["-k", &plain]).status().expect("gzip is there").success());
    let whole = std::fs::read(format!("{plain}.gz")).unwrap();
    let cut = folder.file("cut.log.gz", &whole[..whole.len() / 2]);
    let output = run(&["replay", &cut, "--policy", "5/1m per ip"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with(&format!("{cut}: ")), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("requests denied in all"), "what was read is reported");
}
