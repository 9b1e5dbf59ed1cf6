//! Notifications to systemd, which a socket stands in for.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Stdio;
use std::time::Duration;

use slidegate_testkit::TempDir;
use slidegate_testkit::service::Server;

/// What fails is a message that never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The next message.
fn next(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let length = socket.recv(&mut bytes).expect("a message comes");
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

/// Waits for the message that begins so, and returns its status.
fn until(socket: &UnixDatagram, beginning: &str) -> String {
    loop {
        let message = next(socket);
        if let Some(rest) = message.strip_prefix(beginning) {
            return rest.trim_start_matches("STATUS=").trim_end().to_owned();
        }
    }
}

/// A unit that is `active` before it listens, or that hangs in `activating`, breaks what is ordered
/// after it.
#[test]
fn systemd_is_told_of_the_start_of_reloads_and_of_the_end() {
    let folder = TempDir::new("notify");
    let policies = "policies: [{name: a, quota: 1/1s}, {name: b, quota: 1/1s}]\n";
    let path = folder.file("notify", "");
    fs::remove_file(&path).unwrap();
    let abstract_name = format!("slidegate-notify-{}", std::process::id());
    let by_path = UnixDatagram::bind(&path).unwrap();
    let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
    for (socket, name) in [(by_path, path), (by_name, format!("@{abstract_name}"))] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let file = folder.file("slidegate.yaml", policies);
        let args = ["--config", &file, "--drain-delay", "2s", "--resp", "127.0.0.1:0"];
        let mut server =
            Server::start_at("127.0.0.1:0", &[("NOTIFY_SOCKET", &name)], &args, Stdio::inherit());
        let status = until(&socket, "READY=1\n");
        let resp =
            server.greeting.lines().find_map(|line| line.strip_prefix("resp       ")).unwrap().to_owned();
        let serving = format!("serving {}, {resp}; 2 policies; memory store", server.url);
        assert_eq!(status, serving);

        server.signal("HUP");
        assert_eq!(until(&socket, "RELOADING=1\n"), "");
        assert_eq!(until(&socket, "READY=1\n"), serving);
        fs::write(&file, "policies: [{name: a, quota: 9/0s}]\n").unwrap();
        until(&socket, "RELOADING=1\n");
        let rejected = format!("{serving}; config rejected, the running config stays active");
        assert_eq!(until(&socket, "READY=1\n"), rejected);
        fs::write(&file, "policies: [{name: a, quota: 9/1s}]\n").unwrap();
        until(&socket, "READY=1\n");

        server.signal("TERM");
        // The drain, the grace period of 10 s, and 10 s to export spans and to exit.
        let status = until(&socket, "STOPPING=1\nEXTEND_TIMEOUT_USEC=22000000\n");
        assert!(status.starts_with("shutting down; was serving "), "{status}");
        server.signal("TERM");
        assert!(server.wait().success());
    }
}

/// An operator looks at `systemctl status` first.
#[test]
fn the_status_says_that_the_store_is_unavailable() {
    let folder = TempDir::new("notify-status");
    let path = folder.file("notify", "");
    fs::remove_file(&path).unwrap();
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let args = ["--redis", "redis://127.0.0.1:1"];
    let _server = Server::start_at("127.0.0.1:0", &[("NOTIFY_SOCKET", &path)], &args, Stdio::inherit());
    while !next(&socket).contains("; shared store unavailable, policies use their fallbacks\n") {}
}

/// A service manager that has gone must not take the service with it.
#[test]
fn the_service_starts_without_its_service_manager() {
    let server =
        Server::start_with(&[], &[("NOTIFY_SOCKET", "/nowhere/notify"), ("WATCHDOG_USEC", "100000")]);
    assert_eq!(server.get("/readyz").status, 200);
}
