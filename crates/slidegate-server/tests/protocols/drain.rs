//! The drain: after SIGTERM the service is not ready, and still serves everybody, on every
//! protocol.
//!
//! Nothing depends on time: the delay is an hour, and a second signal ends it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use slidegate_testkit::http::{send, try_send};
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until, until_true};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::rls::client::{Client, ask, grpc_url, user};

/// Far longer than any answer takes: what fails is an answer that never comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Requests of a client that goes on although it could know that the service is not ready.
const LATE_REQUESTS: usize = 50;

const SERVED: [&str; 6] =
    ["--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--policy", "1000000/1h per user"];

/// Sends one inline command on a connection of its own.
fn resp(address: &str, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

/// Reconnects for every request until it has seen that the service is not ready, and then for some
/// more. Each request must be served. Returns how many were.
fn reconnect(is_ready: impl Fn() -> bool, request: impl Fn() -> Result<(), String>) -> usize {
    let mut served = 0;
    let mut late = 0;
    while late < LATE_REQUESTS {
        late += usize::from(!is_ready());
        request().unwrap_or_else(|error| panic!("not served after {served} requests, {late} late: {error}"));
        served += 1;
    }
    served
}

/// A deploy must not cost a single request: load balancers learn late that an instance goes.
#[test]
fn clients_that_reconnect_are_served_until_they_could_know_better() {
    let mut server = Server::start(&[&SERVED[..], &["--drain-delay", "1h"]].concat());
    let (url, resp_address) = (server.url.clone(), server.address_of("resp").to_owned());
    let body = json!({ "attributes": { "user": "alice" } }).to_string();
    let http = move || {
        let is_ready = || send("GET", &format!("{url}/readyz"), "", "").status == 200;
        let request = || match try_send("POST", &format!("{url}/v1/check"), "", &body) {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        };
        reconnect(is_ready, request)
    };
    let redis = move || {
        let is_ready =
            || resp(&resp_address, "INFO slidegate").is_ok_and(|info| info.contains("\r\nready:1\r\n"));
        let request = || match resp(&resp_address, "RL.CHECK per-user alice") {
            Ok(reply) if reply.starts_with("*") => Ok(()),
            other => Err(format!("{other:?}")),
        };
        reconnect(is_ready, request)
    };
    let grpc_server = grpc_url(&server);
    let grpc = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let connect = async || tonic::transport::Endpoint::new(grpc_server.clone()).unwrap().connect().await;
        let is_ready = || {
            runtime.block_on(async {
                let mut health = HealthClient::new(connect().await.expect("the listener accepts"));
                let status = health.check(HealthCheckRequest::default()).await.unwrap().into_inner().status();
                status == ServingStatus::Serving
            })
        };
        let request = || {
            runtime.block_on(async {
                let mut client = Client::new(connect().await.map_err(|error| error.to_string())?);
                ask(&mut client, &[user("alice")], 1)
                    .await
                    .map_or_else(|error| Err(error.to_string()), |_| Ok(()))
            })
        };
        reconnect(is_ready, request)
    };
    let clients = [thread::spawn(http), thread::spawn(redis), thread::spawn(grpc)];
    until_true("it serves", || server.get("/readyz").status == 200);
    server.signal("TERM");
    let served = clients.map(|client| client.join().expect("every request is served"));
    assert!(served.iter().all(|served| *served >= LATE_REQUESTS), "{served:?}");
    assert!(server.is_running(), "it drains");
    server.signal("TERM");
    assert!(server.wait().success(), "the second signal ends the delay");
}

/// A keep-alive connection would otherwise stay with an instance that goes, until it is cut.
#[test]
fn while_draining_http_responses_close_their_connections_and_streams_stay_open() {
    let mut server = Server::start(&["--drain-delay", "1h"]);
    let mut kept = server.connect();
    kept.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = b"GET /v1/check?user=alice HTTP/1.1\r\nhost: localhost\r\n\r\n";
    kept.write_all(request).unwrap();
    let (mut answer, mut byte) = (String::new(), [0]);
    // To the end of the JSON.
    while !answer.ends_with("]}") {
        kept.read_exact(&mut byte).expect("the connection stays open");
        answer.push(char::from(byte[0]).to_ascii_lowercase());
    }
    assert!(answer.starts_with("http/1.1 200") && !answer.contains("connection: close"), "{answer}");
    let mut events = server.connect();
    events.set_read_timeout(Some(PATIENCE)).unwrap();
    events.write_all(b"GET /v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 15];
    events.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");

    server.signal("INT");
    until_true("it is not ready", || server.get("/readyz").status == 503);
    assert_eq!(server.get("/readyz").json()["status"], "shutting down");
    assert_eq!(server.get("/healthz").status, 200, "it lives");
    kept.write_all(request).unwrap();
    let mut rest = String::new();
    kept.read_to_string(&mut rest).unwrap();
    let rest = rest.to_lowercase();
    assert!(rest.starts_with("http/1.1 200") && rest.contains("connection: close"), "{rest}");
    let mut live = String::new();
    assert!(until("the stream goes on", || {
        let mut byte = [0; 64];
        let length = events.read(&mut byte).unwrap();
        live.push_str(&String::from_utf8_lossy(&byte[..length]));
        // Headers, then events for as long as it is served.
        (live.matches("data:").count() > 2 || length == 0).then_some(length > 0)
    }));
    server.signal("INT");
    assert!(server.wait().success());
}

/// Proxies keep one HTTP/2 connection for days. Without GOAWAY they lose calls when it is cut.
#[test]
fn while_draining_open_grpc_connections_are_told_to_reconnect() {
    let mut server = Server::start(&[&SERVED[..], &["--drain-delay", "6s"]].concat());
    let address = grpc_url(&server).trim_start_matches("http://").to_owned();
    let connect = || {
        let mut stream = TcpStream::connect(&address).expect("the listener accepts");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The preface and an empty SETTINGS frame.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        stream
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let calls = {
        let (url, is_over) = (grpc_url(&server), Arc::clone(&is_over));
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut client = Client::connect(url).await.expect("the listener accepts");
                let mut calls = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let mut answer = ask(&mut client, &[user("alice")], 1).await;
                    if answer.as_ref().is_err_and(was_never_sent) {
                        answer = ask(&mut client, &[user("alice")], 1).await;
                    }
                    answer.expect("no call is lost");
                    calls += 1;
                }
                calls
            })
        }
    };
    let calls = thread::spawn(calls);
    let open = connect();
    let is_told = thread::spawn(move || kinds(open).contains(&GOAWAY));
    // The service has read the preface of both by the time that it answers on another connection.
    assert_eq!(server.get("/healthz").status, 200);
    server.signal("TERM");
    assert!(is_told.join().unwrap(), "a GOAWAY before the connection ends");
    // It comes in the middle of the drain: who reconnects here is served.
    let newer = connect();
    assert_eq!(server.get("/readyz").status, 503);
    is_over.store(true, Ordering::Relaxed);
    assert!(calls.join().expect("no call is lost over one client's connection and the next") > 0);
    server.signal("TERM");
    assert!(kinds(newer).contains(&GOAWAY), "connections opened later get it at the end");
    assert!(server.wait().success());
}

/// Whether a call still waited in the client when GOAWAY closed its connection. Clients of gRPC
/// repeat those by themselves ("transparent retries" of gRFC A6); tonic returns them.
fn was_never_sent(status: &tonic::Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        source = error.source();
    }
    false
}

const GOAWAY: u8 = 7;

/// The kinds of the frames that arrive until the first GOAWAY, or the end.
fn kinds(mut stream: TcpStream) -> Vec<u8> {
    let mut kinds = Vec::new();
    let mut head = [0; 9];
    while !kinds.contains(&GOAWAY) && stream.read_exact(&mut head).is_ok() {
        kinds.push(head[3]);
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).unwrap();
    }
    kinds
}

/// On a developer's machine Control-C must not take seconds; anywhere else load balancers need time
/// to notice.
#[test]
fn the_delay_is_for_services_that_others_can_reach() {
    let folder = TempDir::new("drain-default");
    for (listen, args, drains) in [
        ("127.0.0.1:0", &[][..], false),
        ("127.0.0.1:0", &["--resp", "127.0.0.1:0", "--grpc", "[::1]:0"], false),
        ("0.0.0.0:0", &[], true),
        ("127.0.0.1:0", &["--grpc", "0.0.0.0:0"], true),
        ("0.0.0.0:0", &["--drain-delay", "0s"], false),
    ] {
        let log = folder.file("log", "");
        let mut server = Server::start_at(listen, &[], args, File::create(&log).unwrap());
        server.signal("TERM");
        if drains {
            until_true("it drains", || std::fs::read_to_string(&log).unwrap().contains("drain_ms=5000"));
            assert_eq!(server.get("/readyz").status, 503, "{listen} {args:?}");
            server.signal("TERM");
        }
        assert!(server.wait().success());
        let said = std::fs::read_to_string(&log).unwrap();
        assert_eq!(
            said.contains("draining: no longer ready, but serving"),
            drains,
            "{listen} {args:?}: {said}"
        );
    }
}
