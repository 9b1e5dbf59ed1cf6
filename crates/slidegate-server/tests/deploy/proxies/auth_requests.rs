//! Auth requests as proxies send them: mappings, mistakes, and untrusted proxies.

use super::*;
use slidegate_testkit::process::command;

fn auth(server: &Server, path: &str, fields: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
    Response::parse(&server.raw(request.as_bytes()))
}

/// A house with two proxies has one service, and each is answered in its own way.
#[test]
fn one_service_answers_several_proxies_each_in_its_own_way() {
    let dir = TempDir::new("auth-several");
    let config = dir.file(
        "slidegate.yaml",
        format!(
            "{POLICIES}
  - {{name: per-tenant, scope: [tenant], quota: 5/1h}}
auth:
  preset: caddy
  attributes: {{tenant: header X-Tenant}}
  proxies:
    edge:
      preset: traefik
      attributes: {{ip: client-address Forwarded, path: none, method: none}}
"
        ),
    );
    let server = Server::start(&["--config", &config]);
    let caddy = "x-forwarded-uri: /login\r\nx-forwarded-method: GET\r\nx-forwarded-for: 192.0.2.7\r\n";
    assert_eq!(auth(&server, "/v1/auth", caddy).status, 200);
    let denied = auth(&server, "/v1/auth/caddy", caddy);
    assert_eq!((denied.status, denied.header("slidegate-status")), (429, None));
    assert_eq!(denied.json()["violated-policies"][0], "login");
    let nginx =
        caddy.replace("x-forwarded-uri", "x-original-uri").replace("x-forwarded-method", "x-original-method");
    let denied = auth(&server, "/v1/auth/nginx", &nginx);
    assert_eq!((denied.status, denied.header("slidegate-status")), (403, Some("429")));

    // Costs and further attributes stand in the proxy's own question.
    let edge = "x-tenant: a\r\nforwarded: for=192.0.2.8\r\n";
    let passed = auth(&server, "/v1/auth/edge?cost=3&route=api", edge);
    assert_eq!(passed.header("ratelimit"), Some("\"per-ip\";r=0;t=3600, \"per-tenant\";r=2;t=3600"));
    assert_eq!(auth(&server, "/v1/auth/edge?user=me", edge).json()["violated-policies"][1], "named");
}

/// A proxy that is set up wrongly must get an error: limits that silently do not apply are found
/// out too late.
#[test]
fn a_question_that_cannot_be_understood_is_refused_by_name() {
    let dir = TempDir::new("auth-wrong");
    let config = dir.file("slidegate.yaml", POLICIES);
    let log = dir.file("log", "");
    let server = Server::start_logging_to(&["--config", &config], std::fs::File::create(&log).unwrap());
    let known = "/v1/auth/nginx, /v1/auth/caddy, /v1/auth/traefik";
    let caddy = "x-forwarded-uri: /\r\nx-forwarded-method: GET\r\n";
    let twice = format!("{caddy}x-user: a\r\nx-user: b\r\n");
    let header = "is read from the header";
    for (path, fields, status, detail) in [
        (
            "/v1/auth",
            caddy,
            404,
            format!("missing proxy: must be one of {known}, or configure `auth: {{preset: nginx}}`"),
        ),
        ("/v1/auth/apache", caddy, 404, format!("unknown proxy `apache`: must be one of {known}")),
        (
            "/v1/auth/nginx",
            caddy,
            400,
            format!(
                "attribute `method` {header} `x-original-method`, which is not there; let the proxy send it, or write \
                 `none` for the attribute"
            ),
        ),
        (
            "/v1/auth/caddy",
            twice.as_str(),
            400,
            format!(
                "attribute `user` {header} `x-user`, which is sent twice; let the proxy replace what its client sent"
            ),
        ),
        (
            "/v1/auth/caddy?cost=-1",
            caddy,
            400,
            "invalid cost `-1`: must be a whole number from 0 to 9007199254740991".into(),
        ),
        ("/v1/auth/caddy?path=/", caddy, 400, "attribute `path` is given twice; give it once".into()),
        ("/v1/auth/caddy?cost=1&cost=1", caddy, 400, "cost is given more than once; give it once".into()),
    ] {
        let answer = auth(&server, path, fields);
        assert_eq!((answer.status, &answer.json()["detail"]), (status, &detail.into()), "{path}");
    }
    assert_eq!(std::fs::read_to_string(&log).unwrap().matches("not trusted").count(), 0);
}

/// Two users, or two files, whose names differ in one byte must not share a limit because the byte
/// is not UTF-8.
#[test]
fn what_a_proxy_sends_is_counted_byte_by_byte() {
    let dir = TempDir::new("auth-bytes");
    let policies = "
policies:
  - {name: per-user, scope: [user], quota: 1/1h}
  - {name: per-file, when: {method: PUT}, scope: [path], quota: 1/1h}
";
    let server = Server::start(&["--config", &dir.file("slidegate.yaml", policies)]);
    let ask = |method: &str, query: &str, uri: &[u8], user: &[u8]| {
        let head = format!("GET /v1/auth/caddy{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        let method = format!("x-forwarded-method: {method}\r\nx-forwarded-uri: ");
        let user = if user.is_empty() { Vec::new() } else { [b"x-user: ", user, b"\r\n"].concat() };
        let request = [head.as_bytes(), method.as_bytes(), uri, b"\r\n", &user, b"\r\n"].concat();
        Response::parse(&server.raw(&request)).status
    };
    for (status, again) in [(200, ""), (429, " again")] {
        for user in [b"\xf1", b"\xf2"] {
            assert_eq!(ask("GET", "", b"/", user), status, "{user:?}{again}");
        }
        for query in ["?user=%F3", "?user=%F4"] {
            assert_eq!(ask("GET", query, b"/", b""), status, "{query}{again}");
        }
        for uri in [&b"/%F1"[..], b"/%F2", b"/\xf3"] {
            assert_eq!(ask("PUT", "", uri, b""), status, "{uri:?}{again}");
        }
    }
}

/// A proxy may hand an error to its client, or take it for an unavailable service: each method is decided.
#[test]
fn every_method_is_decided_with_or_without_a_body() {
    let dir = TempDir::new("auth-methods");
    let server = Server::start(&["--config", &dir.file("slidegate.yaml", POLICIES)]);
    let methods =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY", "PURGE", "get", "X-Y"];
    for (at, method) in methods.into_iter().enumerate() {
        for (path, denied, uri) in [
            ("/v1/auth/traefik", 429, "x-forwarded-uri: /\r\nx-forwarded-method"),
            ("/v1/auth/nginx", 403, "x-original-uri: /\r\nx-original-method"),
        ] {
            let fields = format!("{uri}: {method}\r\nx-forwarded-for: 192.0.2.{at}\r\n");
            let ask = |body: &str| {
                let request = format!(
                    "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}content-length: {}\r\n\r\n{body}",
                    body.len()
                );
                Response::parse(&server.raw(request.as_bytes())).status
            };
            let usage = server
                .post("/v1/reset", &format!(r#"{{"attributes":{{"ip":"192.0.2.{at}"}},"policy":"per-ip"}}"#));
            assert_eq!(usage.status, 200, "{}", usage.body);
            let statuses: Vec<_> = ["", "hi", &"x".repeat(100_000), ""].map(ask).into();
            assert_eq!(statuses, [200, 200, 200, denied], "{method} {path}");
        }
    }
}

/// One host in several spellings has one limit, and a file may spell it in any way.
#[test]
fn a_host_counts_in_every_spelling() {
    let policies = "
policies:
  - {name: api, when: {host: API.example.com}, quota: 0/1h}
  - {name: shops, when: {host: {glob: '*.Shop.example'}}, quota: 0/1h}
  - {name: v6, when: {host: {one_of: ['[2001:DB8::1]', other.example]}}, quota: 0/1h}
auth: {proxies: {edge: {preset: caddy, attributes: {host: header X-Host}}}}
";
    let dir = TempDir::new("auth-hosts");
    let server = Server::start(&["--config", &dir.file("slidegate.yaml", policies)]);
    for (host, is_denied) in [
        ("api.example.com", true),
        ("API.EXAMPLE.COM", true),
        ("Api.example.com:443", true),
        ("api.example.com.", true),
        ("api.example.com.:8080", true),
        ("api.example.com:", true),
        ("a.SHOP.example:80", true),
        ("[2001:db8::1]:443", true),
        ("OTHER.example.", true),
        ("api.example.org", false),
        ("xapi.example.com", false),
    ] {
        for (path, header, denied) in [
            ("nginx", "x-forwarded-host", 403),
            ("caddy", "x-forwarded-host", 429),
            ("traefik", "x-forwarded-host", 429),
            ("edge", "x-host", 429),
        ] {
            let fields = format!(
                "x-forwarded-uri: /\r\nx-forwarded-method: GET\r\nx-original-uri: /\r\nx-original-method: GET\r\n{header}: {host}\r\n"
            );
            let found = auth(&server, &format!("/v1/auth/{path}"), &fields).status;
            assert_eq!(found, if is_denied { denied } else { 200 }, "{path} {host}");
        }
    }
}

/// What a trusted proxy forwards and nobody can read is one client with a limit of its own, not the proxy
/// itself, and the log says so.
#[test]
fn addresses_that_cannot_be_read_count_as_one_client_and_are_logged_once_a_minute() {
    let dir = TempDir::new("auth-unreadable");
    let config = dir.file("slidegate.yaml", POLICIES);
    let log = dir.file("log", "");
    let server = Server::start_logging_to(&["--config", &config], std::fs::File::create(&log).unwrap());
    let proxied = "x-forwarded-uri: /\r\nx-forwarded-method: GET\r\n";
    let ask = |forwarded: &str| auth(&server, "/v1/auth/caddy", &format!("{proxied}{forwarded}")).status;
    let many = "x-forwarded-for: 127.0.0.1\r\n".repeat(17);
    let long = format!("x-forwarded-for: {}\r\n", "a".repeat(9000));
    let unreadable = [
        "x-forwarded-for: unknown\r\n",
        "x-forwarded-for: 192.0.2.1, not-an-address\r\n",
        "x-forwarded-for: 192.0.2.1, 999.1.1.1\r\n",
        "x-forwarded-for: \u{e9}\r\n",
        "x-forwarded-for: 192.0.2.1;\r\n",
        &many,
        &long,
    ];
    let statuses: Vec<_> = unreadable.into_iter().map(ask).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429, 429], "they are one client");
    assert_eq!(ask("x-forwarded-for: 192.0.2.9\r\n"), 200, "which is not that of others");
    assert_eq!(ask(""), 200, "nor the proxy");
    assert_eq!(server.get("/v1/keys/per-ip/unknown").json()["used"], 3);
    let line = until("the log says so", || {
        let log = std::fs::read_to_string(&log).unwrap();
        log.lines().find(|line| line.contains("cannot be read")).map(str::to_owned)
    });
    assert!(line.contains("peer=127.0.0.1") && line.contains("x-forwarded-for"), "{line}");
    assert_eq!(std::fs::read_to_string(&log).unwrap().matches("cannot be read").count(), 1);
}

/// A proxy on the Unix socket is trusted: its clients are told apart without a line of configuration.
#[test]
fn clients_of_a_proxy_on_the_unix_socket_have_limits_of_their_own() {
    for trusted in
        ["", "auth: {trusted_proxies: [unix, 10.0.0.0/8]}\n", "auth: {trusted_proxies: 10.0.0.0/8}\n"]
    {
        let dir = TempDir::new("auth-socket");
        let socket = dir.path().join("http.sock").to_str().unwrap().to_owned();
        let config = dir.file("slidegate.yaml", format!("{POLICIES}server: {{socket: {socket}}}\n{trusted}"));
        let log = dir.file("log", "");
        let _server = Server::start_logging_to(&["--config", &config], std::fs::File::create(&log).unwrap());
        let ask = |forwarded: &str| {
            let request = format!(
                "GET /v1/auth/nginx HTTP/1.1\r\nhost: slidegate\r\nconnection: close\r\nx-original-uri: /\r\nx-original-method: \
                 GET\r\n{forwarded}\r\n"
            );
            let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            Response::parse(&text(&answer)).status
        };
        let of = |client: &str| format!("x-forwarded-for: {client}\r\n");
        let statuses: Vec<_> = (0..4).map(|_| ask(&of("192.0.2.1"))).collect();
        assert_eq!(statuses, [200, 200, 200, 403], "{trusted}");
        assert_eq!(ask(&of("192.0.2.2")), 200, "{trusted}");
        let before = std::fs::read_to_string(&log).unwrap();
        assert!(!before.contains("count as one"), "{before}");
        // Without an address they are limited all the same, and the log says how.
        let statuses: Vec<_> = (0..4).map(|_| ask("")).collect();
        assert_eq!(statuses, [200, 200, 200, 403], "{trusted}");
        until_true("the log says so", || std::fs::read_to_string(&log).unwrap().contains("count as one"));
    }
}

/// All clients of a proxy that nobody declared count as one, and nobody would guess why.
#[test]
fn each_proxy_that_is_not_trusted_is_reported_once_a_minute() {
    let dir = TempDir::new("auth-untrusted");
    let config = dir.file("slidegate.yaml", format!("{POLICIES}auth: {{trusted_proxies: 192.0.2.1}}\n"));
    let log = dir.file("log", "");
    let server = Server::start_logging_to(&["--config", &config], std::fs::File::create(&log).unwrap());
    for client in 1..=4 {
        let fields = format!(
            "x-forwarded-uri: /\r\nx-forwarded-method: GET\r\nx-forwarded-for: 192.0.2.{}\r\n",
            client + 10
        );
        let answer = auth(&server, "/v1/auth/caddy", &fields);
        assert_eq!(answer.status, if client < 4 { 200 } else { 429 });
    }
    let log_text = until("the log says so", || {
        let log_text = std::fs::read_to_string(&log).unwrap();
        log_text.contains("add it to auth.trusted_proxies").then_some(log_text)
    });
    let found: Vec<_> =
        log_text.lines().filter(|line| line.contains("an untrusted proxy forwards")).collect();
    assert!(found.len() == 1 && found[0].contains("peer=127.0.0.1"), "{found:?}");
    // One that anybody can cause must not hide the next.
    let url = format!("{}/v1/auth/caddy", server.url);
    let mut curl = command("curl");
    curl.args([
        "-sf",
        "--interface",
        "127.0.0.2",
        "-H",
        "x-forwarded-uri: /",
        "-H",
        "x-forwarded-method: GET",
    ]);
    let output = curl.args(["-H", "x-forwarded-for: 192.0.2.11", &url]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    until_true("the log says so of the other as well", || {
        std::fs::read_to_string(&log).unwrap().contains("peer=127.0.0.2")
    });
}
