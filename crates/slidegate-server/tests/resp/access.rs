//! Who may ask: password and TLS.

use super::common::{Folder, Server};
use super::{ask, cli, client, command, exchange, exchange_or_reset, serve, succeed, words};

/// Without it, whoever reaches the port resets limits.
#[test]
fn nothing_is_decided_before_the_password() {
    let folder = Folder::new("resp-auth");
    let server = serve(&folder, "  password: open sesame\n");
    let no_auth = "-NOAUTH Authentication required: send AUTH and the password first\\r\\n";
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
        "-NOAUTH HELLO needs the password: send for example `HELLO 3 AUTH default PASSWORD`\\r\\n"
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
    let folder = Folder::new("resp-password");
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
    let folder = Folder::new("resp-tls");
    let (certificate, key) = (folder.file("cert.pem", ""), folder.file("key.pem", ""));
    let openssl = client("openssl", "openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-out",
            &certificate,
            "-keyout",
            &key,
        ])
        .output();
    succeed(&openssl.unwrap());
    let server = serve(&folder, &format!("  cert_file: {certificate}\n  key_file: {key}\n"));
    assert!(server.greeting.contains("resp       rediss://127.0.0.1:"), "{}", server.greeting);
    let tls = ["--tls", "--cacert", &certificate];
    assert_eq!(cli(&server, &[&tls[..], &["PING"]].concat()), "PONG\n");
    let checked = cli(&server, &[&tls[..], &["RL.CHECK", "per-user", "alice"]].concat());
    assert_eq!(checked, "1\n5\n4\n0\n3600000\nstore\n");
    // In the clear there is no answer, and the server goes on.
    let plain = exchange_or_reset(&server);
    assert!(!plain.contains("PONG"), "{plain}");
    assert_eq!(cli(&server, &[&tls[..], &["PING"]].concat()), "PONG\n");
}
