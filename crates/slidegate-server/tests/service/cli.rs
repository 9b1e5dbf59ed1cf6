//! The command line as a shell meets it: pipes that are closed early, servers behind TLS, what it
//! prints about itself.

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use slidegate_testkit::TempDir;
use slidegate_testkit::certificates::Certificate;
use slidegate_testkit::service::{Server, run, slidegate, text};

/// Runs a command whose standard output and error nobody reads.
fn run_unread(args: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = slidegate();
    command.args(args).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    command.output().unwrap()
}

/// `slidegate policy list | head -1` is how people look at things; a panic message there looks like
/// a crash.
#[test]
fn a_closed_pipe_is_no_error_for_any_command() {
    let folder = TempDir::new("closed-pipe");
    let server = Server::start(&["--policy", "5/1h per user"]);
    let url = ["--url", &server.url];
    let config = folder.file("slidegate.yaml", "policies: [{name: per-user, scope: [user], quota: 5/1h}]\n");
    let line = "192.0.2.7 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 1\n";
    // More than a pipe or a buffer holds.
    let log = folder.file("access.log", line.repeat(5000));
    let with_url = |args: &[&'static str]| args.iter().copied().chain(url).collect::<Vec<_>>();
    for args in [
        with_url(&["check", "user=alice"]),
        with_url(&["check", "user=alice", "--json"]),
        with_url(&["top", "--once"]),
        with_url(&["top", "--json"]),
        with_url(&["policy", "list"]),
        with_url(&["policy", "history", "--json"]),
        with_url(&["key", "show", "per-user", "alice"]),
        vec!["validate", &config],
        vec!["explain", "user=alice", "--config", &config],
        vec!["token", "new"],
        vec!["replay", &log, "--config", &config],
        vec!["replay", &log, "--config", &config, "--each"],
        vec!["--help"],
        vec!["--version"],
    ] {
        let output = run_unread(&args);
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{args:?}");
    }
    let denied = with_url(&["check", "user=alice", "--cost", "6"]);
    assert_eq!(run_unread(&denied).status.code(), Some(1), "a closed pipe does not hide the verdict");
}

/// A log collector that has crashed must not take the limiter down.
#[test]
fn the_service_runs_on_when_its_output_and_its_log_are_closed() {
    let mut server =
        Server::start_logging_to(&["--policy", "5/1h per user", "--log", "debug"], Stdio::piped());
    drop(server.take_log());
    for _ in 0..3 {
        assert_eq!(server.get("/v1/check?user=alice").status, 200);
    }
    assert!(server.is_running());
}

/// A terminator of TLS before a server, as a load balancer is one.
struct Terminator {
    url: String,
    /// A file with the certificate, which is its own authority.
    certificate: String,
    _runtime: tokio::runtime::Runtime,
}

impl Terminator {
    fn before(server: &Server, folder: &TempDir) -> Self {
        let (certificate, key) = Certificate::self_signed(&["127.0.0.1"]).write(folder, "tls");
        let chain = vec![CertificateDer::from_pem_file(&certificate).unwrap()];
        let config =
            rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(chain, PrivateKeyDer::from_pem_file(&key).unwrap())
                .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let behind: SocketAddr = server.address.parse().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that does not trust the certificate ends the handshake.
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut server = tokio::net::TcpStream::connect(behind).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
                });
            }
        });
        Self { url, certificate, _runtime: runtime }
    }
}

/// A server off loopback is behind TLS, and that is where operators' commands are needed.
#[test]
fn commands_ask_a_server_behind_tls() {
    let folder = TempDir::new("cli-tls");
    let server = Server::start(&["--policy", "5/1h per user"]);
    let terminator = Terminator::before(&server, &folder);
    for args in [
        &["check", "user=alice"][..],
        &["top", "--once"],
        &["policy", "list"],
        &["key", "show", "per-user", "alice"],
        &["key", "block", "per-user", "bob", "--for", "1m"],
    ] {
        let ask = |trusted: &str| {
            let mut command = slidegate();
            command.args(args).args(["--url", &terminator.url]).env("SSL_CERT_FILE", trusted);
            command.env_remove("SSL_CERT_DIR").output().unwrap()
        };
        let output = ask(&terminator.certificate);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));

        let nobody = ask("/dev/null");
        assert_eq!(nobody.status.code(), Some(2), "{args:?}");
        let error = text(&nobody.stderr);
        let reason = "no trusted certificate authority found; install ca-certificates, set SSL_CERT_FILE to a file of \
                      certificates, or use an `http://` URL";
        assert!(error.contains(reason), "{error}");
    }
}

/// A bug report names a version, and it must be the one that runs.
#[test]
fn the_version_is_the_same_everywhere() {
    let version = text(&run(&["--version"]).stdout);
    let server = Server::start(&[]);
    assert_eq!(server.greeting.lines().next(), Some(version.trim_end()));
    assert_eq!(version.trim_end(), format!("slidegate {}", env!("CARGO_PKG_VERSION")));
}

/// "1 policies" is the first line that a new user reads.
#[test]
fn validate_counts_policies_in_words() {
    let folder = TempDir::new("plural");
    let one = "policies:\n  - {name: a, quota: 1/1m}\n";
    let two = format!("{one}  - {{name: b, quota: 1/1m}}\n");
    for (content, words) in [(one, " is valid: 1 policy.\n"), (two.as_str(), " is valid: 2 policies.\n")] {
        let file = folder.file("slidegate.yaml", content);
        let output = text(&run(&["validate", &file]).stdout);
        assert_eq!(text(&run(&["validate", "--config", &file]).stdout), output);
        assert!(output.contains(words), "{output}");
    }
}

/// A window in seconds of a year is not what was written, and cannot be searched for in the file.
#[test]
fn an_invalid_window_is_repeated_as_it_was_written() {
    let folder = TempDir::new("window");
    let range = "must be 1ms to 366d, for example `1m`";
    for (policy, expected) in [
        (
            "{name: a, limit: 1, window: 367d}",
            "invalid window `367d`: must be 1ms to 366d with a unit (ms, s, m, h, d or w), for example `window: 60s`"
                .to_owned(),
        ),
        ("{name: a, quota: 1/53weeks}", format!("invalid quota `1/53weeks`: invalid window `53weeks`: {range}")),
        (
            "{name: a, scope: [user], quota: 1/1m, overrides: {b: 1/0s}}",
            format!("overrides: invalid b `1/0s`: invalid window `0s`: {range}"),
        ),
    ] {
        let file = folder.file("slidegate.yaml", format!("policies:\n  - {policy}\n"));
        let output = run(&["validate", &file]);
        assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
    }
}
