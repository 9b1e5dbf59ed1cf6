//! Who may ask: password and TLS.

use slidegate_testkit::TempDir;
use slidegate_testkit::certificates::Certificate;
use slidegate_testkit::service::Server;
use std::io::Write;

use super::{POLICIES, ask, cli, command, connect, exchange, exchange_or_reset, expect, serve, words};

/// Without it, anyone who reaches the port resets limits.
#[test]
fn nothing_is_decided_before_the_password() {
    let folder = TempDir::new("resp-auth");
    let server = serve(&folder, "  password: open sesame\n");
    let no_auth = "-NOAUTH Authentication required; send `AUTH password` first\\r\\n";
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\\r\\n";
    for line in ["PING", "RL.CHECK per-user alice", "RL.POLICIES", "INFO", "COMMAND", "CLIENT ID"] {
        assert_eq!(ask(&server, line), no_auth, "{line}");
    }
    for password in ["", "open", "open sesamf", "open sesame "] {
        let after = [command(&[b"AUTH", password.as_bytes()]), words("PING")].concat();
        assert_eq!(exchange(&server, &after), format!("{wrong}{no_auth}"), "{password}");
    }
    assert_eq!(exchange(&server, &command(&[b"AUTH", b"root", b"open sesame"])), wrong);
    let right = command(&[b"AUTH", b"open sesame"]);
    let right_by_name = command(&[b"AUTH", b"default", b"open sesame"]);
    for auth in [right, right_by_name] {
        let all = [auth, words("PING"), words("RESET"), words("PING"), words("QUIT")].concat();
        assert_eq!(exchange(&server, &all), format!("+OK\\r\\n+PONG\\r\\n+RESET\\r\\n{no_auth}+OK\\r\\n"));
    }
    let greeting = exchange(&server, &words("HELLO 3"));
    assert_eq!(
        greeting,
        "-NOAUTH HELLO requires authentication; send for example `HELLO 3 AUTH default PASSWORD`\\r\\n"
    );
    let hello: [&[u8]; 7] = [b"HELLO", b"3", b"AUTH", b"default", b"open sesame", b"SETNAME", b"me"];
    let greeted = exchange(&server, &[command(&hello), words("CLIENT GETNAME")].concat());
    assert!(greeted.starts_with("%7\\r\\n$6\\r\\nserver\\r\\n$9\\r\\nslidegate\\r\\n"), "{greeted}");
    assert!(greeted.ends_with("*0\\r\\n$2\\r\\nme\\r\\n"), "{greeted}");
    assert_eq!(cli(&server, &["--no-auth-warning", "-a", "open sesame", "PING"]), "PONG\n");
}

/// A password belongs in no configuration that is kept with the code.
#[test]
fn the_password_may_come_from_a_file_or_the_environment() {
    let folder = TempDir::new("resp-password");
    let path = folder.file("password", "from a file\n");
    let server = serve(&folder, &format!("  password_file: {path}\n"));
    assert_eq!(exchange(&server, &command(&[b"AUTH", b"from a file"])), "+OK\\r\\n");
    drop(server);
    let server =
        Server::start_with(&["--resp", "127.0.0.1:0"], &[("SLIDEGATE_RESP_PASSWORD", "from outside")]);
    assert_eq!(exchange(&server, &command(&[b"AUTH", b"from outside"])), "+OK\\r\\n");
    assert!(ask(&server, "PING").starts_with("-NOAUTH"));
}

/// What the password and the keys are must not stand in the clear on a network.
#[test]
fn redis_cli_asks_over_tls() {
    let folder = TempDir::new("resp-tls");
    let (certificate, key) = Certificate::self_signed(&["127.0.0.1"]).write(&folder, "resp");
    let server = serve(&folder, &format!("  cert_file: {certificate}\n  key_file: {key}\n"));
    assert!(server.greeting.contains("resp       rediss://127.0.0.1:"), "{}", server.greeting);
    let tls = ["--tls", "--cacert", &certificate];
    assert_eq!(cli(&server, &[&tls[..], &["PING"]].concat()), "PONG\n");
    let checked = cli(&server, &[&tls[..], &["RL.CHECK", "per-user", "alice"]].concat());
    assert_eq!(checked, "1\n5\n4\n0\n3600000\nstore\n\n");
    // In the clear there is no answer, and the server goes on.
    let plain = exchange_or_reset(&server);
    assert!(!plain.contains("PONG"), "{plain}");
    assert_eq!(cli(&server, &[&tls[..], &["PING"]].concat()), "PONG\n");
}

/// A password that everybody may guess two million times in four seconds guards nothing, and each
/// guess was a line of log.
#[test]
fn three_wrong_passwords_close_the_connection_and_thirty_refuse_the_address() {
    let folder = TempDir::new("resp-guesses");
    let log = folder.file("log", "");
    let config = folder.file("slidegate.yaml", format!("{POLICIES}  password: sesame\n"));
    let server = Server::start_logging_to(&["--config", &config], std::fs::File::create(&log).unwrap());
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    let closed =
        format!("{wrong}\\r\\n{wrong}\\r\\n{wrong} The connection is closed after 3 wrong passwords.\\r\\n");
    let guess = command(&[b"AUTH", b"guess"]);
    let hello = words("HELLO 3 AUTH default guess");
    let right = command(&[b"AUTH", b"sesame"]);
    let decide = words("RL.CHECK per-user alice");

    // What comes behind the third is not read, even if it is the right one. RESET makes nothing
    // good again.
    let many = [guess.repeat(2), words("RESET"), guess.repeat(1000), right.clone(), decide.clone()].concat();
    let replies = exchange(&server, &many);
    assert_eq!(
        replies,
        closed.replacen(
            "disabled.\\r\\n-WRONGPASS invalid username-password pair or user is disabled. The",
            "disabled.\\r\\n+RESET\\r\\n-WRONGPASS invalid username-password pair or user is disabled. The",
            1
        )
    );
    assert_eq!(exchange(&server, &hello.repeat(4)), closed);
    // A right one in between is free, and forgives none.
    let between = [guess.clone(), right.clone(), guess.repeat(2), decide.clone()].concat();
    let replies = exchange(&server, &between);
    assert_eq!(replies, closed.replacen("\\r\\n", "\\r\\n+OK\\r\\n", 1));
    for _ in 0..6 {
        assert_eq!(exchange(&server, &guess.repeat(3)), closed);
    }
    // 27 so far, and three that left by themselves.
    for _ in 0..3 {
        assert_eq!(exchange(&server, &guess), format!("{wrong}\\r\\n"));
    }
    for attempt in [&guess, &right, &words("HELLO 3 AUTH default sesame"), &words("HELLO 2 AUTH root guess")]
    {
        let replies = exchange(&server, &[attempt.clone(), words("PING")].concat());
        let refusal = "too many failed authentications from your address: 30 in 60 s is the limit; wait ";
        assert!(replies.starts_with("-WRONGPASS ") && replies.contains(refusal), "{replies}");
        assert_eq!(replies.matches("\\r\\n").count(), 1, "the connection is closed: {replies}");
    }

    let metrics = server.get("/metrics").body;
    let count =
        |reason| format!("slidegate_failed_authentications_total{{protocol=\"resp\",reason=\"{reason}\"}} ");
    assert!(metrics.contains(&format!("{}30\n", count("wrong"))), "{metrics}");
    assert!(metrics.contains(&format!("{}4\n", count("too_many"))), "{metrics}");
    let log = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("authentication failed")).collect();
    assert_eq!(lines.len(), 1, "one line for each address and minute: {log}");
    assert!(lines[0].contains("WARN") && lines[0].contains("peer=127.0.0.1 protocol=\"resp\""), "{log}");
    assert!(!log.contains("guess") && !log.contains("sesame"), "{log}");
}

/// Who is connected must not be cut off because somebody at the same address guesses.
#[test]
fn a_connection_that_is_authenticated_goes_on_while_its_address_is_refused() {
    let folder = TempDir::new("resp-guesses-others");
    let server = serve(&folder, "  password: sesame\n");
    let mut stream = connect(&server);
    stream.write_all(&command(&[b"AUTH", b"sesame"])).unwrap();
    expect(&mut stream, b"+OK\r\n");
    for _ in 0..10 {
        exchange(&server, &command(&[b"AUTH", b"guess"]).repeat(3));
    }
    assert!(exchange(&server, &command(&[b"AUTH", b"sesame"])).starts_with("-WRONGPASS too many"));
    stream.write_all(&words("PING")).unwrap();
    expect(&mut stream, b"+PONG\r\n");
}
