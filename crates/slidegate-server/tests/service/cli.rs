//! The command line as a shell meets it: pipes that are closed early, servers behind TLS, what it
//! prints about itself.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use slidegate_testkit::TempDir;
use slidegate_testkit::certificates::{Authority, Certificate};
use slidegate_testkit::process::command;
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
        vec!["replay", &log, "--policy", "5/1h per ip"],
        vec!["replay", &log, "--policy", "5/1h per ip", "--each"],
        vec!["--help"],
        vec!["--version"],
    ] {
        let output = run_unread(&args);
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{args:?}");
    }
    let denied = with_url(&["check", "user=alice", "--cost", "6"]);
    assert_eq!(run_unread(&denied).status.code(), Some(1), "a closed pipe does not hide the verdict");
}

/// The first thing that somebody types.
#[test]
fn without_arguments_it_says_what_to_do_next() {
    let output = slidegate().output().unwrap();
    let next = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(next.contains("slidegate serve --preset api ") && next.lines().count() <= 15, "{next}");
}

/// People read when and what, and a url is mistyped as in a browser.
#[test]
fn messages_are_short_and_say_what_to_write_instead() {
    let folder = TempDir::new("messages");
    let log = folder.file("log", "");
    let mut server = Server::start_logging_to(&[], std::fs::File::create(&log).unwrap());
    let refused = run(&["check", "user=alice", "--url", &server.address]);
    let address = &server.address;
    let expected =
        format!("invalid --url `{address}`: must begin with http:// or https://, as `http://{address}`\n");
    assert_eq!((refused.status.code(), text(&refused.stderr)), (Some(2), expected));
    server.signal("TERM");
    server.wait();
    let log = std::fs::read_to_string(&log).unwrap();
    let (time, message) = log.split_once("  INFO ").unwrap();
    assert!(time.len() == 20 && time.parse::<jiff::Timestamp>().is_ok(), "{log}");
    assert!(message.contains(": shutting down: waiting for open requests signal="), "{log}");
}

/// A log collector that has crashed must not take the limiter down.
#[test]
fn the_service_runs_on_when_its_output_and_its_log_are_closed() {
    let mut server =
        Server::start_logging_to(&["--policy", "5/1h per user", "--log-level", "debug"], Stdio::piped());
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
    let version = text(&run(&["-V"]).stdout);
    let server = Server::start(&[]);
    assert_eq!(server.greeting.lines().next(), Some(version.trim_end()));
    assert_eq!(version.trim_end(), format!("slidegate {}", env!("CARGO_PKG_VERSION")));

    let long = text(&run(&["--version"]).stdout);
    assert_eq!(long.lines().next(), Some(version.trim_end()));
    let value = |name: &str| {
        let line = long.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name}: {long}")).trim().to_owned()
    };
    assert!(value("target").contains(std::env::consts::ARCH), "{long}");
    assert_eq!(value("features"), "none", "the package has no features");
    // In a checkout it is the commit; sources without one, such as a package, have none.
    let mut git = std::process::Command::new("git");
    let head = git.args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let commit = if head.status.success() { text(&head.stdout) } else { "unknown".to_owned() };
    assert_eq!(value("revision"), commit.trim());
}

/// Editors and pull requests show a mistake at its line if the output has the form that they read.
#[test]
fn validate_names_the_place_of_each_mistake_in_the_form_that_is_asked_for() {
    let folder = TempDir::new("annotations");
    let file = folder.file(
        "slidegate.yaml",
        "policies:\n  - name: a\n    quota: 1/1m\n    scpoe: [user]\n  - {name: b, quota: 0%}\n",
    );
    let validate = |file: &str, format: &str| {
        let output = run(&["validate", file, "--format", format]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, github, errors) = validate(&file, "github");
    assert_eq!((code, errors.as_str()), (Some(2), ""));
    let [first, second] = github.lines().collect::<Vec<_>>()[..] else { panic!("{github}") };
    let expected =
        format!("::error file={file},line=4,col=5::policy `a`: unknown key `scpoe`: did you mean `scope`?");
    assert_eq!(first, expected);
    let expected = format!("::error file={file},line=5,col=22::policy `b`: invalid quota `0%25`: ");
    assert!(second.starts_with(&expected), "{second}");

    let (code, json, errors) = validate(&file, "json");
    assert_eq!((code, errors.as_str()), (Some(2), ""));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json[0],
        serde_json::json!({
            "severity": "error", "file": file, "line": 4, "column": 5,
            "message": "policy `a`: unknown key `scpoe`: did you mean `scope`?",
        })
    );
    assert_eq!((&json[1]["line"], json.as_array().unwrap().len()), (&5.into(), 2));

    // Mistakes of the file as a whole, of its syntax, of what it names, and what is only a warning.
    let (code, github, _) = validate(&folder.file("broken.yaml", "policies: [\n"), "github");
    assert_eq!(code, Some(2));
    assert!(github.contains("/broken.yaml,line=") && github.contains(",col="), "{github}");
    let (code, github, _) = validate("nowhere.yaml", "github");
    assert_eq!(code, Some(2));
    assert!(github.starts_with("::error file=nowhere.yaml::cannot be read: "), "{github}");
    let tls = "server: {cert_file: nothing.pem, key_file: nothing.pem}\npolicies: [{name: a, quota: 1/1m}]\n";
    let (code, github, _) = validate(&folder.file("tls.yaml", tls), "github");
    assert_eq!(code, Some(2));
    assert!(github.contains("/tls.yaml::") && github.contains("nothing.pem"), "{github}");
    let warned = "policies: [{name: a, in_flight: 5, lease: 1m}]\n";
    let (code, github, _) = validate(&folder.file("warned.yaml", warned), "github");
    assert_eq!(code, Some(0), "{github}");
    assert!(github.starts_with("::warning file=") && github.contains("::in flight under `a`: "), "{github}");
    let valid = folder.file("valid.yaml", "policies: [{name: a, quota: 1/1m}]\n");
    assert_eq!(validate(&valid, "json"), (Some(0), "[]\n".to_owned(), String::new()));
    assert_eq!(validate(&valid, "github"), (Some(0), String::new(), String::new()));
}

/// Who administers one server does not want to repeat its address.
#[test]
fn the_url_of_the_environment_is_used_unless_another_is_given() {
    let server = Server::start(&["--policy", "5/1h per user"]);
    let check = |variable: &str, args: &[&str]| {
        let mut command = slidegate();
        command.args(["check", "user=alice"]).args(args).env("SLIDEGATE_URL", variable);
        command.output().unwrap()
    };
    assert_eq!(check(&server.url, &[]).status.code(), Some(0));
    assert_eq!(check("http://127.0.0.1:1", &["--url", &server.url]).status.code(), Some(0));
    let unreachable = check("http://127.0.0.1:1", &[]);
    assert_eq!(unreachable.status.code(), Some(2));
    assert!(text(&unreachable.stderr).contains("http://127.0.0.1:1"), "{}", text(&unreachable.stderr));
    let help = |args: &[&str]| text(&check("", args).stdout);
    assert!(help(&["--help"]).contains("[default: http://127.0.0.1:7979]"), "{}", help(&["--help"]));
}

/// A script that a shell cannot read completes nothing, and the shell complains at each start.
#[test]
fn bash_completes_commands_and_options_by_the_script() {
    let script = text(&run(&["generate", "completions", "bash"]).stdout);
    let complete = |words: &str| {
        let program = format!(
            "{script}\nCOMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _slidegate slidegate \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
        );
        let mut bash = command("bash");
        let output = bash.args(["--norc", "-c", &program]).output().expect("bash is there");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete("slidegate valid"), ["validate"]);
    assert_eq!(complete("slidegate validate --form"), ["--format"]);
    assert_eq!(complete("slidegate validate --format gi"), ["github"]);
    assert!(complete("slidegate policy s").contains(&"set".to_owned()));
}

/// A collector of containers' logs reads both outputs line by line, and drops what is not JSON.
#[test]
fn with_json_messages_the_start_is_json_too() {
    let config = ["--policy", "5/1h per user", "--resp", "127.0.0.1:0", "--log-json"];
    let server = Server::start(&config);
    let [line] = server.greeting.lines().collect::<Vec<_>>()[..] else { panic!("{}", server.greeting) };
    let started: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((&started["level"], &started["fields"]["message"]), (&"INFO".into(), &"started".into()));
    assert!(started["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{line}");
    let fields = &started["fields"];
    assert_eq!(fields["listening"], serde_json::json!([server.url]));
    assert!(fields["ports"]["resp"][0].as_str().unwrap().starts_with("redis://127.0.0.1:"), "{line}");
    assert_eq!(fields["policies"].as_array().unwrap().len(), 1);
    assert_eq!(fields["try"], format!("curl -i '{}/v1/check?user=alice'", server.url));
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

/// An operator sizes a machine by these figures.
#[test]
fn validate_says_what_keys_take_as_in_the_documentation() {
    let folder = TempDir::new("validate-keys");
    let file = folder.file("slidegate.yaml", "policies: [{name: per-user, scope: [user], quota: 100/1m}]\n");
    let output = text(&run(&["validate", &file, "--keys", "1M"]).stdout);
    let line = output.lines().last().unwrap();
    assert!(include_str!("../../../../docs/commands.md").contains(line), "{line}");
    assert!(line.starts_with("per-user: a key takes at most "), "{line}");

    let limits = folder.file(
        "edge.yaml",
        "domain: edge\ndescriptors:\n  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5}}\n",
    );
    std::fs::create_dir(format!("{}/limits", folder.as_str())).unwrap();
    std::fs::rename(&limits, format!("{}/limits/edge.yaml", folder.as_str())).unwrap();
    let output = run(&["validate", "--envoy-config", &format!("{}/limits", folder.as_str()), "--keys", "10"]);
    let output = text(&output.stdout);
    assert!(output.lines().last().unwrap().contains("; 10 keys take "), "{output}");
    assert!(!output.contains("per-user"), "{output}");

    let output = run(&["validate", &file, "--keys", "1", "--format", "json"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
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

/// An HTTP server that records the heads of requests and always answers the same.
struct Recorder {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    fn start(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let recorded = Arc::clone(&requests);
        std::thread::spawn(move || {
            // Each on a thread of its own: a test that asks for a port which nobody had may find this one.
            for mut stream in listener.incoming().map_while(Result::ok) {
                let (recorded, answer) = (Arc::clone(&recorded), answer.clone());
                std::thread::spawn(move || {
                    let (mut received, mut part) = (Vec::new(), [0; 8192]);
                    // One read may hold the head and the body, so that the head need not be at its end.
                    let head = loop {
                        if let Some((head, _)) = text(&received).split_once("\r\n\r\n") {
                            break head.to_ascii_lowercase();
                        }
                        match stream.read(&mut part) {
                            Ok(length) if length > 0 => received.extend_from_slice(&part[..length]),
                            _ => return,
                        }
                    };
                    recorded.lock().unwrap().push(head);
                    drop(stream.write_all(answer.as_bytes()));
                    // To close with a body unread would reset the connection before the answer is read.
                    drop(std::io::copy(&mut stream, &mut std::io::sink()));
                });
            }
        });
        Self { address, requests }
    }

    /// The requests since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

/// A token is for the server that its user named; whoever reads it may lift every limit.
#[test]
fn a_token_goes_to_no_proxy_in_clear_text_and_not_where_a_redirect_leads() {
    let folder = TempDir::new("cli-proxies");
    let ca_file = folder.file("ca.crt", Authority::new("authority").pem());
    let server = Server::start(&["--policy", "5/1h per user"]);
    let proxy = Recorder::start("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n".to_owned());
    let check = |url: &str, no_proxy: &str| {
        let mut command = slidegate();
        command.args(["check", "user=alice", "--url", url, "--ca-file", &ca_file, "--timeout", "60000"]);
        for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"] {
            command.env_remove(name.to_lowercase()).env(name, format!("http://{}", proxy.address));
        }
        command.env_remove("no_proxy").env("NO_PROXY", no_proxy).env("SLIDEGATE_TOKEN", "secret");
        command.output().unwrap().status.code()
    };
    assert_eq!(check(&server.url, ""), Some(0));
    assert_eq!(proxy.take(), [""; 0], "a server on this machine");
    for (url, no_proxy) in [
        ("http://limits.invalid:7979", ""),
        ("https://localhost:1", ""),
        ("https://limits.invalid", "other.invalid,limits.invalid"),
    ] {
        assert_eq!(check(url, no_proxy), Some(2), "{url}");
        assert_eq!(proxy.take(), [""; 0], "{url} {no_proxy}");
    }
    assert_eq!(check("https://limits.invalid", "other.invalid"), Some(2));
    let requests = proxy.take();
    let [tunnel] = &requests[..] else { panic!("one request to the proxy: {requests:?}") };
    assert!(tunnel.starts_with("connect limits.invalid:443 ") && !tunnel.contains("secret"), "{tunnel}");

    let location = format!("location: {}", server.url);
    let redirect = format!("HTTP/1.1 307 Temporary Redirect\r\n{location}\r\ncontent-length: 0\r\n\r\n");
    let redirects = Recorder::start(redirect);
    assert_eq!(check(&format!("http://{}", redirects.address), ""), Some(2));
    let requests = redirects.take();
    let [request] = &requests[..] else { panic!("one request to the server that redirects: {requests:?}") };
    assert!(request.contains("authorization: bearer secret"), "{request}");
    assert_eq!(server.get("/v1/keys/per-user/alice").json()["used"], 1, "the redirect was not followed");
}
