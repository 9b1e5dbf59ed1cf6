//! Clients that hold connections without using them: silent, slow to send, slow to read, half-open.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use slidegate_testkit::until_true;

use crate::http2::{self, END_HEADERS, HEADERS};
use crate::victim::{Protocol, Victim, fill, until_closed};

/// More of them than there are places.
const MANY: usize = 300;
/// A budget that they use up.
const SMALL: &str = "server: {max_connections: 200, max_connections_per_peer: 150}\n";

/// Silent sockets once disabled gRPC for good, for all clients.
#[test]
fn silent_sockets_of_one_protocol_lock_nobody_out() {
    let victim = Victim::start("hostile-silent", SMALL);
    let before = victim.descriptors();
    for protocol in Protocol::ALL {
        let mut silent: Vec<_> = (0..MANY).map(|_| victim.connect(protocol)).collect();
        victim.assert_served();
        // The budget, the connections that are being refused, and one that was just closed.
        assert!(victim.descriptors() <= before + 200 + 64, "{}", victim.descriptors());
        let evicted = format!("/protocols/{}/closed/evicted", protocol.name());
        until_true("a silent one gave up its place", || {
            // Well-behaved clients need none if one is free.
            silent.push(victim.connect(protocol));
            victim.connections(&evicted) > 0
        });
        drop(silent);
        until_true("the silent ones are gone", || victim.connections("/open") < 10);
    }
}

/// A byte now and then must not look busy.
#[test]
fn clients_that_dribble_bytes_are_closed_for_those_that_ask() {
    let victim = Victim::start("hostile-dribble", SMALL);
    let dribbling = Protocol::ALL.map(|protocol| {
        let request = protocol.request();
        let streams: Vec<_> = (0..MANY / 3).map(|_| victim.connect(protocol)).collect();
        (request, streams)
    });
    // Every request is one byte short of complete in the end.
    for at in 0..12 {
        for (request, streams) in &dribbling {
            streams.iter().for_each(|mut stream| drop(stream.write(&request[at..=at])));
        }
        if at % 6 == 5 {
            victim.assert_served();
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// What the well-behaved have in their pools is closed first only if it is idle longest.
#[test]
fn a_client_that_goes_on_asking_keeps_its_connection() {
    let victim = Victim::start("hostile-busy", SMALL);
    let mut busy = victim.connect(Protocol::Resp);
    let mut ask = || {
        busy.write_all(&Protocol::Resp.request()).unwrap();
        let mut reply = [0; 12];
        busy.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"$6\r\nserved\r\n");
    };
    ask();
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.extend((0..MANY / 10).map(|_| victim.connect(Protocol::Http)));
        ask();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(victim.connections("/protocols/http/closed/evicted") > 0);
}

/// Each way of holding a connection forever ends by itself, without any shortage.
#[test]
fn each_way_of_stalling_ends() {
    let victim = Victim::start("hostile-timeouts", "");
    let silent: [(Protocol, Vec<u8>); 6] = [
        (Protocol::Http, Vec::new()),
        (Protocol::Http, b"GET /healthz HTTP/1.1\r\nhost: loc".to_vec()),
        (
            Protocol::Http,
            b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n{".to_vec(),
        ),
        (Protocol::Resp, b"*2\r\n$4\r\nECHO\r\n$6\r\nser".to_vec()),
        (Protocol::Grpc, Vec::new()),
        (Protocol::Grpc, b"PRI * HTTP/2.0\r\n\r\nSM".to_vec()),
    ];
    let mut streams: Vec<TcpStream> = silent
        .iter()
        .map(|(protocol, bytes)| {
            let mut stream = victim.connect(*protocol);
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    // The next request of a connection that was served before.
    let mut served = victim.connect(Protocol::Http);
    served.write_all(&Protocol::Http.request()).unwrap();
    assert!(served.read(&mut [0; 4096]).unwrap() > 0);
    served.write_all(b"GET /h").unwrap();
    streams.push(served);
    // A call whose message never comes is answered with an error.
    let paths =
        ["/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "/grpc.health.v1.Health/Check"];
    let calls = paths.map(|path| {
        let headers = http2::frame(HEADERS, END_HEADERS, 1, &http2::call_headers(path));
        let mut call = victim.connect(Protocol::Grpc);
        call.write_all(&[http2::preface(), headers].concat()).unwrap();
        call
    });
    // Clients that ask and do not read. Their last requests may be cut anywhere.
    let docs = b"*2\r\n$7\r\nCOMMAND\r\n$4\r\nDOCS\r\n".repeat(100);
    let page = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let mut unread: Vec<_> = [(Protocol::Resp, docs), (Protocol::Http, page)]
        .into_iter()
        .map(|(protocol, bytes)| {
            let mut stream = victim.connect(protocol);
            fill(&mut stream, &bytes, 8 << 20);
            stream
        })
        .collect();
    streams.iter_mut().for_each(until_closed);
    for mut call in calls {
        let mut replied = Vec::new();
        let mut buffer = [0; 4096];
        // DEADLINE_EXCEEDED is 4.
        while !replied.windows(11).any(|bytes| bytes == b"grpc-status") && !contains_status(&replied) {
            let read = call.read(&mut buffer).unwrap();
            assert!(read > 0, "closed after {}", replied.escape_ascii());
            replied.extend(&buffer[..read]);
        }
    }
    slidegate_testkit::until_true("the slow readers are closed", || {
        victim.connections("/protocols/resp/closed/write_timeout") == 1
            && victim.connections("/protocols/http/closed/write_timeout") == 1
    });
    unread.iter_mut().for_each(until_closed);
    for pointer in ["/protocols/http/closed/opening_timeout", "/protocols/grpc/closed/opening_timeout"] {
        assert_eq!(victim.connections(pointer), 2, "{pointer}");
    }
    for pointer in ["/protocols/http/closed/request_timeout", "/protocols/resp/closed/request_timeout"] {
        assert_eq!(victim.connections(pointer), 1, "{pointer}");
    }
}

/// `grpc-status` as HPACK writes it in Huffman code.
pub(crate) fn contains_status(bytes: &[u8]) -> bool {
    const NAME: [u8; 8] = [0x9a, 0xca, 0xc8, 0xb2, 0x12, 0x34, 0xda, 0x8f];
    bytes.windows(NAME.len()).any(|window| window == NAME)
}

/// A client that never reads once pinned megabytes of the kernel, per connection.
#[test]
fn what_a_client_does_not_read_is_bounded() {
    let victim = Victim::start("hostile-unread", "");
    let before = victim.resident();
    for (protocol, request) in [
        (Protocol::Http, b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(200)),
        (Protocol::Resp, b"*2\r\n$7\r\nCOMMAND\r\n$4\r\nDOCS\r\n".repeat(200)),
    ] {
        let streams: Vec<_> = (0..100)
            .map(|_| {
                let mut stream = victim.connect(protocol);
                fill(&mut stream, &request, 1 << 20);
                stream
            })
            .collect();
        victim.assert_served();
        let clients = streams.len();
        drop(streams);
        // By then the service has handled all that it took from them.
        slidegate_testkit::until_true("no connection is left but the one that asks", || {
            victim.connections("/open") == 1
        });
        let grown = victim.peak_resident().saturating_sub(before);
        assert!(grown < 128 << 20, "{protocol:?}: {} MB for {clients} clients", grown >> 20);
    }
}

/// A client that has closed its sending side, or is gone, must not keep its place.
#[test]
fn half_open_connections_are_closed() {
    let victim = Victim::start("hostile-half-open", "");
    for protocol in Protocol::ALL {
        let request = protocol.request();
        let halves = [&request[..0], &request[..5]];
        for half in halves {
            let mut stream = victim.connect(protocol);
            stream.write_all(half).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            until_closed(&mut stream);
        }
        // At once: no timeout was needed.
        let name = protocol.name();
        for reason in ["opening_timeout", "request_timeout", "idle_timeout"] {
            let closed = victim.connections(&format!("/protocols/{name}/closed/{reason}"));
            assert_eq!(closed, 0, "{name}: {reason}");
        }
    }
    slidegate_testkit::until_true("no connection is left but the one that asks", || {
        victim.connections("/open") == 1
    });
}
