//! Bounds that all clients share: in each case one attacker fills one, and a victim beside it is served.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use slidegate_testkit::service::{Server, Token};
use slidegate_testkit::until_true;
use socket2::{Domain, Socket, Type};

use crate::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, call_headers, frame, preface};
use crate::victim::{Protocol, Victim, fill};

/// The attacker's address. Victims have the usual one of loopback.
const ATTACKER: [u8; 4] = [127, 0, 0, 9];
const VICTIM: [u8; 4] = [127, 0, 0, 1];
/// What the unfinished requests of all connections of a protocol may hold, and those of one address.
const ALL: u64 = 32 << 20;
const HALF: u64 = ALL / 2;

/// A way of holding memory by requests that have not arrived whole.
struct Unfinished {
    name: &'static str,
    protocol: Protocol,
    /// What each of so many connections sends, in vain.
    attack: Vec<u8>,
    connections: usize,
    /// A request in two parts, and what its reply contains.
    request: [Vec<u8>; 2],
    reply: &'static [u8],
}

fn connect(victim: &Victim, protocol: Protocol, from: [u8; 4]) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    let to: SocketAddr = victim.address(protocol).parse().unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// A command as an array of bulk strings.
fn command(arguments: &[&[u8]]) -> Vec<u8> {
    let head = format!("*{}\r\n", arguments.len()).into_bytes();
    let bulk = |argument: &&[u8]| [format!("${}\r\n", argument.len()).as_bytes(), argument, b"\r\n"].concat();
    head.into_iter().chain(arguments.iter().flat_map(bulk)).collect()
}

fn batch(requests: usize) -> Vec<u8> {
    let one = |n| json!({ "attributes": { "user": format!("victim-{n}") } });
    json!({ "requests": (0..requests).map(one).collect::<Vec<_>>() }).to_string().into_bytes()
}

fn http(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("{head} HTTP/1.1\r\nhost: localhost\r\n").as_bytes(), body].concat()
}

fn halves(request: &[u8]) -> [Vec<u8>; 2] {
    let (first, second) = request.split_at(request.len() / 2);
    [first.to_vec(), second.to_vec()]
}

fn unfinished() -> Vec<Unfinished> {
    let (body, post) = (batch(900), "POST /v1/check/batch");
    let whole = http(post, &[format!("content-length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat());
    let kib_64 = [b'x'; 60_000];
    let echo = command(&[b"ECHO", &kib_64]);
    let chunks = [&b"3e8\r\n"[..], &[b' '; 1000], b"\r\n"].concat().repeat(250);
    let call = call_headers("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let message = [&[0, 0, 1, 0, 0][..], &kib_64].concat();
    let late_call = |stream| {
        let parts = message.chunks(16_000).flat_map(move |part| frame(DATA, 0, stream, part));
        frame(HEADERS, END_HEADERS, stream, &call).into_iter().chain(parts).collect::<Vec<u8>>()
    };
    let health = call_headers("/grpc.health.v1.Health/Check");
    let (http_served, echoed) = (&b"HTTP/1.1 200 OK"[..], &b"xxxx\r\n"[..]);
    vec![
        Unfinished {
            name: "bodies",
            protocol: Protocol::Http,
            attack: http(post, &[b"content-length: 262000\r\n\r\n", &[b' '; 261_000][..]].concat()),
            connections: 300,
            request: halves(&whole),
            reply: http_served,
        },
        Unfinished {
            name: "bodies in chunks",
            protocol: Protocol::Http,
            attack: http(post, &[b"transfer-encoding: chunked\r\n\r\n", &chunks[..]].concat()),
            connections: 300,
            request: halves(&whole),
            reply: http_served,
        },
        Unfinished {
            name: "heads",
            protocol: Protocol::Http,
            attack: http("GET /healthz", &[b"x: ", &kib_64[..]].concat()),
            connections: 400,
            request: halves(&http("GET /healthz", &[b"x: ", &kib_64[..50_000], b"\r\n\r\n"].concat())),
            reply: http_served,
        },
        Unfinished {
            name: "queues",
            protocol: Protocol::Resp,
            attack: [command(&[b"MULTI"]), echo.repeat(4)].concat(),
            connections: 150,
            request: [
                [command(&[b"MULTI"]), echo.repeat(2)].concat(),
                [echo.clone(), command(&[b"EXEC"])].concat(),
            ],
            reply: b"*3\r\n$60000\r\n",
        },
        Unfinished {
            name: "commands",
            protocol: Protocol::Resp,
            attack: echo[..echo.len() - 10].to_vec(),
            connections: 400,
            request: halves(&echo),
            reply: echoed,
        },
        Unfinished {
            name: "messages",
            protocol: Protocol::Grpc,
            attack: [preface(), (0..64).flat_map(|call| late_call(2 * call + 1)).collect()].concat(),
            connections: 60,
            request: [
                [preface(), frame(HEADERS, END_HEADERS, 1, &health), frame(DATA, 0, 1, &[0; 2])].concat(),
                frame(DATA, END_STREAM, 1, &[0; 3]),
            ],
            reply: &crate::http2::SERVING,
        },
    ]
}

/// Sends a request in two parts, of which the first has arrived before the second is sent.
fn assert_replied(mut stream: TcpStream, row: &Unfinished, who: &str) {
    let Unfinished { name, request: [first, second], reply, .. } = row;
    stream.set_nodelay(true).unwrap();
    stream.write_all(first).unwrap_or_else(|error| panic!("{name}: {who}: {error}"));
    std::thread::sleep(Duration::from_millis(20));
    stream.write_all(second).unwrap_or_else(|error| panic!("{name}: {who}: {error}"));
    let (mut replied, mut buffer) = (Vec::new(), [0; 65536]);
    while !replied.windows(reply.len()).any(|bytes| bytes == *reply) {
        let read = stream.read(&mut buffer).unwrap_or_else(|error| panic!("{name}: {who}: {error}"));
        assert!(read > 0, "{name}: {who} is closed after {}", replied.escape_ascii());
        replied.extend(&buffer[..read]);
    }
}

/// Requests that never end once took 2 GB. What they hold is bounded for all connections together, one
/// address gets half of it, and gives it back; others are served, and so is the next one of its own.
#[test]
fn requests_that_never_end_take_a_bounded_part_of_the_memory_and_nobody_elses() {
    for row in unfinished() {
        let name = row.name;
        let victim = Victim::start("hostile-unfinished", "");
        let protocol = format!("{:?}", row.protocol).to_lowercase();
        let of = |name: &str| victim.server.count(&format!("{name}{{protocol=\"{protocol}\"}}"));
        let held = || of("slidegate_unfinished_request_bytes");
        let before = victim.resident();
        let attack = || {
            let mut stream = connect(&victim, row.protocol, ATTACKER);
            fill(&mut stream, &row.attack, row.attack.len());
            stream
        };
        let mut attacking: VecDeque<_> = (0..row.connections).map(|_| attack()).collect();
        until_true(&format!("the bound of {name} is reached"), || {
            let is_reached = of("slidegate_unfinished_requests_refused_total") > 0;
            if !is_reached {
                // A slow machine takes only a part of each, or closes the first before the last has come.
                attacking.push_back(attack());
                attacking.pop_front();
            }
            is_reached
        });
        assert!(held() <= HALF, "{name}: {} bytes of one address", held());
        assert_replied(connect(&victim, row.protocol, VICTIM), &row, "another address");
        assert_replied(connect(&victim, row.protocol, ATTACKER), &row, "the same address");
        victim.assert_served();
        let grown = victim.peak_resident().saturating_sub(before);
        assert!(grown < 80 << 20, "{name}: {} MB", grown >> 20);
        drop(attacking);
        until_true("what was held is given back", || held() == 0);
    }
}

/// A client that sends large requests now and then must not count as one that never ends them.
#[test]
fn what_a_connection_has_sent_whole_is_not_held() {
    let victim = Victim::start("hostile-held", "");
    let held = || {
        let bytes = |protocol| format!("slidegate_unfinished_request_bytes{{protocol=\"{protocol}\"}}");
        ["http", "resp", "grpc"].map(|protocol| victim.server.count(&bytes(protocol)))
    };
    let echo = command(&[b"ECHO", &[b'x'; 60_000]]);
    let body = batch(900);
    let length = format!("content-length: {}\r\n\r\n", body.len());
    let whole = http("POST /v1/check/batch", &[length.as_bytes(), &body].concat());
    let mut open = Vec::new();
    for (protocol, request, ends) in [(Protocol::Resp, &echo, 60_010), (Protocol::Http, &whole, 40_000)] {
        for _ in 0..50 {
            let mut stream = victim.connect(protocol);
            stream.write_all(request).unwrap();
            let (mut read, mut buffer) = (0, [0; 65536]);
            while read < ends {
                let more = stream.read(&mut buffer).unwrap();
                assert!(more > 0, "{protocol:?} is closed after {read} bytes");
                read += more;
            }
            open.push(stream);
        }
    }
    until_true("nothing is held", || held() == [0; 3]);
}

/// A policy whose keys an attacker invents, and one of a victim.
const POLICIES: &str = "\
    {name: attacked, scope: [user], when: {app: a}, quota: 1/1h, notify: [100%], \
     escalate: {after: 1 denial in 1h, block: 1h}}, \
    {name: other, scope: [user], when: {app: b}, quota: 1/1h, notify: [100%], \
     escalate: {after: 1 denial in 1h, block: 1h}}";

fn check(server: &Server, app: &str, user: &str) -> Value {
    let attributes = json!({ "attributes": { "app": app, "user": user } });
    server.post("/v1/check", &attributes.to_string()).json()
}

/// Denies so many invented keys once each.
fn deny_invented(server: &Server, keys: usize) {
    for first in (0..keys).step_by(500) {
        let one = |n: usize| json!({ "attributes": { "app": "a", "user": format!("invented-{}", n / 2) } });
        let requests: Vec<_> = (2 * first..2 * (first + 500).min(keys)).map(one).collect();
        assert_eq!(server.post("/v1/check/batch", &json!({ "requests": requests }).to_string()).status, 200);
    }
}

/// 66,000 invented keys once ended the notifications of all policies for a month, and 500 the blocks.
#[test]
fn invented_keys_of_one_policy_leave_notifications_and_blocks_to_the_others_and_to_itself() {
    let victim = Victim::start_under("hostile-invented", POLICIES);
    let server = &victim.server;
    deny_invented(server, 70_000);
    let notified = |policy| {
        let name = format!("slidegate_notifications_total{{policy=\"{policy}\"}}");
        let page = server.get("/metrics").body;
        let value = page.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or(0)
    };
    let mut last = u64::MAX;
    until_true("the queue is empty", || std::mem::replace(&mut last, notified("attacked")) == last);
    let blocks = || server.count("slidegate_escalations_total");
    until_true("the attacked policy has its blocks", || blocks() >= 250);
    for (app, policy) in [("b", "other"), ("a", "attacked")] {
        let before = notified(policy);
        assert_eq!(check(server, app, "known")["allowed"], true);
        until_true("the key is reported", || notified(policy) > before);
    }
    assert_eq!(check(server, "b", "known")["reason"], "over_limit");
    until_true("the key is blocked", || check(server, "b", "known")["reason"] == "blocked");
    until_true("the block is counted", || blocks() > 250);
    assert!(server.count("slidegate_escalations_dropped_total{reason=\"too_many_blocks\"}") > 0);
}

/// The tokens of two customers and of an operator, by their names.
fn tokens(names: [&str; 3]) -> (Vec<String>, String) {
    let made = names.map(|name| {
        let Token { secret, sha256, .. } = Token::new(name, "read");
        let key = if name == "ops" { String::new() } else { format!("key: p/{name}, ") };
        (secret, format!("{{name: {name}, scope: read, {key}sha256: {sha256}}}"))
    });
    let (tokens, config): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    (tokens, format!("admin: {{tokens: [{}]}}\n", config.join(", ")))
}

/// A customer once opened all event streams, and operators saw nothing.
#[test]
fn the_streams_of_one_token_leave_others_to_customers_and_operators() {
    let (tokens, config) = tokens(["acme", "other", "ops"]);
    let victim = Victim::start("hostile-streams", &config);
    let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
    let open = |token: &str, path: &str| {
        let mut stream = victim.connect(Protocol::Http);
        let fields = bearer(token);
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n{fields}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut status = String::new();
        let mut stream = BufReader::new(stream);
        stream.read_line(&mut status).unwrap();
        status.contains(" 200 ").then_some(stream)
    };
    let own = |name: &str| format!("/v1/events?policy=p&key={name}");
    let of_acme: Vec<_> = (0..70).filter_map(|_| open(&tokens[0], &own("acme"))).collect();
    assert_eq!(of_acme.len(), 32);
    let refused = victim.server.ask_with(
        &format!("accept: text/event-stream\r\n{}", bearer(&tokens[0])),
        "GET",
        &own("acme"),
        None,
    );
    let detail = "`acme` has as many streams open as it leaves free for others; close one";
    assert_eq!((refused.status, refused.json()["detail"].as_str()), (503, Some(detail)));
    let victims = [(1, own("other")), (2, "/v1/events".to_owned()), (2, "/v1/live".to_owned())];
    let served: Vec<_> =
        victims.iter().map(|(token, path)| open(&tokens[*token], path).expect(path)).collect();
    let ops = bearer(&tokens[2]);
    let metrics = victim.server.ask_with(&ops, "GET", "/metrics", None).body;
    for (tokens, refused) in [("keys", 39), ("operators", 0)] {
        let line = format!("slidegate_streams_refused_total{{tokens=\"{tokens}\"}} {refused}\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    drop((of_acme, served));
    until_true("streams that are closed make room", || open(&tokens[0], &own("acme")).is_some());
}
