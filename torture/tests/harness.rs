//! The tool with limiters that are right, or wrong in a known way (`src/bin/known.rs`).

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

/// The tool with the targets of the tests, whose program is found by its name.
fn torture(arguments: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_known"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_torture"));
    command.args(["--folder", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/known")]).args(arguments);
    command.env("PATH", program.parent().unwrap());
    command
}

fn record_of(name: &str, more: &[&str]) -> (Output, Value) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("record.json");
    let mut command = torture(&[name, "--suite", "quick", "--json", json.to_str().unwrap()]);
    let output = command.args(more).output().unwrap();
    let text = std::fs::read_to_string(json).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, serde_json::from_str(&text).unwrap())
}

/// The figure of a part, if it was judged.
fn figure(record: &Value, part: &str, figure: &str) -> Option<f64> {
    let parts = record["rows"][0]["parts"].as_array().unwrap();
    let part = parts.iter().find(|one| one["name"] == part).unwrap();
    part["verdict"]["judged"][figure].as_f64()
}

/// Each wrong limiter is found by the part that is made for it, and the right one passes all.
#[test]
fn what_is_wrong_is_found_and_what_is_right_passes() {
    // Limiter, part and figure, and whether that is found.
    type Expected = (&'static str, &'static str, &'static str, fn(f64) -> bool);
    let found: [Expected; 5] = [
        ("fixed", "border", "most", |most| most > 190.0),
        ("charges", "denied", "wrong_denials", |wrong| wrong > 90.0),
        ("races", "instant", "most", |most| most > 100.0),
        ("hurries", "waits", "too_short_ms", |ms| ms > 50.0),
        ("ideal", "bursts", "most", |most| most <= 100.0),
    ];
    for (name, part, of, expected) in found {
        let (output, record) = record_of(name, &[]);
        let Some(found) = figure(&record, part, of) else {
            // On a starved machine nothing is said of it.
            assert_eq!(output.status.code(), Some(3), "{output:?}");
            continue;
        };
        assert!(expected(found), "{name}: {part} {of} {found}");
        let is_open = record["rows"][0]["parts"]
            .as_array()
            .unwrap()
            .iter()
            .any(|part| part["verdict"].get("judged").is_none());
        let expected = if name != "ideal" {
            1
        } else if is_open {
            3
        } else {
            0
        };
        assert_eq!(output.status.code(), Some(expected), "{name}: {output:?}");
    }
}

/// The schedules are the same, and so are the figures, but for calls that an exact time decides.
#[test]
fn two_runs_of_one_seed_agree() {
    let runs = [record_of("fixed", &["--seed", "5"]).1, record_of("fixed", &["--seed", "5"]).1];
    for (part, of, bound) in [
        ("bursts", "calls", 0.0),
        ("costs", "calls", 0.0),
        ("border", "most", 4.0),
        ("instant", "admitted", 0.0),
    ] {
        let figures = runs.each_ref().map(|run| figure(run, part, of));
        if let [Some(one), Some(other)] = figures {
            assert!((one - other).abs() <= bound, "{part} {of}: {one} and {other}");
        }
    }
    let other = record_of("fixed", &["--seed", "6"]).1;
    assert_ne!(
        figure(&runs[0], "bursts", "calls"),
        figure(&other, "bursts", "calls"),
        "another seed is another schedule"
    );
}

/// A tool that is stopped all the time can judge nothing, and must not call a right limiter wrong.
#[test]
fn a_starved_machine_is_not_called_a_wrong_limiter() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("record.json");
    let mut child =
        torture(&["ideal", "--suite", "quick", "--json", json.to_str().unwrap()]).spawn().unwrap();
    let id = child.id().to_string();
    let signal = |which: &str| assert!(Command::new("/bin/kill").args([which, &id]).status().is_ok());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(150));
        signal("-STOP");
        std::thread::sleep(Duration::from_millis(150));
        signal("-CONT");
    };
    assert_eq!(status.code(), Some(3));
    let record: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let parts = record["rows"][0]["parts"].as_array().unwrap();
    for part in parts {
        assert!(part["verdict"].get("not_judged").is_some(), "{part}");
    }
}

/// Success needs something that was judged.
#[test]
fn what_cannot_be_run_is_said() {
    for (arguments, expected) in [
        (vec![], "name a target"),
        (vec!["nginx"], "no target \"nginx\""),
        (vec!["absent", "--suite", "quick"], "nothing was judged; these did not start: absent"),
        (vec!["noisy"], "its first line is \"hello\""),
        (vec!["ideal", "--suite", "some"], "use quick or full"),
        (vec!["ideal", "--folder", "/nowhere"], "/nowhere"),
        (vec!["--page", "/nowhere"], "--template"),
    ] {
        let output = torture(&arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
