//! The watchdog of systemd: it is fed by self-checks that came back.

use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};

/// A service that hangs must be restarted. Here its decisions hang, because its store does and the
/// deadline is far longer than the watchdog's timeout.
#[test]
fn the_watchdog_is_fed_only_while_decisions_come_back() {
    let redis = RedisServer::start();
    let folder = TempDir::new("watchdog");
    let path = folder.file("notify", "");
    fs::remove_file(&path).unwrap();
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let next = || {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).expect("a message comes");
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let until_fed = || while next() != "WATCHDOG=1\n" {};
    let policies = "policies: [{name: a, scope: [user, ip], quota: 1/1h}]\n";
    let config = folder
        .file("slidegate.yaml", format!("store: {{redis: '{}', deadline: 60s}}\n{policies}", redis.url()));
    let log = folder.file("log", "");
    let variables = [("NOTIFY_SOCKET", path.as_str()), ("WATCHDOG_USEC", "2000000")];
    let server =
        Server::start_at("127.0.0.1:0", &variables, &["--config", &config], File::create(&log).unwrap());
    until_fed();
    until_fed();
    assert_eq!(server.get("/v1/top").json()["keys"].as_array().map_or(0, Vec::len), 0, "no key was used");

    redis.pause();
    let failures = || {
        let said = fs::read_to_string(&log).unwrap();
        said.matches("the self-check for the watchdog did not complete in time").count()
    };
    until_true("a self-check fails", || failures() > 0);
    socket.set_nonblocking(true).unwrap();
    let mut bytes = [0; 1024];
    while socket.recv(&mut bytes).is_ok() {}
    until_true("another one fails", || failures() > 1);
    while let Ok(length) = socket.recv(&mut bytes) {
        assert_ne!(&bytes[..length], b"WATCHDOG=1\n", "a service that hangs");
    }
    socket.set_nonblocking(false).unwrap();
    redis.resume();
    until_fed();
}
