//! Starting, trying and ending the service, as a person does it.

use slidegate_testkit::TempDir;
use slidegate_testkit::process::command;
use slidegate_testkit::service::{Server, run, text};
use std::io::{BufRead, BufReader, Read, Write};

/// The whole first minute of a new user: start it, copy the line it prints, see a decision.
#[test]
fn the_curl_line_that_it_prints_works() {
    let server = Server::start(&[]);
    let line = server.greeting.lines().find_map(|line| line.strip_prefix("try        ")).unwrap();
    assert!(server.greeting.contains("policies   per-user"), "{}", server.greeting);
    let output = command("sh").args(["-c", line]).output().expect("a shell is there");
    let answer = text(&output.stdout);
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}{}", text(&output.stderr));
    assert!(answer.contains("\"remaining\":99"), "{answer}");
    assert!(answer.to_lowercase().contains("ratelimit: \"per-user\";r=99"), "{answer}");
}

/// A deploy sends SIGTERM: what was begun is answered, and nothing new is begun.
#[test]
fn on_sigterm_an_open_request_is_answered_and_the_service_ends_well() {
    let mut server = Server::start(&["--policy", "5/1h per user"]);
    let mut stream = server.connect();
    let body = r#"{"attributes":{"user":"alice"}}"#;
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The server asks for the body: the request has begun.
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");

    server.signal("TERM");
    // It no longer listens once it has taken the signal in.
    while std::net::TcpStream::connect(&server.address).is_ok() {
        std::thread::yield_now();
    }
    assert!(server.is_running(), "it waits for the open request");
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    reader.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("HTTP/1.1 200 OK") && answer.contains("\"remaining\":4"), "{answer}");
    assert!(server.wait().success());
}

/// Control-C in a terminal ends it as well, though clients keep idle connections.
#[test]
fn on_sigint_idle_connections_do_not_hold_it_up() {
    let mut server = Server::start(&[]);
    let mut idle = server.connect();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(&idle).read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 200 OK\r\n");
    server.signal("INT");
    assert!(server.wait().success());
}

/// What cannot be served must be said before anything listens, in a line that helps.
#[test]
fn what_is_wrong_at_the_start_is_told_and_ends_with_2() {
    let taken = Server::start(&[]);
    let output = run(&["serve", "--listen", &taken.address]);
    assert_eq!(output.status.code(), Some(2));
    let printed = text(&output.stderr);
    assert!(printed.starts_with(&format!("cannot listen on {}: ", taken.address)), "{printed}");
    assert!(printed.contains("choose another address with --listen"), "{printed}");

    let output = run(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--policy",
        "100/1m per user",
        "--policy",
        "5/1s per user",
    ]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""));
    assert!(text(&output.stderr).contains("per-user"), "{}", text(&output.stderr));

    let output = run(&["serve", "--listen", "127.0.0.1:0", "--config", "nowhere.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("nowhere.yaml"), "{}", text(&output.stderr));

    let folder = TempDir::new("bad-start");
    let file =
        folder.file("bad.yaml", "policies:\n  - name: a\n    scope: [user]\n    limit: 5\n    window: 0s\n");
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--config", &file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr)
            .contains("bad.yaml:5: policy `a`: invalid window `0s`: must be 1ms to 366d with a unit (ms, s, m, h, d or w), \
                       for example `window: 60s`"),
        "{}",
        text(&output.stderr)
    );
}

/// The shell script that guards a job needs an exit code, the person who wrote it a sentence.
#[test]
fn check_answers_in_words_and_by_its_exit_code() {
    let server = Server::start(&["--policy", "2/1h per user"]);
    let check = |args: &[&str]| {
        let output = run(&[&["check", "--url", &server.url], args].concat());
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    assert_eq!(
        check(&["user=alice"]),
        (Some(0), "allowed: per-user: `alice` has used 1 of 2 per 1h, 1 remain\n".to_owned())
    );
    assert_eq!(check(&["user=alice", "--peek", "--cost", "1"]).0, Some(0));
    let (code, found) = check(&["user=alice", "--cost", "2"]);
    assert_eq!(code, Some(1));
    assert!(
        found.starts_with("denied: per-user: `alice` has used 1 of 2 per 1h; the cost fits in "),
        "{found}"
    );
    assert!(check(&["user=alice", "--json"]).1.contains("\"remaining\":0"));
    let (code, found) = check(&[&format!("{}=x", "a".repeat(129))]);
    assert_eq!(code, Some(2));
    assert!(found.contains("returned 400 Bad Request: the name of attribute 1 has 129 bytes"), "{found}");
    let (code, found) = check(&["user=a", "user=b"]);
    assert_eq!((code, found.as_str()), (Some(2), "an attribute is given twice; give each attribute once\n"));

    let url = server.url.clone();
    drop(server);
    let output = run(&["check", "--url", &url, "user=alice"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("check that `slidegate serve` is running there, or set --url"));
}

/// A person who reviews a change reads what it will do, in words.
#[test]
fn validate_says_each_policy_back_or_every_error_with_its_line() {
    let folder = TempDir::new("validate");
    let good = folder.file("good.yaml", "policies:\n  - name: login\n    when: { path: /login }\n    scope: [ip]\n    limit: 5\n    window: 1m\n");
    let output = run(&["validate", &good]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(
        printed.contains("is valid: 1 policy.") && printed.contains("login") && printed.contains("5 per 1m"),
        "{printed}"
    );

    // A limit of requests that adds tokens up denies the first reservation of an answer forever.
    let beside = "  - {name: tpm, scope: [user], quota: 8000/1m, counts: output}\n";
    let warned = |policy: &str| {
        let file =
            folder.file("costs.yaml", format!("policies:\n  - {{name: per-user, {policy}}}\n{beside}"));
        let printed = text(&run(&["validate", &file]).stdout);
        printed.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        warned("scope: [user], quota: 100/1m"),
        [
            "warning: policy `per-user` adds all costs up and allows 100, but policy `tpm` allows more of the cost `output` \
             alone. If `per-user` is to count requests, give it `counts: requests`."
        ]
    );
    for fits in ["quota: 100/1m, counts: requests", "quota: 10_000/1m", "quota: 1000/1s"] {
        assert_eq!(warned(fits), [""; 0], "{fits}");
    }

    let bad = folder.file("bad.yaml", "policies:\n  - name: a\n    limit: 5\n    windw: 1m\n");
    let output = run(&["validate", &bad]);
    assert_eq!(output.status.code(), Some(2));
    let printed = text(&output.stderr);
    assert!(printed.contains("bad.yaml:4: ") && printed.contains("did you mean `window`?"), "{printed}");
}
