//! `slidegate health`, as container engines run it.

use std::net::TcpListener;
use std::process::Command;

use slidegate_testkit::certificates::Authority;
use slidegate_testkit::service::{Server, slidegate, text};
use slidegate_testkit::{TempDir, ports, until_true};

/// The exit code and everything printed. An engine asks again as well if an answer takes a second.
fn health(command: &mut Command) -> (i32, String) {
    let mut answer = None;
    until_true("an answer in time", || {
        let (code, printed) = health_once(command);
        let is_late = printed.contains("timeout") || printed.contains("temporarily unavailable");
        answer = Some((code, printed));
        !is_late
    });
    answer.unwrap()
}

fn health_once(command: &mut Command) -> (i32, String) {
    let output = command.output().expect("the binary starts");
    let printed = text(&output.stdout) + &text(&output.stderr);
    (output.status.code().expect("it exits by itself"), printed)
}

fn of(args: &[&str]) -> (i32, String) {
    health(slidegate().arg("health").args(args))
}

fn port(server: &Server) -> &str {
    server.address.rsplit_once(':').unwrap().1
}

/// A container without a shell has nothing else to ask with, and its address is only in its
/// settings.
#[test]
fn the_address_is_found_as_the_service_finds_it() {
    let server = Server::start(&[]);
    let ready = (0, format!("ready: {}/readyz\n", server.url));
    assert_eq!(of(&["--listen", &server.address]), ready);
    assert_eq!(of(&["--listen", &server.address, "--live"]), (0, format!("ok: {}/healthz\n", server.url)));
    let everywhere = format!("0.0.0.0:{}", port(&server));
    assert_eq!(health(slidegate().arg("health").env("SLIDEGATE_LISTEN", &everywhere)), ready);
    let envoy = [("HOST", "127.0.0.1"), ("PORT", port(&server))];
    assert_eq!(health(slidegate().args(["health", "--envoy-env"]).envs(envoy)), ready);
    // The service started before somebody broke the rest of the file.
    let folder = TempDir::new("health");
    let file =
        folder.file("a.yaml", format!("server: {{listen: '{everywhere}'}}\npolicies: [{{limit: -1}}]\n"));
    assert_eq!(of(&["--config", &file]), ready);
    assert_eq!(health(slidegate().arg("health").env("SLIDEGATE_CONFIG", &file)), ready);
    // A proxy is for other machines.
    assert_eq!(
        health(slidegate().args(["health", "--config", &file]).env("http_proxy", "http://127.0.0.1:1")),
        ready
    );
}

/// Where HTTP requires client certificates, a probe inside the container has none.
#[test]
fn a_unix_socket_is_asked_where_tcp_requires_a_certificate() {
    let folder = TempDir::new("health-socket");
    let authority = Authority::new("authority");
    let (cert, key) = authority.sign(&["limits.test"]).write(&folder, "server");
    let ca = folder.file("clients.crt", authority.pem());
    let socket = folder.path().join("http.sock");
    let text = format!(
        "policies: [{{name: p, quota: 1/1m}}]\n\
         server: {{socket: {}, cert_file: {cert}, key_file: {key}, client_ca_file: {ca}}}\n",
        socket.display()
    );
    let file = folder.file("slidegate.yaml", text);
    let server = Server::start(&["--config", &file]);
    let socket = socket.display();
    assert_eq!(of(&["--config", &file]), (0, format!("ready: {socket}:/readyz\n")));
    assert_eq!(of(&["--config", &file, "--live"]), (0, format!("ok: {socket}:/healthz\n")));
    drop(server);
    let (code, line) = of(&["--config", &file]);
    assert_eq!(code, 1);
    assert!(line.contains(&format!("no response from {socket}:/readyz: ")), "{line}");
}

/// A container runtime knows an unhealthy instance by its exit code, with the reason in the
/// engine's log.
#[test]
fn an_instance_that_is_not_ready_is_unhealthy_with_the_reason_in_one_line() {
    let server = Server::start(&["--drain-delay", "1h"]);
    server.signal("TERM");
    until_true("it drains", || server.get("/readyz").status == 503);
    let not_ready = format!("{}/readyz returned 503: shutting down\n", server.url);
    assert_eq!(of(&["--listen", &server.address]), (1, not_ready));
    assert_eq!(of(&["--listen", &server.address, "--live"]).0, 0, "it lives");

    let nobody = format!("127.0.0.1:{}", ports::free());
    let (code, line) = of(&["--listen", &nobody]);
    assert_eq!(code, 1);
    assert!(line.starts_with(&format!("no response from http://{nobody}/readyz: ")), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    // One that hangs: it accepts, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (code, line) = health_once(slidegate().args(["health", "--listen", &address]));
    assert_eq!(code, 1);
    assert!(line.contains("timeout"), "{line}");
}

/// What cannot be asked is not healthy, and says what to do.
#[test]
fn an_address_that_cannot_be_found_is_explained() {
    let folder = TempDir::new("health-invalid");
    let broken = folder.file("broken.yaml", "server: {listen\n");
    let (code, line) = of(&["--config", &broken]);
    assert_eq!(code, 1);
    assert!(
        line.starts_with(&format!("{broken}:")) && line.ends_with("or give the address with --listen\n"),
        "{line}"
    );
    let wrong = folder.file("wrong.yaml", "\nserver: {listen: here}\n");
    assert_eq!(
        of(&["--config", &wrong]),
        (
            1,
            format!(
                "{wrong}:2: server: invalid listen `here`: must be an IP address and a port, for example \
                 `127.0.0.1:7979` for this machine, or `0.0.0.0:7979` for all; or give the address with --listen\n"
            )
        )
    );
    assert_eq!(
        of(&["--listen", "127.0.0.1:0"]),
        (1, "the port of 127.0.0.1:0 is chosen at the start; give it with --listen\n".to_owned())
    );
}

/// An outage of Redis must not make an engine replace all instances.
#[test]
fn an_unavailable_store_is_reported_and_healthy() {
    let server = Server::start(&["--redis", "redis://127.0.0.1:1"]);
    let expected = format!("ready: {}/readyz, but the shared store is unavailable\n", server.url);
    until_true("it is degraded", || of(&["--listen", &server.address]) == (0, expected.clone()));
}
