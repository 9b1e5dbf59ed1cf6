//! Clients of gRPC that do not take their replies: they read nothing, or they read every frame and
//! grant no room for more (HTTP/2 flow control).

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::http2::{
    self, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, preface,
};
use crate::stalling::contains_status;
use crate::victim::{Protocol, Victim, until_closed};

/// Clients of each kind.
const CLIENTS: usize = 10;
/// Calls of reflection that one connection may have at once.
const REFLECTIONS: u32 = 4;

/// Settings that leave this much room for each reply.
fn room(bytes: u32) -> Vec<u8> {
    const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
    frame(SETTINGS, 0, 0, &[&INITIAL_WINDOW_SIZE[..], &bytes.to_be_bytes()].concat())
}

/// Health checks on this many streams, the first of which has this number.
fn health_checks(first: u32, calls: u32) -> Vec<u8> {
    let headers = http2::call_headers("/grpc.health.v1.Health/Check");
    let call = |stream| {
        [frame(HEADERS, END_HEADERS, stream, &headers), frame(DATA, END_STREAM, stream, &[0; 5])].concat()
    };
    (0..calls).flat_map(|nth| call(first + 2 * nth)).collect()
}

/// A call of reflection that asks this often for a description of some kilobytes.
fn reflection(stream: u32, flags: u8, asks: usize) -> Vec<u8> {
    let headers = http2::call_headers("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    let service = b"envoy.service.ratelimit.v3.RateLimitService";
    let length = u8::try_from(service.len()).unwrap();
    // Field 4 of the message is the symbol that is asked for.
    let ask = [&[0, 0, 0, 0, length + 2, 0x22, length], &service[..]].concat();
    [frame(HEADERS, END_HEADERS, stream, &headers), frame(DATA, flags, stream, &ask.repeat(asks))].concat()
}

/// Calls of reflection whose replies are many times as large as the calls.
fn reflections(first: u32, calls: u32) -> Vec<u8> {
    (0..calls).flat_map(|nth| reflection(first + 2 * nth, END_STREAM, 240)).collect()
}

/// Operators pay for what clients leave unread: it must be little, and not for long.
#[test]
fn grpc_clients_that_take_no_replies_are_closed() {
    let victim = Victim::start("hostile-grpc-unread", "");
    let before = victim.resident();
    let much_room = frame(WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes());
    let reads_nothing = [preface(), room(1 << 30), much_room, reflections(1, REFLECTIONS)].concat();
    let reads_frames = [
        // The usual room, for more replies than fit.
        [preface(), reflections(1, REFLECTIONS)].concat(),
        [preface(), room(1), reflections(1, REFLECTIONS), health_checks(101, 900)].concat(),
        [preface(), room(0), health_checks(1, 1)].concat(),
    ];
    let connect = |bytes: &[u8]| -> Vec<TcpStream> {
        let streams = (0..CLIENTS).map(|_| {
            let mut stream = victim.connect(Protocol::Grpc);
            stream.write_all(bytes).unwrap();
            stream
        });
        streams.collect()
    };
    let _silent = connect(&reads_nothing);
    let mut reading: Vec<_> = reads_frames.iter().flat_map(|bytes| connect(bytes)).collect();
    victim.assert_served();
    // They read every frame, until the service closes the connection.
    reading.iter_mut().for_each(until_closed);
    let closed = || victim.connections("/protocols/grpc/closed/write_timeout");
    slidegate_testkit::until_true("all of them are closed", || closed() == 4 * CLIENTS as u64);
    victim.assert_served();
    // The highest value: a loaded service may read the calls long after they were sent.
    let grown = victim.peak_resident().saturating_sub(before);
    assert!(grown < 48 << 20, "{} MB for {} clients", grown >> 20, 4 * CLIENTS);
}

/// A reply of reflection is far larger than its request: clients must not have any number of them
/// made for them at once.
#[test]
fn reflection_calls_of_a_connection_are_bounded() {
    let victim = Victim::start("hostile-reflection", "");
    let mut stream = victim.connect(Protocol::Grpc);
    let mut replied = Vec::new();
    let mut until = |stream: &mut TcpStream, done: &dyn Fn(&[u8]) -> bool| {
        let mut buffer = [0; 65536];
        while !done(&replied) {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "closed after {} bytes", replied.len());
            replied.extend(&buffer[..read]);
        }
        contains_status(&replied)
    };
    let described = |replied: &[u8]| {
        let name = b"envoy/service/ratelimit/v3/rls.proto";
        replied.windows(name.len()).filter(|bytes| bytes == name).count()
    };
    stream.write_all(&preface()).unwrap();
    for nth in 0..REFLECTIONS {
        stream.write_all(&reflection(1 + 2 * nth, 0, 1)).unwrap();
    }
    let has_ended = until(&mut stream, &|replied| described(replied) == REFLECTIONS as usize);
    assert!(!has_ended, "all of them are open");
    stream.write_all(&reflection(101, 0, 1)).unwrap();
    until(&mut stream, &contains_status);
    // One that has ended makes room for another.
    stream.write_all(&frame(RST_STREAM, 0, 1, &8u32.to_be_bytes())).unwrap();
    stream.write_all(&reflection(103, 0, 1)).unwrap();
    until(&mut stream, &|replied| described(replied) == REFLECTIONS as usize + 1);
}
