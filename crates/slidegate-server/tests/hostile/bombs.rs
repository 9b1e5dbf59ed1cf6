//! Small inputs that would become large ones.

use std::io::{Read, Write};

use slidegate_testkit::until_true;

use crate::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, call_headers, frame, preface};
use crate::victim::{Protocol, Victim};

/// Compressed bodies are not accepted, so that nothing is unpacked.
#[test]
fn compressed_bodies_are_refused_and_not_unpacked() {
    let victim = Victim::start("hostile-gzip", "");
    let before = victim.resident();
    // The head of a gzip stream; what follows does not matter if nobody unpacks it.
    let zipped = "\u{1f}\u{8b}\u{8}\0\0\0\0\0\0\u{3}".repeat(1000);
    let headers = "content-encoding: gzip\r\ncontent-type: application/json\r\n";
    let refused = victim.server.ask_with(headers, "POST", "/v1/check", Some(&zipped));
    assert!((400..500).contains(&refused.status), "{}: {}", refused.status, refused.body);

    // A message with the flag of compression.
    let message = [&[1, 0, 0, 0, 100][..], &[0x1f, 0x8b], &[0; 98]].concat();
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let mut block = call_headers(path);
    block.extend([&[0x00, 13][..], b"grpc-encoding", &[4], b"gzip"].concat());
    let mut stream = victim.connect(Protocol::Grpc);
    let call = [
        preface(),
        frame(HEADERS, END_HEADERS, 1, &block),
        frame(DATA, END_STREAM, 1, &message),
        // A well-behaved call on the same connection.
        frame(HEADERS, END_HEADERS, 3, &call_headers("/grpc.health.v1.Health/Check")),
        frame(DATA, END_STREAM, 3, &[0; 5]),
    ];
    stream.write_all(&call.concat()).unwrap();
    let (mut replied, mut buffer) = (Vec::new(), [0; 4096]);
    while !replied.windows(7).any(|bytes| bytes == crate::http2::SERVING) {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "closed after {}", replied.escape_ascii());
        replied.extend(&buffer[..read]);
    }
    // UNIMPLEMENTED is 12, which may be in Huffman code.
    assert!(
        replied.windows(2).any(|bytes| bytes == b"12" || bytes == [0x08, 0xbf]),
        "{}",
        replied.escape_ascii()
    );
    victim.assert_served();
    assert!(victim.resident().saturating_sub(before) < 32 << 20);
}

/// A config file whose aliases multiply: the running policies stay in force.
#[test]
fn an_alias_bomb_in_the_config_file_is_rejected() {
    let victim = Victim::start("hostile-aliases", "");
    let before = victim.resident();
    let config = std::fs::read_to_string(&victim.config).unwrap();
    let error = || victim.server.get("/v1/status").json()["config"]["error"].clone();
    // What a bomb takes does not depend on what it would become: a million values, or ten thousand times as many.
    let grown = [6, 10].map(|levels| {
        std::fs::write(&victim.config, &config).unwrap();
        victim.server.signal("HUP");
        until_true("the file is valid again", || error().is_null());
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..levels {
            let below = format!("*a{}, ", level - 1).repeat(10);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", below.trim_end_matches(", ")));
        }
        std::fs::write(&victim.config, format!("{bomb}{config}")).unwrap();
        victim.server.signal("HUP");
        // Not a file that is being written.
        until_true("the bomb is rejected", || {
            error().as_str().is_some_and(|error| error.contains("too large"))
        });
        victim.assert_served();
        victim.peak_resident().saturating_sub(before)
    });
    assert!(grown[1] < 2 * grown[0], "{grown:?} bytes");
}
