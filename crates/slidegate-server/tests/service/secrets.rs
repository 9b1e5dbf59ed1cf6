//! Secrets: nothing that the service or its commands write holds one, whatever form it was given in.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::http::send;
use slidegate_testkit::service::{Server, Token, slidegate};

/// What must not be seen.
const HIDDEN: &str = "unseen9";
/// Texts that are no URL of a store, each with a password.
const WRONG: [&str; 44] = [
    "127.0.0.1:1,password=unseen9,ssl=True",
    "127.0.0.1:1,password=unseen9,ssl=True,abortConnect=False",
    "redis://127.0.0.1:1,password=unseen9,ssl=True",
    "redis+cluster://127.0.0.1:1,password=unseen9",
    "redis+sentinel://127.0.0.1:1,password=unseen9/main",
    "redis+sentinel://127.0.0.1:1/main,password=unseen9",
    "redis://:unseen9@127.0.0.1:x",
    "redis://me:unseen9@127.0.0.1:1/0?x=unseen9",
    "redis://127.0.0.1:1?password=unseen9",
    "redis://127.0.0.1:1/unseen9",
    "redis://127.0.0.1:unseen9",
    "redis://me:unseen9",
    "redis://unseen9@127.0.0.1",
    "redis://unseen9@127.0.0.1:1/0",
    "redis:/:unseen9@127.0.0.1:1",
    "redis//:unseen9@127.0.0.1:1",
    "redis::unseen9@127.0.0.1:1",
    "://:unseen9@127.0.0.1:1",
    "http://:unseen9@127.0.0.1:1",
    "redsi://:unseen9@127.0.0.1:1",
    "rediss+unix://:unseen9@127.0.0.1:1",
    ":unseen9@127.0.0.1:x",
    "unseen9@127.0.0.1:x",
    "me:unseen9@127.0.0.1:x",
    "redis://:unseen9@::1:6379",
    "redis://:unseen9@[::1",
    "redis://:unseen9@[127.0.0.1]:1",
    "redis://:unseen9%@127.0.0.1:1",
    "redis://:unseen9%zz@127.0.0.1:1",
    "redis://:unseen9%ff@127.0.0.1:1",
    "redis://:unseen9@",
    "redis://:a@127.0.0.1:1,:unseen9@127.0.0.1:2",
    "redis+cluster://:unseen9@127.0.0.1:1,:unseen9@127.0.0.1:2",
    "redis+sentinel://:unseen9@127.0.0.1:1,:unseen9@127.0.0.1:2/main",
    "redis+sentinel://127.0.0.1:1/main?sentinel_pas=unseen9",
    "unix:///r.sock?password=unseen9",
    "unix://:unseen9@/r.sock",
    "unix:///r.sock unseen9",
    "redis-cli -a unseen9 -h 127.0.0.1",
    "-a unseen9 -h 127.0.0.1",
    "\"redis://:unseen9@127.0.0.1:1\"",
    "{\"host\": \"127.0.0.1\", \"password\": \"unseen9\"}",
    "redis://127.0.0.1:1 \u{1b}[2Junseen9\u{7}",
    "redis://:unseen9@127.0.0.1:1\nredis://:unseen9@127.0.0.1:2",
];
/// URLs of stores that are away, each with a password.
const RIGHT: [&str; 6] = [
    "redis://:unseen9@127.0.0.1:1",
    "redis://me:hid%40unseen9@127.0.0.1:1/2",
    "redis://me:@unseen9/#@127.0.0.1:1\n",
    "redis+cluster://:unseen9@127.0.0.1:1,127.0.0.1:2",
    "redis+sentinel://me:unseen9@127.0.0.1:1/main?sentinel_pass=unseen9",
    "unix:///no/such.sock?user=me&pass=unseen9",
];
/// The ways to give it.
const WAYS: [&str; 9] =
    ["argument", "variable", "file", "path", "quoted", "raw", "single", "cluster", "sentinel"];
/// An address for documentation.
const NOWHERE: &str = "203.0.113.1:1";
/// Routes that say what the service does.
const ROUTES: [&str; 10] = [
    "/readyz",
    "/metrics",
    "/v1/status",
    "/v1/policies",
    "/v1/changes",
    "/v1/history",
    "/v1/top?by=used",
    "/v1/check?user=alice",
    "/openapi.json",
    "/",
];

struct Given {
    folder: TempDir,
    limits: String,
}

impl Given {
    fn new() -> Self {
        let folder = TempDir::new("given");
        folder.file("limits/config/a.yaml", "domain: a\n");
        let limits = format!("{}/limits", folder.as_str());
        Self { folder, limits }
    }

    /// The command with the text given in this way. `None` if it does not take it so.
    fn command(&self, name: &str, way: &str, text: &str) -> Option<Command> {
        let mut command = slidegate();
        command.arg(name);
        let config = |content: String| self.folder.file("slidegate.yaml", content);
        let policies = "policies: [{name: per-user, scope: [user], quota: 5/1m}]\n";
        match way {
            "argument" if name == "validate" => return None,
            "argument" => _ = command.args(["--redis", text]),
            "variable" => _ = command.env("SLIDEGATE_REDIS", text),
            "file" => _ = command.env("SLIDEGATE_REDIS_FILE", self.folder.file("url", text)),
            "path" => _ = command.env("SLIDEGATE_REDIS_FILE", text),
            "quoted" => {
                let quoted = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let quoted = quoted.replace('\u{1b}', "\\e").replace('\u{7}', "\\a");
                command.args(["--config", &config(format!("store: {{redis: \"{quoted}\"}}\n{policies}"))]);
            }
            "raw" => _ = command.args(["--config", &config(format!("store:\n  redis: {text}\n{policies}"))]),
            _ if name == "serve" => return None,
            of_envoy => {
                let (kind, before) = match of_envoy {
                    "sentinel" => ("SENTINEL", "main,"),
                    other => (other, ""),
                };
                command.arg("--envoy-env").env("RUNTIME_ROOT", &self.limits).env("REDIS_TYPE", kind);
                command.env("REDIS_URL", format!("{before}{text}"));
            }
        }
        if name == "validate" && !["quoted", "raw", "single", "cluster", "sentinel"].contains(&way) {
            command.args(["--config", &config(policies.to_owned())]);
        }
        Some(command)
    }
}

/// What a command wrote, which ends by itself.
fn written(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// The log of a unit that did not start is pasted into tickets.
#[test]
fn no_form_of_a_wrong_url_is_shown_however_it_is_given() {
    let given = Given::new();
    for (at, text) in WRONG.iter().enumerate() {
        for (number, way) in WAYS.iter().enumerate() {
            // Each text is given to `serve` in each way, and in each way to one of the others.
            let other = ["doctor", "validate"][(at + number) % 2];
            for name in ["serve", other] {
                let Some(mut command) = given.command(name, way, text) else { continue };
                if name == "serve" {
                    // No machine has it, so that no service stays.
                    command.args(["--listen", NOWHERE]);
                }
                let is_read_otherwise = matches!(*way, "raw" | "single" | "cluster" | "sentinel");
                if name == "serve" && is_read_otherwise {
                    continue;
                }
                let (code, written) = written(&mut command);
                assert!(!written.contains(HIDDEN), "{name}, {way}, {text}: {written}");
                assert!(!written.contains('\u{1b}'), "{name}, {way}, {text}: {written}");
                if !is_read_otherwise {
                    assert_eq!(code, Some(2), "{name}, {way}, {text}: {written}");
                    let is_about_it = !written.contains(NOWHERE) && !written.trim().is_empty();
                    assert!(is_about_it, "{name}, {way}, {text}: {written}");
                }
            }
        }
    }
}

/// Metrics and the status are read by more people than may read the password.
#[test]
fn a_service_shows_no_password_of_its_store_anywhere() {
    let given = Given::new();
    for (at, text) in RIGHT.iter().enumerate() {
        let way = ["argument", "variable", "file", "quoted"][at % 4];
        let log = given.folder.path().join("log");
        let mut command = given.command("serve", way, text).expect("it takes it");
        command.args(["--listen", "127.0.0.1:0", "--log-level", "trace"]);
        let server = Server::start_command(&mut command, fs::File::create(&log).expect("a log"));
        let mut seen = server.greeting.clone();
        for route in ROUTES {
            let answer = server.get(route);
            assert_ne!(answer.status, 404, "{route}");
            seen += &answer.body;
        }
        drop(server);
        seen += &fs::read_to_string(&log).expect("a log");
        assert!(!seen.contains(HIDDEN), "{text}: {seen}");
        for name in ["doctor", "validate"] {
            let mut command = given.command(name, "variable", text).expect("it takes it");
            let (_, written) = written(&mut command);
            assert!(!written.contains(HIDDEN), "{name}, {text}: {written}");
        }
    }
}

/// A secret that is not the store's is one as well.
#[test]
fn no_other_secret_is_shown_however_wrong_it_is() {
    let folder = TempDir::new("secrets");
    let config = folder.file("slidegate.yaml", "policies: [{name: p, quota: 5/1m}]\n");
    for variable in [
        "SLIDEGATE_ADMIN_TOKENS=unseen9",
        "SLIDEGATE_ADMIN_TOKENS=ops:write:unseen9",
        "SLIDEGATE_ADMIN_TOKENS=unseen9:write:0",
        "SLIDEGATE_ADMIN_TOKENS_FILE=unseen9",
        "SLIDEGATE_KEY_SECRET_FILE=/unseen9",
        "SLIDEGATE_RESP_PASSWORD_FILE=unseen9",
        "SLIDEGATE_REDIS_URL=redis://:unseen9@h",
        "SLIDEGATE_REDIS_PASSWORD=unseen9",
        "OTEL_EXPORTER_OTLP_ENDPOINT=http://me:unseen9@",
        "OTEL_EXPORTER_OTLP_ENDPOINT=unseen9",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://h/?key=unseen9",
    ] {
        let (name, value) = variable.split_once('=').expect("a variable");
        for command in ["serve", "doctor", "validate"] {
            let (code, written) = written(slidegate().args([command, "--config", &config]).env(name, value));
            assert_eq!(code, Some(2), "{command}, {variable}: {written}");
            assert!(written.contains(name) && !written.contains(HIDDEN), "{command}, {variable}: {written}");
        }
    }
    for section in [
        "resp: {listen: '127.0.0.1:1', password: [unseen9]}",
        "resp: {listen: '127.0.0.1:1', password_file: unseen9}",
        "store: {redis: 'redis://h', key_secret: {unseen9: unseen92}}",
        "store: {redis: {url: 'redis://:unseen9@h'}}",
        "store: {redis: ['redis://:unseen9@h', unseen9]}",
        "store: {redis: 'rediss://h', cert_file: /dev/null, key_file: \"-----BEGIN PRIVATE KEY-----\\nunseen9\"}",
        "store: {redis: redis://:unseen9@h: x}",
        "webhook: {url: 'ftp://h/unseen9', secret: whsec_unseen9}",
        "webhook: {url: 'h/unseen9', secret_file: whsec_unseen9}",
        "webhook: {url: 'https://me:unseen9@h', secret: unseen9}",
        "observe: {traces: {endpoint: 'unseen9'}}",
        "observe: {traces: {endpoint: 'http://h', headers: {authorization: \"unseen9\\n\"}}}",
        "admin: {tokens: [{name: a, scope: read, sha256: unseen9}]}",
    ] {
        let config =
            folder.file("section.yaml", format!("{section}\npolicies: [{{name: p, quota: 5/1m}}]\n"));
        for command in ["serve", "doctor", "validate"] {
            let (code, written) = written(slidegate().args([command, "--config", &config]));
            assert_eq!(code, Some(2), "{command}, {section}: {written}");
            assert!(!written.contains(HIDDEN), "{command}, {section}: {written}");
        }
    }
    let url = "http://me:unseen9@127.0.0.1:1";
    for args in [&["check", "user=alice"][..], &["top", "--once"], &["policy", "list"], &["check", "--help"]]
    {
        let (_, of_argument) = written(slidegate().args(args).args(["--url", url]));
        let (_, of_variable) = written(slidegate().args(args).env("SLIDEGATE_URL", url));
        assert!(!of_argument.contains(HIDDEN) && !of_variable.contains(HIDDEN), "{args:?}: {of_variable}");
    }
}

/// Whoever may ask whether an instance is ready need not learn where Redis is.
#[test]
fn readiness_names_no_address_without_a_token() {
    let token = Token::new("ops", "read");
    for (store, is_away, reason) in [
        (
            &["--redis", "redis://:unseen9@127.0.0.1:1"][..],
            true,
            json!("the shared store is unavailable; each policy uses its fallback"),
        ),
        (&[], false, Value::Null),
    ] {
        let args = [&["--policy", "5/1m per user"], store].concat();
        let server = Server::start_with(&args, &[("SLIDEGATE_ADMIN_TOKENS", &token.entry)]);
        server.assert_matches_openapi("GET", "/readyz", None, 200);
        let expected = json!({ "status": "ready", "degraded": is_away, "reason": reason });
        let url = format!("{}/readyz", server.url);
        let with = |authorization: &str| send("GET", &url, authorization, "").json();
        assert_eq!(with(""), expected);
        assert_eq!(with("authorization: Bearer sg_wrong"), expected);
        let full = with(&format!("authorization: Bearer {}", token.secret));
        assert_eq!(full["store"]["kind"], if is_away { "redis" } else { "memory" }, "{full}");
        let open = Server::start(&args).get("/readyz").json();
        assert_eq!(open["store"]["kind"], full["store"]["kind"], "without tokens, loopback may read");
    }
}
