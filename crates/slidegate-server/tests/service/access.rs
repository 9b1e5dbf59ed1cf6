//! Who may do what: tokens, listeners that are reachable from elsewhere, and web pages that make a
//! browser ask.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::json;
use slidegate_testkit::TempDir;
use slidegate_testkit::http::Response;
use slidegate_testkit::service::{Server, Token, run, slidegate, text};

const ALICE: &str = r#"{"attributes": {"user": "alice"}}"#;
const BATCH: &str = r#"{"requests": [{"attributes": {"user": "alice"}}]}"#;
const POLICY: &str = "policies: [{name: per-user, scope: [user], quota: 1000/1h}]\n";

/// Tokens of each scope: for requests, and as the environment has them.
struct Tokens {
    read: String,
    decide: String,
    write: String,
    variable: String,
}

impl Tokens {
    fn make() -> Self {
        let [read, decide, write] = ["read", "decide", "write"].map(|scope| Token::new(scope, scope));
        let variable = [&read, &decide, &write].map(|token| token.entry.as_str()).join(",");
        Self { read: read.secret, decide: decide.secret, write: write.secret, variable }
    }

    /// A server that knows them.
    fn serve(&self, listen: &str, args: &[&str]) -> Server {
        let variables = [("SLIDEGATE_ADMIN_TOKENS", self.variable.as_str())];
        Server::start_at(listen, &variables, args, Stdio::inherit())
    }
}

/// A request with a host, further fields and a body, of no content type.
fn ask(server: &Server, method: &str, path: &str, host: &str, fields: &str, body: &str) -> Response {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{fields}content-length: {length}\r\n\r\n{body}"
    );
    Response::parse(&server.raw(request.as_bytes()))
}

/// A proxy and this service that read different ones of two fields decide for different clients.
#[test]
fn a_request_with_two_hosts_or_two_tokens_is_refused() {
    let tokens = Tokens::make();
    let server = tokens.serve("127.0.0.1:0", &[]);
    let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
    let both = [bearer(&tokens.write), bearer("sg_wrong")];
    for (method, path) in
        [("POST", "/v1/check"), ("POST", "/v1/refund"), ("GET", "/v1/status"), ("GET", "/v1/auth/x")]
    {
        for fields in [both.concat(), [both[1].clone(), both[0].clone()].concat()] {
            let refused = ask(&server, method, path, "localhost", &fields, ALICE);
            let detail = "more than one `authorization` header: send exactly one";
            assert_eq!((refused.status, refused.json()["detail"].as_str()), (400, Some(detail)), "{path}");
        }
        let refused = ask(&server, method, path, "localhost", "host: localhost\r\n", ALICE);
        let detail = "more than one `host` header: send exactly one";
        assert_eq!((refused.status, refused.json()["detail"].as_str()), (400, Some(detail)), "{path}");
    }
    // Fields that may be repeated.
    let fields = format!("{}accept: a\r\naccept: b\r\n", both[0]);
    assert_eq!(ask(&server, "GET", "/v1/status", "localhost", &fields, "").status, 200);
}

/// A customer sees its own usage and denials, and nobody else's.
#[test]
fn a_token_of_one_key_is_a_customers_own_view() {
    let folder = TempDir::new("own-key");
    let Token { secret: token, sha256, .. } = Token::new("acme", "read");
    let config = |scope: &str| {
        let token = format!("{{name: acme, scope: {scope}, key: per-user/alice, sha256: {sha256}}}");
        let policy = "policies: [{name: per-user, scope: [user], quota: 1/1h}]";
        folder.file("slidegate.yaml", format!("admin: {{tokens: [{token}]}}\n{policy}\n"))
    };
    let server = Server::start(&["--config", &config("read")]);
    for user in ["alice", "bob"] {
        for _ in 0..2 {
            server.post("/v1/check", &json!({ "attributes": { "user": user } }).to_string());
        }
    }
    let bearer = format!("authorization: Bearer {token}\r\n");
    let get = |path: &str| ask(&server, "GET", path, "localhost", &bearer, "");
    assert_eq!(get("/v1/keys/per-user/alice").json()["key"], "alice");
    let events = get("/v1/events?policy=per-user&key=alice").json();
    assert_eq!(events["events"].as_array().unwrap().len(), 1, "{events}");
    assert_eq!(events["events"][0]["key"], "alice");
    for path in [
        "/v1/keys/per-user/bob",
        "/v1/events",
        "/v1/events?policy=per-user&key=bob",
        "/v1/status",
        "/v1/policies",
        "/v1/top",
        "/v1/keys?policy=per-user",
        "/v1/live",
        "/v1/shadow",
        "/v1/changes",
        "/metrics",
    ] {
        let refused = get(path);
        let detail = "token `acme` is limited to the key `per-user/alice`: it reads `/v1/keys/POLICY/KEY` and \
                      `/v1/events?policy=POLICY&key=KEY` of this key only";
        assert_eq!((refused.status, refused.json()["detail"].as_str()), (403, Some(detail)), "{path}");
        assert_eq!(refused.json()["own_key"], "per-user/alice", "the dashboard opens it");
    }
    for (path, body) in [("/v1/refund", ALICE), ("/v1/keys/per-user/alice/reset", "{}")] {
        let fields = format!("{bearer}content-type: application/json\r\n");
        assert_eq!(ask(&server, "POST", path, "localhost", &fields, body).status, 403, "{path}");
    }
    let wrong = run(&["validate", &config("write")]);
    let said = text(&wrong.stdout) + &text(&wrong.stderr);
    let why = "invalid tokens: `acme` has a key and the scope `write`; a token of one key only reads, so write `scope: \
               read`";
    assert!(said.contains(why), "{said}");
}

/// Answers contain keys, which clients choose: no browser may take one for a page.
#[test]
fn answers_are_never_taken_for_another_type() {
    let server = Server::start(&[]);
    for (method, path, body) in [
        ("POST", "/v1/check", ALICE),
        ("POST", "/v1/check/batch", BATCH),
        ("POST", "/v1/check", "nonsense"),
        ("GET", "/v1/status", ""),
        ("GET", "/", ""),
        ("GET", "/metrics", ""),
        ("GET", "/nowhere", ""),
    ] {
        let answer = server.ask(method, path, Some(body));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
}

/// What a proxy's question has at least.
const PROXY: &str = "x-forwarded-uri: /\r\nx-forwarded-method: GET\r\n";

/// Every kind of request that the table in SECURITY.md has, each with the row that it stands for.
const ROWS: [(&str, &str, &str, &str); 13] = [
    ("decide", "POST", "/v1/check", ALICE),
    ("decide", "GET", "/v1/check?user=alice", ""),
    ("decide", "POST", "/v1/check/batch", BATCH),
    ("decide", "POST", "/v1/peek", ALICE),
    ("decide", "GET", "/v1/auth/caddy?user=alice", ""),
    ("adjust", "POST", "/v1/refund", ALICE),
    ("adjust", "POST", "/v1/penalize", ALICE),
    ("adjust", "POST", "/v1/reset", ALICE),
    ("look", "GET", "/v1/keys/per-user/alice", ""),
    ("look", "GET", "/metrics", ""),
    ("change", "POST", "/v1/keys/per-user/alice/reset", "{}"),
    ("change", "POST", "/v1/policies/per-user/reset", "{}"),
    ("open", "GET", "/readyz", ""),
];

/// The table in SECURITY.md is what people deploy by: each of its cells must be what the service
/// does.
#[test]
fn each_action_needs_what_the_table_says_on_every_kind_of_listener() {
    let tokens = Tokens::make();
    let folder = TempDir::new("access-table");
    let plain = folder.file("plain.yaml", POLICY);
    let strict = folder.file("strict.yaml", format!("{POLICY}admin: {{decisions: token}}\n"));
    let (local, public) = ("127.0.0.1:0", "0.0.0.0:0");
    let servers = [
        ("loopback", Server::start_at(local, &[], &["--config", &plain], Stdio::inherit())),
        ("public", Server::start_at(public, &[], &["--config", &plain], Stdio::null())),
        ("tokens", tokens.serve(local, &["--config", &plain])),
        ("tokens", tokens.serve(public, &["--config", &plain])),
        ("strict", tokens.serve(local, &["--config", &strict])),
    ];
    for (kind, server) in &servers {
        let shown = [
            ("none", None),
            ("read", Some(&tokens.read)),
            ("decide", Some(&tokens.decide)),
            ("write", Some(&tokens.write)),
        ];
        for (scope, token) in shown {
            let bearer = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
            for (row, method, path, body) in ROWS {
                let needed: &[&str] = match (*kind, row) {
                    (_, "open") | ("loopback", _) | ("public" | "tokens", "decide") => {
                        &["none", "read", "decide", "write"]
                    }
                    ("public", _) => &[],
                    (_, "decide" | "adjust") => &["decide", "write"],
                    (_, "look") => &["read", "write"],
                    (_, _) => &["write"],
                };
                let status = match (needed.contains(&scope), scope) {
                    (true, _) => 200,
                    (false, "none") if *kind != "public" => 401,
                    (false, _) => 403,
                };
                let json = if row == "change" { "content-type: application/json\r\n" } else { "" };
                let fields = format!("{PROXY}{bearer}{json}");
                let answer = ask(server, method, path, &server.address, &fields, body);
                let what = format!("{kind} {scope} {method} {path}");
                assert_eq!(answer.status, status, "{what}: {}", answer.body);
                let names_way_out =
                    status == 200 || answer.json()["detail"].as_str().unwrap().contains("token");
                assert!(names_way_out, "{what}: {}", answer.body);
            }
        }
    }
}

/// Any page that is open in a browser on this machine reaches loopback: it must neither charge nor
/// reset anything there.
#[test]
fn web_pages_of_other_sites_reach_no_decision() {
    let (folder, rules_folder) = (TempDir::new("access-pages"), TempDir::new("access-pages-rules"));
    let rules = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000}}]";
    rules_folder.file("rules.yaml", rules);
    let config = folder.file("slidegate.yaml", format!("{POLICY}admin: {{hosts: [gate.internal]}}\n"));
    let server = Server::start(&["--config", &config, "--envoy-config", rules_folder.as_str()]);
    let own = server.address.as_str();
    let port = own.rsplit(':').next().unwrap();
    let (rebound, named) = (format!("evil.example:{port}"), format!("gate.internal:{port}"));
    let call = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}"#;
    let routes = [
        ("POST", "/v1/check", ALICE),
        ("GET", "/v1/check?user=alice", ""),
        ("POST", "/v1/check/batch", BATCH),
        ("POST", "/v1/peek", ALICE),
        ("POST", "/v1/refund", ALICE),
        ("POST", "/v1/penalize", ALICE),
        ("POST", "/v1/reset", ALICE),
        ("POST", "/json", call),
    ];
    for (method, path, body) in routes {
        for (host, fields) in [
            (own, "sec-fetch-site: cross-site\r\n"),
            (own, "sec-fetch-site: same-site\r\n"),
            (own, "origin: https://evil.example\r\n"),
            (own, "origin: http://127.0.0.1:3000\r\n"),
            (own, "origin: null\r\ncontent-type: text/plain\r\n"),
            (rebound.as_str(), ""),
            (rebound.as_str(), "sec-fetch-site: same-origin\r\n"),
            ("evil.example", ""),
        ] {
            let refused = ask(&server, method, path, host, fields, body);
            assert_eq!(refused.status, 403, "{method} {path} {host} {fields}: {}", refused.body);
        }
    }
    // An image on a page in plain HTTP: the browser says neither a site nor an origin.
    let firefox = "user-agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n";
    for method in ["GET", "HEAD"] {
        let refused = ask(&server, method, "/v1/check?user=alice", own, firefox, "");
        assert_eq!(refused.status, 403, "{method}: {}", refused.body);
    }
    let rlconfig = ask(&server, "GET", "/rlconfig", "evil.example", "", "");
    assert_eq!(rlconfig.status, 403, "{}", rlconfig.body);
    assert_eq!(server.get("/v1/keys/per-user/alice").json()["used"], 0, "nothing was charged");
    // Programs go on as before: whatever content type curl chooses, by every name of this machine.
    for (method, path, body) in routes {
        for (host, fields) in [
            (own, ""),
            (own, "content-type: application/x-www-form-urlencoded\r\n"),
            (own, "content-type: application/json\r\n"),
            (own, "sec-fetch-site: none\r\n"),
            (&format!("localhost:{port}"), ""),
            (&format!("[::1]:{port}"), ""),
            (&named, ""),
        ] {
            let passed = ask(&server, method, path, host, fields, body);
            assert_eq!(passed.status, 200, "{method} {path} {host} {fields}: {}", passed.body);
        }
    }
}

/// A service in a cluster is called by names that it does not know; and a token is no browser's to
/// send.
#[test]
fn names_of_a_network_and_tokens_pass_where_pages_do_not() {
    let public = Server::start_at("0.0.0.0:0", &[], &["--policy", "1000/1h per user"], Stdio::null());
    let service = "slidegate.default.svc.cluster.local:7979";
    assert_eq!(ask(&public, "POST", "/v1/check", service, "", ALICE).status, 200);
    let foreign = ask(&public, "POST", "/v1/check", service, "origin: https://evil.example\r\n", ALICE);
    assert_eq!(foreign.status, 403, "a page in the browser of somebody on that network: {}", foreign.body);

    let tokens = Tokens::make();
    let server = tokens.serve("127.0.0.1:0", &["--policy", "1000/1h per user"]);
    for (token, status) in [(&tokens.decide, 200), (&tokens.write, 200), (&tokens.read, 403)] {
        let fields = format!("authorization: Bearer {token}\r\nsec-fetch-site: cross-site\r\n");
        let answer = ask(&server, "POST", "/v1/check", "gate.example", &fields, ALICE);
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    assert_eq!(ask(&server, "POST", "/v1/check", "gate.example", "", ALICE).status, 403);
}

/// Proxies hand on what their clients' browsers say: a site that is linked to from another must go
/// on working.
#[test]
fn a_proxys_question_is_answered_whatever_its_client_says_and_a_page_cannot_ask_one() {
    let server = Server::start(&["--policy", "1000/1h per user"]);
    let port = server.address.rsplit(':').next().unwrap();
    let browser = "origin: https://elsewhere.example\r\nsec-fetch-site: cross-site\r\nx-user: alice\r\n";
    for host in ["shop.example", "shop.example:8443", "slidegate", "127.0.0.1:8001", server.address.as_str()]
    {
        let answer = ask(&server, "GET", "/v1/auth/caddy", host, &format!("{PROXY}{browser}"), "");
        assert_eq!(answer.status, 200, "{host}: {}", answer.body);
    }
    let used = || server.get("/v1/keys/per-user/alice").json()["used"].clone();
    assert_eq!(used(), 5);
    // A page cannot set the fields of a question without asking first, which nobody answers.
    for proxy in ["nginx", "caddy", "traefik"] {
        for method in ["GET", "POST"] {
            let path = format!("/v1/auth/{proxy}?user=alice");
            let page = ask(&server, method, &path, &server.address, "sec-fetch-site: cross-site\r\n", "");
            assert_eq!(page.status, 400, "{path}: {}", page.body);
        }
    }
    // One that makes its name resolve to this machine can, and its browser writes this service's
    // port.
    let rebound =
        ask(&server, "GET", "/v1/auth/caddy?user=alice", &format!("evil.example:{port}"), PROXY, "");
    assert_eq!(rebound.status, 403, "{}", rebound.body);
    assert_eq!(used(), 5, "nothing was charged");
}

/// Guesses must not be free, nor lock out who has the right token and shares an address with the
/// guesser.
#[test]
fn wrong_tokens_are_limited_by_address_and_right_ones_go_on() {
    let tokens = Tokens::make();
    let server = tokens.serve("127.0.0.1:0", &["--policy", "1000/1h per user"]);
    let reset = |token: &str| {
        let fields = format!("authorization: Bearer {token}\r\n");
        ask(&server, "POST", "/v1/reset", &server.address, &fields, ALICE)
    };
    let statuses: Vec<_> = (0..60).map(|guess| reset(&format!("sg_{guess}")).status).collect();
    let wrong = statuses.iter().take_while(|status| **status == 401).count();
    assert!((3..=30).contains(&wrong), "{statuses:?}");
    assert!(statuses[wrong..].iter().all(|status| *status == 429), "{statuses:?}");
    let refused = reset("sg_again");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(reset(&tokens.decide).status, 200);
}

/// A token that stands among a command's arguments is read by everybody on the machine.
#[test]
fn every_command_takes_its_token_from_the_environment_or_a_file() {
    let tokens = Tokens::make();
    let folder = TempDir::new("access-commands");
    let config = folder.file("slidegate.yaml", format!("{POLICY}admin: {{decisions: token}}\n"));
    let server = tokens.serve("127.0.0.1:0", &["--config", &config]);
    let file = folder.file("token", format!("{}\n", tokens.write));
    for command in [
        &["check", "user=alice"][..],
        &["check", "user=alice", "--peek"],
        &["top", "--once"],
        &["key", "show", "per-user", "alice"],
        &["key", "refund", "per-user", "alice"],
        &["policy", "list"],
        &["policy", "reset", "per-user", "--yes"],
    ] {
        let run = |args: &[&str], variable: Option<&str>| {
            let mut run = slidegate();
            run.args(command).args(args).env("SLIDEGATE_URL", &server.url).stdin(Stdio::null());
            if let Some(token) = variable {
                run.env("SLIDEGATE_TOKEN", token);
            }
            run.output().unwrap()
        };
        let by_file = run(&["--token-file", &file], None);
        assert!(by_file.status.success(), "{command:?}: {}", text(&by_file.stderr));
        let by_variable = run(&[], Some(&tokens.write));
        assert!(by_variable.status.success(), "{command:?}: {}", text(&by_variable.stderr));
        let without = run(&[], None);
        assert_eq!(without.status.code(), Some(2), "{command:?}");
        assert!(text(&without.stderr).contains("token required"), "{}", text(&without.stderr));
        // What is wrong with a file is said, and nothing is asked without the token that was to be
        // there.
        let empty = folder.file("empty", "\n");
        for (wrong, said) in [(empty.as_str(), "the file is empty"), ("/nowhere", "No such file")] {
            let refused = run(&["--token-file", wrong], Some(&tokens.write));
            assert_eq!(refused.status.code(), Some(2), "{command:?}");
            assert!(text(&refused.stderr).contains(said), "{}", text(&refused.stderr));
        }
    }
}

/// A token that is taken back, or a rule that is made stricter, must count from the next request
/// on.
#[test]
fn rules_change_with_the_configuration() {
    let folder = TempDir::new("access-reload");
    let tokens = Tokens::make();
    let config = folder.file("slidegate.yaml", POLICY);
    let server = tokens.serve("127.0.0.1:0", &["--config", &config]);
    assert_eq!(server.post("/v1/check", ALICE).status, 200);
    folder.file("slidegate.yaml", format!("{POLICY}admin: {{decisions: token}}\n"));
    server.signal("HUP");
    let strict = (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        server.post("/v1/check", ALICE).status == 401
    });
    assert!(strict, "decisions need a token");
    let fields = format!("authorization: Bearer {}\r\n", tokens.decide);
    assert_eq!(ask(&server, "POST", "/v1/check", &server.address, &fields, ALICE).status, 200);
}

/// The RESP port's password is its credential: without one, it must not be the way round the
/// tokens.
#[test]
fn commands_of_the_resp_port_follow_the_same_rules() {
    let tokens = Tokens::make();
    let noperm = |word: &str, why: &str| {
        format!("-NOPERM {word} requires a password because {why}; set resp.password_file and send AUTH\r\n")
    };
    let why = "tokens are configured or the port is not on loopback";
    let password = [("SLIDEGATE_RESP_PASSWORD", "open sesame")];
    let with_tokens = [("SLIDEGATE_ADMIN_TOKENS", tokens.variable.as_str())];
    let both = [password[0], with_tokens[0]];
    for (resp, variables, may_adjust) in [
        ("127.0.0.1:0", &[][..], true),
        ("127.0.0.1:0", &with_tokens, false),
        ("127.0.0.1:0", &both, true),
        ("0.0.0.0:0", &[], false),
        ("0.0.0.0:0", &password, true),
    ] {
        let args = ["--policy", "9/1h per user", "--resp", resp];
        let server = Server::start_at("127.0.0.1:0", variables, &args, Stdio::null());
        let port = server.address_of("resp").rsplit(':').next().unwrap();
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        let auth = variables.iter().any(|(name, _)| name.ends_with("PASSWORD"));
        if auth {
            stream.write_all(b"AUTH \"open sesame\"\r\n").unwrap();
        }
        stream.write_all(b"RL.REFUND per-user alice\r\nRL.RESET per-user alice\r\nPING\r\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let refused = format!("{}{}", noperm("RL.REFUND", why), noperm("RL.RESET", why));
        assert_eq!(answer.contains(&refused), !may_adjust, "{resp} {variables:?}: {answer}");
        assert_eq!(answer.contains("NOPERM"), !may_adjust, "{resp} {variables:?}: {answer}");
        assert!(answer.ends_with("+PONG\r\n"), "the connection stays: {answer}");
    }
}

/// A reset of millions of keys must hold nobody up, and a script must know when it is done.
#[test]
fn a_policy_is_reset_in_bounded_steps_and_no_other() {
    let tokens = Tokens::make();
    let folder = TempDir::new("access-reset");
    let log = folder.file("log", "");
    let policies =
        "policies: [{name: per-user, scope: [user], quota: 9/1h}, {name: other, scope: [user], quota: 9/1h}]";
    let config = folder.file("slidegate.yaml", policies);
    let variables = [("SLIDEGATE_ADMIN_TOKENS", tokens.variable.as_str())];
    let file = std::fs::File::create(&log).unwrap();
    let server = Server::start_at("127.0.0.1:0", &variables, &["--config", &config], file);
    const USERS: u64 = 20_000;
    for batch in 0..USERS / 1000 {
        let request = |user: u64| json!({ "attributes": { "user": format!("u{user}") } });
        let requests: Vec<_> = (batch * 1000..(batch + 1) * 1000).map(request).collect();
        assert_eq!(server.post("/v1/check/batch", &json!({ "requests": requests }).to_string()).status, 200);
    }
    let bearer = format!("Bearer {}", tokens.write);
    let step = |body: &serde_json::Value| {
        let fields = [("authorization", bearer.as_str())];
        server.change("POST", "/v1/policies/per-user/reset", &fields, &body.to_string())
    };
    let (mut body, mut steps, mut scanned) = (json!({ "limit": 2000 }), 0, 0);
    let last = loop {
        let answer = step(&body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer = answer.json();
        let now = answer["scanned"].as_u64().unwrap();
        // A step ends with the shard in which it has looked at as many keys; those of two policies
        // lie in it.
        assert!(now - scanned <= 2000 + 4 * 1024, "{answer}");
        (steps, scanned) = (steps + 1, now);
        if answer["cursor"].is_null() {
            break answer;
        }
        body = json!({ "limit": 2000, "cursor": answer["cursor"] });
    };
    assert_eq!(last["forgotten"], USERS, "{last}");
    assert_eq!(last["done"], format!("forgot {USERS} keys"));
    assert!(steps >= 5, "{steps}");
    for (path, used) in [("/v1/keys/per-user/u7", 0), ("/v1/keys/other/u7", 1)] {
        let fields = format!("authorization: {bearer}\r\n");
        assert_eq!(server.ask_with(&fields, "GET", path, None).json()["used"], used, "{path}");
    }
    for (body, status, said) in [
        (json!({ "limit": 0 }), 400, "invalid limit `0`: must be a whole number from 1 to 10000"),
        (json!({ "cursor": "x" }), 400, "cursor `x` is invalid; send the one from the last step"),
        (json!({ "cursor": "node.1.0.0.0.0.-" }), 400, "the cursor is that of a shared store"),
    ] {
        let refused = step(&body);
        assert_eq!(refused.status, status);
        assert!(refused.json()["detail"].as_str().unwrap().starts_with(said), "{}", refused.body);
    }
    let fields = [("authorization", bearer.as_str())];
    let unknown = server.change("POST", "/v1/policies/nobody/reset", &fields, "{}");
    assert_eq!((unknown.status, unknown.json()["detail"].as_str().unwrap().contains("nobody")), (404, true));

    let mut command = slidegate();
    command.env("SLIDEGATE_TOKEN", &tokens.write).args(["policy", "reset", "other", "--url", &server.url]);
    let asked = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(asked.status.code(), Some(2), "it is not done unasked");
    assert!(text(&asked.stderr).contains("give --yes"), "{}", text(&asked.stderr));
    let done = command.arg("--yes").output().unwrap();
    assert_eq!(text(&done.stdout), format!("other: forgot {USERS} keys\n"));
    let logged = std::fs::read_to_string(&log).unwrap();
    for line in [
        r#"action="reset-policy" policy="per-user" key="" detail="started to forget all keys""#,
        r#"action="reset-policy" policy="per-user" key="" detail="forgot 20000 keys""#,
    ] {
        assert!(logged.contains(line) && logged.contains(r#"by="write""#), "{line}: {logged}");
    }
}
