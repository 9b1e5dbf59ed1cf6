//! The code in `docs/protocols.md`, run as it is written but for its addresses.
//!
//! On a busy machine slidegate may miss the code's 250 ms now and then, and the request passes. A
//! test that counts notices an answer without slidegate, starts slidegate afresh and counts again.

use slidegate_testkit::http::Response;
use slidegate_testkit::ports;
use slidegate_testkit::process::Process;
use slidegate_testkit::service::{Server, installed, text};
use slidegate_testkit::{TempDir, until, until_true};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// What all of the programs ask about.
const POLICIES: &str = "
policies:
  - {name: per-ip, when: {path: /, method: GET}, scope: [ip], quota: 2/1h}
";

fn page() -> String {
    read("protocols.md")
}

fn read(page: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::read_to_string(docs.join(page)).expect("the page is there")
}

/// The block that begins with this line.
fn block(first: &str) -> String {
    block_of(&page(), first)
}

fn block_of(page: &str, first: &str) -> String {
    let begins = format!("\n{first}\n");
    let at = page.find(&begins).unwrap_or_else(|| panic!("no block begins with `{first}`")) + 1;
    page[at..].split("```").next().unwrap().to_owned()
}

/// The application responds twice with what remains, then with 429; and it responds again once
/// slidegate is gone.
fn limits(first: &str, command: impl Fn(&Path, &Path, u16) -> Command) {
    let dir = TempDir::new("snippets");
    let config = dir.path().join("slidegate.yaml");
    std::fs::write(&config, POLICIES).unwrap();
    let start = |address: &str| {
        Server::start_at(address, &[], &["--config", config.to_str().unwrap()], Stdio::inherit())
    };
    let mut slidegate = start("127.0.0.1:0");
    let address = slidegate.address.clone();
    let name = first.rsplit(' ').next().unwrap();
    let file = dir.path().join(name);
    let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
    let (mut program, port) = until("the program has a port of its own", || {
        let port = ports::free();
        let written =
            block(first).replace("3000", &port.to_string()).replace("127.0.0.1:7979", &slidegate.address);
        std::fs::write(&file, written).unwrap();
        let mut command = command(dir.path(), &file, port);
        let out = std::fs::File::create(dir.path().join("log")).unwrap();
        command.current_dir(dir.path()).stdout(out.try_clone().unwrap()).stderr(out);
        let mut program = Process::start(command, dir.path(), name);
        let ended = until("the program listens or ends", || {
            let ended = program.has_ended();
            (ended || TcpStream::connect(("127.0.0.1", port)).is_ok()).then_some(ended)
        });
        assert!(!ended || log().contains("in use"), "{name} ended: {}", log());
        (!ended).then_some((program, port))
    });
    let mut ask = || {
        assert!(!program.has_ended(), "{name} ended: {}", log());
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"GET /?q=1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        Response::parse(&text(&answer))
    };
    let mut count = || {
        for remaining in ["1", "0"] {
            let answer = ask();
            assert_eq!(answer.status, 200, "{name}: {}{}", answer.body, log());
            assert!(answer.body.contains("hello"), "{}", answer.body);
            // Not decided by slidegate: it took longer than the code waits.
            answer.header("x-ratelimit-remaining")?;
            assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining), "{answer:?}");
            assert_eq!(answer.header("ratelimit-policy"), Some("\"per-ip\";q=2;w=3600"));
            assert_eq!(answer.header("retry-after"), None);
        }
        let denied = ask();
        if denied.status == 200 && denied.header("x-ratelimit-remaining").is_none() {
            return None;
        }
        assert_eq!(denied.status, 429, "{name}: {}", denied.body);
        assert!(denied.header("retry-after").unwrap().parse::<u64>().unwrap() > 3000);
        assert!(denied.header("ratelimit").unwrap().starts_with("\"per-ip\";r=0;t="));
        assert!(denied.body.contains("\"violated-policies\":[\"per-ip\"]"), "{}", denied.body);
        Some(())
    };
    until("slidegate answers every question in time", || {
        let counted = count();
        if counted.is_none() {
            slidegate.signal("KILL");
            slidegate.wait();
            slidegate = start(&address);
        }
        counted
    });

    // What hangs is slower than the code waits: the request passes, and gets no rate-limit headers.
    slidegate.signal("STOP");
    until_true("requests pass while slidegate hangs", || ask().status == 200);
    let answer = ask();
    assert_eq!((answer.status, answer.header("ratelimit")), (200, None), "{name}: {}{}", answer.body, log());
    slidegate.signal("CONT");
    until_true("the limits are back", || ask().status == 429);

    slidegate.signal("KILL");
    slidegate.wait();
    until_true("requests pass while nobody answers", || ask().status == 200);
}

fn node(dir: &Path, file: &Path, _port: u16) -> Command {
    let modules = dir.join("node_modules");
    if !modules.exists() {
        std::os::unix::fs::symlink(installed("node/node_modules"), modules).unwrap();
    }
    let mut command = Command::new("node");
    command.arg(file);
    command
}

/// A snippet that does not run is worse than none.
#[test]
fn the_express_snippet_limits() {
    limits("// express.mjs", node);
}

/// The same without a framework.
#[test]
fn the_plain_node_snippet_limits() {
    limits("// plain.mjs", node);
}

/// The same for the framework that most begin with.
#[test]
fn the_fastapi_snippet_limits() {
    limits("# with_fastapi.py", |_, _, port| {
        let mut command = Command::new(installed("python/bin/uvicorn"));
        command.args(["with_fastapi:app", "--host", "127.0.0.1", "--port", &port.to_string()]);
        command
    });
}

/// The same without a framework.
#[test]
fn the_plain_python_snippet_limits() {
    limits("# plain.py", |_, file, _| {
        let mut command = Command::new("python3");
        command.arg(file);
        command
    });
}

/// The same for Go's own server.
#[test]
fn the_go_snippet_limits() {
    limits("// main.go", |dir, file, _| {
        let built = dir.join("main");
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&built).arg(file).env("GOCACHE", cache).env("GO111MODULE", "off");
        let output =
            go.stdin(Stdio::null()).output().expect("go is there: install the Debian package golang-go");
        assert!(output.status.success(), "{}", text(&output.stderr));
        Command::new(built)
    });
}

/// A gateway in front of a stream reserves the most, settles each second what has flowed, and at
/// the end what flowed until its client left.
fn reserves(first: &str, command: impl Fn(&Path, &Path, u16) -> Command) {
    let dir = TempDir::new("reserving");
    let config = dir.path().join("slidegate.yaml");
    let page = read("reserve.md");
    std::fs::write(&config, block_of(&page, "policies:\n  - {name: tokens, scope: [user], quota: 2_000/1h}"))
        .unwrap();
    let slidegate = Server::start(&["--config", config.to_str().unwrap()]);
    let name = first.rsplit(' ').next().unwrap();
    let file = dir.path().join(name);
    let (mut program, port) = until("the program has a port of its own", || {
        let port = ports::free();
        let written = block_of(&page, first)
            .replace("3000", &port.to_string())
            .replace("127.0.0.1:7979", &slidegate.address);
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
        let mut command = Command::new("node");
        command.arg(file);
        command
    });
}

/// The same in the other language that most are written in.
#[test]
fn the_python_gateway_reserves_and_settles() {
    reserves("# gateway.py", |_, file, _| {
        let mut command = Command::new("python3");
        command.arg(file);
        command
    });
}

/// The first lines that anyone copies.
#[test]
fn the_curl_lines_answer() {
    let server = Server::start(&[]);
    let page = page();
    // The line for a Unix socket has a test of its own, `service::listeners`.
    let of_tcp = |line: &&str| line.starts_with("curl ") && !line.contains("--unix-socket");
    let lines: Vec<_> = page.lines().filter(of_tcp).collect();
    assert_eq!(lines.len(), 4);
    for line in lines {
        let line = line.replace("http://127.0.0.1:7979", &server.url).replace("curl ", "curl -sSf ");
        let output = Command::new("sh").args(["-c", &line]).output().expect("a shell is there");
        let answer = text(&output.stdout);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        assert!(
            answer.contains("\"allowed\":true") && answer.contains("\"key\":\"alice\""),
            "{line}: {answer}"
        );
    }
}
