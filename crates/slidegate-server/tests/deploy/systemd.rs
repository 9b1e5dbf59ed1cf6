//! The systemd unit, judged by systemd's own tools. They need no running systemd.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::json;
use slidegate::clock::parse_window;
use slidegate_testkit::http::try_send;
use slidegate_testkit::process::{Process, command};
use slidegate_testkit::service::{slidegate, text};
use slidegate_testkit::{TempDir, ports, until};

const UNIT: &str = include_str!("../../../../deploy/systemd/slidegate.service");

/// The largest exposure level that is accepted, in tenths: 0 is the least, 100 the most. Below 2 is
/// "OK".
const MAX_EXPOSURE: &str = "15";

/// The value of a setting.
fn setting(name: &str) -> &str {
    let line = UNIT.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("{name} is missing"))
}

/// Runs systemd-analyze on the unit, with the binary where it is.
fn analyze(args: &[&str]) -> Output {
    let folder = TempDir::new("systemd");
    let binary = slidegate().get_program().to_str().unwrap().to_owned();
    let unit = UNIT.replace("/usr/bin/slidegate", &format!("\"{binary}\""));
    let output =
        Command::new("systemd-analyze").args(args).arg(folder.file("slidegate.service", unit)).output();
    output.expect("systemd-analyze is missing: install the Debian package `systemd`")
}

/// A line that systemd does not know is ignored when the unit is loaded, and with it what it was to
/// protect from.
#[test]
fn the_unit_is_valid_and_exposes_little() {
    let output = analyze(&["verify"]);
    assert_eq!(text(&output.stdout) + &text(&output.stderr), "");
    assert!(output.status.success());
    let threshold = format!("--threshold={MAX_EXPOSURE}");
    let output = analyze(&["security", "--offline=true", "--no-pager", &threshold]);
    assert!(output.status.success(), "{}", text(&output.stdout));
}

/// A service that is killed in its shutdown loses the requests that the shutdown was to save.
#[test]
fn the_unit_waits_longer_than_a_shutdown_takes() {
    assert_eq!((setting("Type"), setting("NotifyAccess")), ("notify", "main"));
    let stop = Duration::from_secs(setting("TimeoutStopSec").parse().unwrap());
    // The drain delay and the grace period by default, and the export of spans.
    let shutdown = ["5s", "10s", "10s"].map(|span| parse_window(span).unwrap()).iter().sum::<Duration>();
    assert!(stop >= shutdown, "{stop:?}");
    assert!(setting("WatchdogSec").parse::<u64>().unwrap() >= 10, "a busy machine is not a hanging service");
}

/// The unit hides most of /proc, where programs look for their processors and their clock.
#[test]
fn the_service_runs_where_proc_has_only_processes() {
    let folder = TempDir::new("systemd-proc");
    let dir = Path::new(&folder.file("anchor", "")).parent().unwrap().to_owned();
    let address = format!("127.0.0.1:{}", ports::free());
    let script = "mount -t proc -o subset=pid,hidepid=invisible proc /proc && ! test -e /proc/cpuinfo && \
                  exec \"$0\" serve --listen \"$1\"";
    let mut command = command("unshare");
    command.args(["--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]);
    command.arg(slidegate().get_program()).arg(&address).stdout(Stdio::null());
    let mut service = Process::start(command, &dir, "util-linux");
    let url = format!("http://{address}/v1/check?user=alice");
    let answer = until("it serves", || {
        assert!(!service.has_ended(), "it starts");
        try_send("GET", &url, "", "").ok()
    });
    assert_eq!((answer.status, &answer.json()["remaining"]), (200, &json!(99)));
}
