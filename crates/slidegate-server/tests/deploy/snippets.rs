//! Programs and commands in `docs/`, run as they are written but for their addresses, and for how long they wait for
//! slidegate.

use slidegate_testkit::ports;
use slidegate_testkit::process::{Process, command};
use slidegate_testkit::service::{Server, text};
use slidegate_testkit::{TempDir, until, until_true};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

fn read(page: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::read_to_string(docs.join(page)).expect("the page is there")
}

/// The block that begins with this line.
fn block_of(page: &str, first: &str) -> String {
    let begins = format!("\n{first}\n");
    let at = page.find(&begins).unwrap_or_else(|| panic!("no block begins with `{first}`")) + 1;
    page[at..].split("```").next().unwrap().to_owned()
}

/// A gateway in front of a stream reserves the most, settles each second what has flowed, and at
/// the end what flowed until its client left.
fn reserves(first: &str, command: impl Fn(&Path, &Path, u16) -> Command) {
    let dir = TempDir::new("reserving");
    let config = dir.path().join("slidegate.yaml");
    let page = read("gateway.md");
    std::fs::write(&config, block_of(&page, "policies:\n  - {name: tokens, scope: [user], quota: 2_000/1h}"))
        .unwrap();
    let slidegate = Server::start(&["--config", config.to_str().unwrap()]);
    let name = first.rsplit(' ').next().unwrap();
    let file = dir.path().join(name);
    let (mut program, port) = until("the program has a port of its own", || {
        let port = ports::free();
        let written = block_of(&page, first)
            .replace("3000", &port.to_string())
            .replace("127.0.0.1:7979", &slidegate.address)
            .replace("timeout(1000)", "timeout(60000)")
            .replace("timeout=1)", "timeout=60)");
        std::fs::write(&file, written).unwrap();
        let mut command = command(dir.path(), &file, port);
        let out = std::fs::File::create(dir.path().join("log")).unwrap();
        command.current_dir(dir.path()).stdout(out.try_clone().unwrap()).stderr(out);
        let mut program = Process::start(command, dir.path(), name);
        let ended = until("the program listens or ends", || {
            let ended = program.has_ended();
            (ended || TcpStream::connect(("127.0.0.1", port)).is_ok()).then_some(ended)
        });
        (!ended).then_some((program, port))
    });
    let mut ask = |max_tokens: u64| {
        assert!(!program.has_ended(), "{name} ended");
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let target = format!("/?max_tokens={max_tokens}");
        let request =
            format!("GET {target} HTTP/1.1\r\nhost: x\r\nx-user: alice\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let whole = |mut stream: TcpStream| {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        text(&answer)
    };
    // Tokens that were used and that are held, and open streams.
    let state = || {
        let peeked = slidegate.post("/v1/peek", r#"{"attributes": {"user": "alice"}, "cost": 0}"#).json();
        let number = |at: usize, name: &str| peeked["policies"][at][name].as_u64().unwrap_or(0);
        [number(0, "used"), number(0, "held"), number(1, "held")]
    };
    let answer = whole(ask(10));
    assert!(answer.starts_with("HTTP/1.") && answer.contains(" 200 "), "{name}: {answer}");
    assert!(answer.contains("word10 "), "{name}: {answer}");
    until_true("it is settled", || state() == [10, 0, 0]);

    let streams = [ask(900), ask(900)];
    until_true("two streams run", || state()[2] == 2);
    let denied = whole(ask(1));
    assert!(denied.contains(" 429 ") && denied.contains("\"streams\""), "{name}: {denied}");
    until_true("parts are settled", || state()[0] > 10);
    assert!(state()[1] > 0);
    drop(streams);
    until_true("the clients are gone", || {
        let [_, held, streams] = state();
        (held, streams) == (0, 0)
    });
    let [tokens, ..] = state();
    assert!((11..1810).contains(&tokens), "{tokens}");
}

/// Most gateways are not written in Rust.
#[test]
fn the_node_gateway_reserves_and_settles() {
    reserves("// gateway.mjs", |_, file, _| {
        let mut command = command("node");
        command.arg(file);
        command
    });
}

/// The same in the other language that most are written in.
#[test]
fn the_python_gateway_reserves_and_settles() {
    reserves("# gateway.py", |_, file, _| {
        let mut command = command("python3");
        command.arg(file);
        command
    });
}

/// The first lines that anyone copies.
#[test]
fn the_curl_lines_answer() {
    let server = Server::start(&[]);
    let page = read("protocols.md");
    // The line for a Unix socket has a test of its own, `service::listeners`.
    let of_tcp = |line: &&str| line.starts_with("curl ") && !line.contains("--unix-socket");
    let lines: Vec<_> = page.lines().filter(of_tcp).collect();
    assert_eq!(lines.len(), 4);
    for line in lines {
        let line = line.replace("http://127.0.0.1:7979", &server.url).replace("curl ", "curl -sSf ");
        let output = command("sh").args(["-c", &line]).output().expect("a shell is there");
        let answer = text(&output.stdout);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        assert!(
            answer.contains("\"allowed\":true") && answer.contains("\"key\":\"alice\""),
            "{line}: {answer}"
        );
    }
}
