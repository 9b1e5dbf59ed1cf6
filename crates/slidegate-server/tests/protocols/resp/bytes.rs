//! What comes over the wire: frames, pipelines, lines, and clients that misbehave.

use slidegate_testkit::TempDir;
use std::io::{ErrorKind, Read, Write};

use super::{ask, connect, exchange, exchange_or_reset, expect, serve, words};

/// What follows is never a command again, and the next client must find the server as it was.
#[test]
fn a_malformed_frame_is_answered_and_ends_the_connection_only() {
    let folder = TempDir::new("resp-malformed");
    let server = serve(&folder, "");
    let count = "invalid multibulk length: must be 0 to 80";
    let bulk = "expected a bulk string, for example `$4` and `PING`";
    let length = "invalid bulk length: must be 0 to 65536";
    for (bytes, error) in [
        (b"*1\r\n".repeat(10_000), bulk),
        (b"*1000000000\r\n".to_vec(), count),
        (b"*-1\r\n".to_vec(), count),
        (b"*99999999999999999999999999".to_vec(), count),
        (b"*2\r\n$4\r\nPING\r\n$1000000000\r\n".to_vec(), length),
        (b"*2\r\n$4\r\nPING\r\n$-1\r\n".to_vec(), length),
        (b"*1\r\n:1\r\n".to_vec(), bulk),
        (b"*1\r\n%1\r\n".to_vec(), bulk),
        (
            b"*1\r\n$4\r\nPINGPING\r\n".to_vec(),
            "invalid bulk string: must end with CRLF after its announced length",
        ),
        (
            b"*2\r\n$40000\r\n"
                .to_vec()
                .into_iter()
                .chain([b'a'; 40_000])
                .chain(*b"\r\n$40000\r\n")
                .collect(),
            "command too long: must be at most 65536 bytes",
        ),
        (
            vec![b'a'; 100_000],
            "inline command too long: must be at most 4096 bytes; send an array of bulk strings",
        ),
        (
            b"ECHO \"a\r\n".to_vec(),
            "unbalanced quotes in inline command: a quote must be closed, and a space or the end must follow",
        ),
    ] {
        let answer = exchange(&server, &[&words("PING")[..], &bytes, &words("PING")].concat());
        let shown = bytes[..bytes.len().min(40)].escape_ascii();
        assert_eq!(answer, format!("+PONG\\r\\n-ERR Protocol error: {error}\\r\\n"), "{shown}");
    }
    let http = exchange(&server, b"POST / HTTP/1.1\r\nHost: x\r\n\r\nRL.RESET per-user alice\r\n");
    assert_eq!(
        http,
        "-ERR invalid request: this port serves RESP, not HTTP; send HTTP requests to the address of `listen`\\r\\n"
    );
    assert_eq!(ask(&server, "PING"), "+PONG\\r\\n");
}

/// Anyone may send anything: 3000 streams of bytes that are nearly commands, always the same ones.
#[test]
fn no_bytes_end_the_server() {
    let folder = TempDir::new("resp-fuzz");
    let server = serve(&folder, "");
    let pieces: [&[u8]; 20] = [
        b"*3\r\n",
        b"*1\r\n",
        b"$8\r\nRL.CHECK\r\n",
        b"$8\r\nper-user\r\n",
        b"$5\r\nalice\r\n",
        b"$4\r\nPING\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"*",
        b"$",
        b"-1",
        b"99999",
        b"\0\xff",
        b"PING\r\n",
        b"HELLO 3\r\n",
        b"COMMAND DOCS\r\n",
        b"\"",
        b"RESET\r\n",
        b"RL.REQUEST user alice path x\r\n",
    ];
    // xorshift64*, from one seed.
    let mut state = 0x2026_1121_u64;
    let mut next = move |below: u64| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
    };
    for _ in 0..3000 {
        let count = 1 + next(30);
        let mut bytes: Vec<u8> = Vec::new();
        for _ in 0..count {
            bytes.extend_from_slice(pieces[usize::try_from(next(20)).unwrap()]);
        }
        let flip = usize::try_from(next(bytes.len() as u64)).unwrap();
        bytes[flip] ^= 1 << next(8);
        let mut stream = connect(&server);
        // A server that has refused the beginning may close before it has read the end.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(
                error.kind(),
                ErrorKind::ConnectionReset,
                "the connection ends: {}",
                bytes.escape_ascii()
            );
        }
    }
    assert_eq!(ask(&server, "PING"), "+PONG\\r\\n");
}

/// Answers come in the order of the commands, however they arrive.
#[test]
fn a_pipeline_is_answered_in_order_whole_or_byte_by_byte() {
    let folder = TempDir::new("resp-pipeline");
    let server = serve(&folder, "");
    let lines = [
        "ECHO a",
        "RL.CHECK per-user alice",
        "NOPE",
        "RL.CHECK per-user alice COST 2",
        "RL.RESET per-user alice",
        "RL.CHECK per-user alice",
        "HELLO",
        "CL.THROTTLE k 15 30 60",
        "QUIT",
        "PING",
    ];
    let pipeline: Vec<u8> = lines.iter().flat_map(|line| words(line)).collect();
    let check = |remaining: u32| {
        format!("*7\\r\\n:1\\r\\n:5\\r\\n:{remaining}\\r\\n:0\\r\\n:3600000\\r\\n+store\\r\\n$-1\\r\\n")
    };
    let order = |answer: &str| {
        let expected = [
            "$1\\r\\na\\r\\n",
            &check(4),
            "-ERR unknown",
            &check(2),
            ":1\\r\\n",
            &check(4),
            "*14\\r\\n",
            "*5\\r\\n:0\\r\\n:16",
            "+OK\\r\\n",
        ];
        let mut rest = answer;
        for part in expected {
            rest =
                rest.split_once(part).unwrap_or_else(|| panic!("{part} is missing in {rest} of {answer}")).1;
        }
        assert_eq!(rest, "", "nothing follows the last");
    };
    let forget = [words("RL.RESET per-user alice"), words("RL.RESET CL.THROTTLE k")].concat();
    order(&exchange(&server, &pipeline));
    exchange(&server, &forget);
    let mut stream = connect(&server);
    stream.set_nodelay(true).unwrap();
    for byte in &pipeline {
        // It has quit before the last command.
        let _ = stream.write_all(&[*byte]);
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    order(&answer.escape_ascii().to_string());
    // Many more commands than the first buffer holds.
    let many: Vec<u8> = (0..20_000).flat_map(|number| words(&format!("ECHO {number:05}"))).collect();
    let mut stream = connect(&server);
    let mut reader = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || stream.write_all(&many).unwrap());
    for number in 0..20_000 {
        expect(&mut reader, format!("$5\r\n{number:05}\r\n").as_bytes());
    }
    writer.join().unwrap();
}

/// `telnet` and `nc` are the clients that are always there.
#[test]
fn a_line_is_a_command() {
    let folder = TempDir::new("resp-line");
    let server = serve(&folder, "");
    let lines = b"\r\nPING\r\necho \"a \\x41\"\nRL.CHECK per-user 'alice b'\r\nRL.CHECK per-user \"alice b\" COST 4\r\nQUIT\r\n";
    let answer = exchange(&server, lines);
    assert!(answer.starts_with("+PONG\\r\\n$3\\r\\na A\\r\\n*7\\r\\n:1\\r\\n:5\\r\\n:4\\r\\n"), "{answer}");
    assert!(answer.contains("*7\\r\\n:1\\r\\n:5\\r\\n:0\\r\\n") && answer.ends_with("+OK\\r\\n"), "{answer}");
}

/// A client that asks and does not listen must cost a bounded piece of memory, for a bounded time.
#[test]
fn who_does_not_take_its_answers_is_cut_off_and_nobody_else_waits() {
    let folder = TempDir::new("resp-slow");
    let server = serve(&folder, "");
    let slow = connect(&server);
    slow.set_nonblocking(true).unwrap();
    let asked = words("COMMAND DOCS").repeat(500);
    // The server stops reading when nobody takes its answers: then the system's buffers are full on
    // both sides.
    let mut full = 0;
    while full < 50 {
        match (&slow).write(&asked) {
            Ok(_) => full = 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                assert_eq!(ask(&server, "PING"), "+PONG\\r\\n", "others are answered meanwhile");
            }
            Err(error) => panic!("{error}"),
        }
    }
    slow.set_nonblocking(false).unwrap();
    slidegate_testkit::until_true("the slow reader is gone", || {
        exchange(&server, &words("INFO clients")).contains("connected_clients:1\\r\\n")
    });
}

/// Connections are bounded in number and in silence; bytes that never become a command are silence.
#[test]
fn connections_are_bounded_in_number_and_in_silence() {
    let folder = TempDir::new("resp-bounds");
    let server = serve(&folder, "  max_connections: 2\n  idle_timeout: 5s\n");
    let (mut silent, mut dribbling) = (connect(&server), connect(&server));
    for stream in [&mut silent, &mut dribbling] {
        stream.write_all(&words("PING")).unwrap();
        expect(stream, b"+PONG\r\n");
    }
    let refused = exchange_or_reset(&server);
    assert!(refused.is_empty() || refused == "-ERR max number of clients reached\\r\\n", "{refused}");
    // Never a whole command, and a byte again and again.
    dribbling.set_nonblocking(true).unwrap();
    let mut gone = false;
    slidegate_testkit::until_true("the connection is cut off", || {
        let _ = dribbling.write(b"a");
        gone = gone
            || !matches!(dribbling.read(&mut [0; 64]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        gone
    });
    assert_eq!(silent.read(&mut [0; 64]).unwrap(), 0, "the silent one as well");
    slidegate_testkit::until_true("there is a place again", || exchange_or_reset(&server) == "+PONG\\r\\n");
}
