//! Floods: of connections, of HTTP/2 frames, and of commands.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::http2::{
    CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, call_headers, frame, preface,
};
use crate::victim::{Protocol, Victim, fill};

/// Connecting is the cheapest attack.
#[test]
fn a_flood_of_connections_is_shed() {
    let victim = Victim::start(
        "hostile-connections",
        "server: {max_connections: 200, max_connections_per_peer: 200}\n",
    );
    let before = victim.descriptors();
    let is_over = AtomicBool::new(false);
    let opened = AtomicUsize::new(0);
    thread::scope(|scope| {
        for protocol in Protocol::ALL {
            let (victim, is_over, opened) = (&victim, &is_over, &opened);
            scope.spawn(move || {
                let mut held = Vec::new();
                // Bounded, so that the ports of this machine last.
                while !is_over.load(Ordering::Relaxed) && opened.load(Ordering::Relaxed) < 9000 {
                    let mut stream = victim.connect(protocol);
                    let _ = stream.write(&protocol.request());
                    opened.fetch_add(1, Ordering::Relaxed);
                    held.push(stream);
                    if held.len() > 150 {
                        held.clear();
                    }
                }
            });
        }
        for _ in 0..5 {
            victim.assert_served();
        }
        assert!(victim.descriptors() <= before + 200 + 100, "{}", victim.descriptors());
        is_over.store(true, Ordering::Relaxed);
    });
    victim.assert_served();
}

/// Frames cost a client nothing; each of these floods has brought down a server.
#[test]
fn floods_of_http2_frames_harm_nobody_else() {
    let victim = Victim::start("hostile-frames", "");
    let before = victim.resident();
    let headers = call_headers("/grpc.health.v1.Health/Check");
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(1000);
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]).repeat(1000);
    // Rapid reset (CVE-2023-44487): every stream is opened and reset.
    let resets: Vec<u8> = (0..50_000u32)
        .flat_map(|call| {
            let stream = 2 * call + 1;
            [frame(HEADERS, END_HEADERS, stream, &headers), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])]
                .concat()
        })
        .collect();
    // A header block that never ends (CVE-2024-27316).
    let endless = [
        frame(HEADERS, END_STREAM, 1, &headers),
        frame(CONTINUATION, 0, 1, &b"\x00\x01a\x01b".repeat(3000)).repeat(500),
    ]
    .concat();
    let empty =
        [frame(HEADERS, END_STREAM, 1, &headers), frame(CONTINUATION, 0, 1, &[]).repeat(500_000)].concat();
    for (name, flood) in [
        ("ping", pings),
        ("settings", settings),
        ("reset", resets),
        ("continuation", endless),
        ("empty", empty),
    ] {
        thread::scope(|scope| {
            for is_read in [false, true] {
                let mut stream = victim.connect(Protocol::Grpc);
                stream.write_all(&preface()).unwrap();
                let flood = &flood;
                if is_read {
                    let mut reading = stream.try_clone().unwrap();
                    scope.spawn(move || {
                        let mut buffer = [0; 65536];
                        while reading.read(&mut buffer).is_ok_and(|read| read > 0) {}
                    });
                }
                scope.spawn(move || {
                    fill(&mut stream, flood, flood.len().max(4 << 20));
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                });
            }
            victim.assert_served();
        });
        victim.assert_served();
        let grown = victim.resident().saturating_sub(before);
        assert!(grown < 64 << 20, "{name}: {} MB", grown >> 20);
    }
}

/// A client that streams commands once delayed its neighbours by 140 ms. How many commands are carried
/// out between two turns of a neighbour is counted in `resp/connection.rs`.
#[test]
fn giant_pipelines_are_served_beside_everybody_else() {
    let victim = Victim::start("hostile-pipelines", "");
    let before = victim.resident();
    let commands = b"*3\r\n$8\r\nRL.CHECK\r\n$1\r\np\r\n$5\r\nalice\r\n".repeat(2000);
    thread::scope(|scope| {
        // More than there are workers, so that each has one.
        for _ in 0..2 * thread::available_parallelism().map_or(2, usize::from) {
            let mut stream = victim.connect(Protocol::Resp);
            let mut reading = stream.try_clone().unwrap();
            scope.spawn(move || {
                let mut buffer = [0; 65536];
                while reading.read(&mut buffer).is_ok_and(|read| read > 0) {}
            });
            let commands = &commands;
            scope.spawn(move || {
                fill(&mut stream, commands, 8 << 20);
                let _ = stream.shutdown(std::net::Shutdown::Both);
            });
        }
        for _ in 0..5 {
            victim.assert_served();
        }
    });
    victim.assert_served();
    let grown = victim.peak_resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{} MB", grown >> 20);
}

/// A batch was one step: neighbours waited for all of its decisions, and its reply was made before any
/// of it was sent.
#[test]
fn batches_under_many_policies_are_decided_beside_everybody_else() {
    const POLICIES: usize = 200;
    let many: Vec<_> =
        (0..POLICIES).map(|n| format!("{{name: 'm{n}', scope: [user], quota: '1000000/1h'}}")).collect();
    let victim = Victim::start_under("hostile-batches", &many.join(", "));
    let before = victim.resident();
    let requests = vec![r#"{"attributes":{"user":"mallory"}}"#; 300].join(",");
    let body = format!(r#"{{"requests":[{requests}]}}"#);
    let batch = format!(
        "POST /v1/check/batch HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for protocol in Protocol::ALL {
        let waits = victim.waits_during(protocol, || {
            thread::scope(|scope| {
                for number in 0..6 {
                    let mut stream = victim.connect(Protocol::Http);
                    let batch = &batch;
                    scope.spawn(move || {
                        stream.write_all(batch.as_bytes()).unwrap();
                        let (mut buffer, mut replied) = (vec![0; 65536], 0);
                        // Half of them read a part of the reply only.
                        while number % 2 == 0 || replied < 100_000 {
                            let read = stream.read(&mut buffer).unwrap();
                            replied += read;
                            if read == 0 {
                                break;
                            }
                        }
                        let _ = stream.shutdown(std::net::Shutdown::Both);
                    });
                }
            });
        });
        waits.assert_short();
    }
    let grown = victim.peak_resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{} MB", grown >> 20);
}
