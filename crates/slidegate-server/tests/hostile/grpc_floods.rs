//! Floods of gRPC: calls that never end, header lists that grow in memory, frames of no call.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::http2::{
    DATA, END_HEADERS, HEADERS, PING, RST_STREAM, SERVING, call_headers, frame, next_health_check, preface,
};
use crate::victim::{Protocol, Victim, until_closed};

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Calls of one connection at once: as many as it may have.
const CALLS: u32 = 1000;

/// The number of the stream of a call.
fn stream(call: u32) -> u32 {
    2 * call + 1
}

/// The payload of a PING, which is sent back behind all that came before.
const LAST: [u8; 8] = *b"that-all";

/// A connection that has sent this and reads whatever it gets, and the end of the wait until the service has
/// read all of it or closes.
fn reading(victim: &Victim, sent: &[u8]) -> (TcpStream, Receiver<()>) {
    let mut stream = victim.connect(Protocol::Grpc);
    let mut replies = stream.try_clone().unwrap();
    let (has_read, all_read) = channel();
    thread::spawn(move || {
        let (mut replied, mut buffer) = (Vec::new(), [0; 65536]);
        while let Some(read) = replies.read(&mut buffer).ok().filter(|read| *read > 0) {
            replied.extend_from_slice(&buffer[..read]);
            if replied.windows(LAST.len()).any(|part| part == LAST) {
                let _ = has_read.send(());
            }
            replied.drain(..replied.len().saturating_sub(LAST.len() - 1));
        }
    });
    // It may be closed before it has sent all.
    let _ = stream.write_all(sent).and_then(|()| stream.write_all(&frame(PING, 0, 0, &LAST)));
    (stream, all_read)
}

/// Connections that have sent this, all of which the service has read, or closed them.
fn flooding(victim: &Victim, connections: usize, sent: &[u8]) -> Vec<TcpStream> {
    let begun: Vec<_> = (0..connections).map(|_| reading(victim, sent)).collect();
    let read = begun.into_iter().map(|(stream, all_read)| {
        // The sender is dropped at the end of the connection.
        let _ = all_read.recv();
        stream
    });
    read.collect()
}

/// 330 bytes on the wire once were 32 kB in memory, for each of 1000 calls of each connection: ten times
/// what a call takes without them.
#[test]
fn header_lists_of_calls_without_a_message_are_not_kept() {
    let victim = Victim::start("hostile-header-lists", "");
    let before = victim.resident();
    let flood = |first: &[u8], others: &[u8]| -> Vec<u8> {
        let calls = (1..CALLS).flat_map(|call| frame(HEADERS, END_HEADERS, stream(call), others));
        [preface(), frame(HEADERS, END_HEADERS, 1, first)].concat().into_iter().chain(calls).collect()
    };
    let grown_by = |flood: &[u8]| {
        let waits = victim.waits_during(Protocol::Grpc, || {
            let _held = flooding(&victim, 20, flood);
            victim.assert_served();
        });
        waits.assert_short();
        victim.peak_resident().saturating_sub(before)
    };
    let plain = call_headers(RATE_LIMIT);
    let without = grown_by(&flood(&plain, &plain));
    // `x: y` in the table of names, and then references of one byte to it.
    let named = [&plain[..], &[0x40, 1, b'x', 1, b'y']].concat();
    let large = [call_headers(RATE_LIMIT), vec![0xbe; 300]].concat();
    let fitting = [call_headers(RATE_LIMIT), vec![0xbe; 25]].concat();
    for headers in [large, fitting] {
        let grown = grown_by(&flood(&named, &headers));
        assert!(grown < 3 * without, "{} kB, without header lists {} kB", grown >> 10, without >> 10);
    }
}

/// The head of a message announces 64 KiB, for which nothing is kept until they are there; and what
/// is there of messages that never end is bounded for all connections together.
#[test]
fn messages_that_never_end_take_a_bounded_part_of_the_memory() {
    let victim = Victim::start("hostile-messages", "");
    let before = victim.resident();
    let headers = call_headers(RATE_LIMIT);
    let begun = |bytes: usize| {
        let message = [&[0, 0, 1, 0, 0][..], &vec![0; bytes]].concat();
        let call = |call| {
            let parts = message.chunks(16_000).flat_map(move |part| frame(DATA, 0, stream(call), part));
            frame(HEADERS, END_HEADERS, stream(call), &headers).into_iter().chain(parts).collect::<Vec<u8>>()
        };
        [preface(), (0..64).flat_map(call).collect()].concat()
    };
    for bytes in [0, 60_000] {
        let flood = begun(bytes);
        let waits = victim.waits_during(Protocol::Grpc, || {
            let _held = flooding(&victim, 60, &flood);
            victim.assert_served();
        });
        waits.assert_short();
        let grown = victim.peak_resident().saturating_sub(before);
        assert!(grown < 128 << 20, "{bytes}: {} MB", grown >> 20);
    }
}

/// A client whose every PING is answered, and that reads the answers, once took a processor for as
/// long as it liked.
#[test]
fn a_client_that_sends_pings_without_end_is_closed() {
    let victim = Victim::start("hostile-pings", "");
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(4000);
    let waits = victim.waits_during(Protocol::Grpc, || {
        let mut flooding: Vec<_> = (0..4).map(|_| victim.connect(Protocol::Grpc)).collect();
        for stream in &mut flooding {
            let _ = stream.write_all(&[&preface()[..], &pings].concat());
        }
        flooding.iter_mut().for_each(until_closed);
    });
    waits.assert_short();
    assert_eq!(victim.connections("/protocols/grpc/closed/flood"), 4);
}

/// A proxy resets the calls of its clients that are gone. A client that begins and cancels many requests must
/// not end the connection, which carries the calls of all.
#[test]
fn calls_that_are_reset_at_once_leave_the_connection_to_the_others() {
    let victim = Victim::start("hostile-resets", "");
    let headers = call_headers(RATE_LIMIT);
    let reset = |call| {
        let cancel = frame(RST_STREAM, 0, stream(call), &[0, 0, 0, 8]);
        [frame(HEADERS, END_HEADERS, stream(call), &headers), cancel].concat()
    };
    let calls: Vec<u8> = (0..CALLS).flat_map(reset).collect();
    let mut connection = victim.connect(Protocol::Grpc);
    connection.write_all(&[preface(), calls, next_health_check(stream(CALLS))].concat()).unwrap();
    let (mut replies, mut buffer) = (Vec::new(), [0; 4096]);
    while !replies.windows(SERVING.len()).any(|part| part == SERVING) {
        let read = connection.read(&mut buffer).unwrap();
        assert!(read > 0, "the connection has ended: {}", replies.escape_ascii());
        replies.extend_from_slice(&buffer[..read]);
    }
}
