//! Requests that are meant to pass a limit by being invalid, huge, ambiguous or unusual: one table for
//! all proxies, a line each.

/// Which limit is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsedUp {
    /// That of the client's address.
    Address,
    /// That of `/login`.
    Login,
    /// That of the host `shop.example`.
    Host,
}

/// One request, or what looks like some.
pub(super) struct Hostile {
    pub(super) name: String,
    pub(super) used_up: UsedUp,
    pub(super) bytes: Vec<u8>,
}

/// The request with these lines after its first one.
fn request(line: &str, fields: &[u8]) -> Vec<u8> {
    [line.as_bytes(), b" HTTP/1.1\r\n", fields, b"connection: close\r\n\r\n"].concat()
}

/// `GET /a` with these fields.
fn get(fields: impl AsRef<[u8]>) -> Vec<u8> {
    request("GET /a", &[b"host: other.example\r\n", fields.as_ref()].concat())
}

/// A request of this first line to the usual host.
fn line(line: &str) -> Vec<u8> {
    request(line, b"host: other.example\r\n")
}

/// `POST /a` with these fields and this body.
fn post(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("host: other.example\r\n{fields}");
    [request("POST /a", head.as_bytes()), body.to_vec()].concat()
}

/// Every request of the table.
pub(super) fn all() -> Vec<Hostile> {
    let mut all = Vec::new();
    for (used_up, rows) in [
        (UsedUp::Address, heads()),
        (UsedUp::Address, bytes()),
        (UsedUp::Address, identities()),
        (UsedUp::Address, framing()),
        (UsedUp::Address, bodies()),
        (UsedUp::Address, targets()),
        (UsedUp::Login, login_targets()),
        (UsedUp::Host, hosts()),
    ] {
        all.extend(rows.into_iter().map(|(name, bytes)| Hostile { name: name.into(), used_up, bytes }));
    }
    all.extend(METHODS.map(|method| {
        let name = format!("method {method}");
        Hostile { name, used_up: UsedUp::Address, bytes: line(&format!("{method} /a")) }
    }));
    all
}

type Rows = Vec<(&'static str, Vec<u8>)>;

const METHODS: [&str; 14] = [
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "HEAD",
    "TRACE",
    "PURGE",
    "PROPFIND",
    "get",
    "G",
    "M-SEARCH",
    "LINK",
    "QUERY",
    "!#$%&'*+.^_`|~",
];

/// Large heads, and many fields.
fn heads() -> Rows {
    let fields = |count: usize| "x-a: b\r\n".repeat(count);
    let long = |name: &str, bytes: usize| get(format!("{name}: {}\r\n", "v".repeat(bytes)));
    let host = |bytes: usize| request("GET /a", format!("host: {}\r\n", "h".repeat(bytes)).as_bytes());
    let distinct: String = (0..1500).map(|at| format!("x-{at}: b\r\n")).collect();
    vec![
        ("2,000 fields", get(fields(2000))),
        ("20,000 fields", get(fields(20_000))),
        ("1,500 fields of different names", get(distinct)),
        ("150 fields", get(fields(150))),
        ("101 fields", get(fields(101))),
        ("99 fields", get(fields(99))),
        ("a field of 5 MB", long("x-a", 5_000_000)),
        ("a field of 500 kB", long("x-a", 500_000)),
        ("a field of 100 kB", long("x-a", 100_000)),
        ("a field of 64 KiB", long("x-a", 65_536)),
        ("a field of 18 kB", long("x-a", 18_000)),
        ("a field of 15 kB", long("x-a", 15_000)),
        ("a field of 8 kB", long("x-a", 8000)),
        ("a user of 9,000 bytes", long("x-user", 9000)),
        ("cookies of 400 kB", get(format!("cookie: {}\r\n", "c".repeat(4000)).repeat(100))),
        ("tracestate of 17 kB", long("tracestate", 17_000)),
        ("tracestate of 3.9 kB", long("tracestate", 3900)),
        ("a host of 200 kB", host(200_000)),
        ("a host of 15 kB", host(15_000)),
        ("a host of 4 kB", host(4000)),
        ("a name of 20 kB", get(format!("{}: b\r\n", "n".repeat(20_000)))),
        ("a method of 5 kB", line(&format!("{} /a", "M".repeat(5000)))),
        ("a path of 500 kB", line(&format!("GET /{}", "p".repeat(500_000)))),
        ("a path of 15 kB", line(&format!("GET /{}", "p".repeat(15_000)))),
        ("a path of 8 kB", line(&format!("GET /{}", "p".repeat(8000)))),
        ("an encoded path of 15 kB", line(&format!("GET /{}", "%70".repeat(5000)))),
        ("a query of 15 kB", line(&format!("GET /a?{}", "q=1&".repeat(3750)))),
        ("forwarded addresses of 60 kB", get(format!("x-forwarded-for: {}\r\n", "6.6.6.6, ".repeat(6600)))),
        ("1,000 forwarded lines", get("x-forwarded-for: 6.6.6.6\r\n".repeat(1000))),
    ]
}

/// Bytes that do not belong where they are.
fn bytes() -> Rows {
    vec![
        ("user \\xff", get(b"x-user: \xff\r\n")),
        (
            "\\xff in usual fields",
            get(b"user-agent: \xff\r\nreferer: \xfe\r\ncookie: \x80\r\naccept: \xc3\r\n"),
        ),
        (
            "\\xff in forwarding fields",
            get(b"x-forwarded-for: \xff\r\nx-forwarded-host: \xff\r\nforwarded: for=\xff\r\n"),
        ),
        ("\\xff in a name", get(b"x-\xff: b\r\n")),
        (
            "\\xff in the path",
            b"GET /\xff HTTP/1.1\r\nhost: other.example\r\nconnection: close\r\n\r\n".to_vec(),
        ),
        ("\\xff in the host", request("GET /a", b"host: \xff\r\n")),
        ("a path of invalid UTF-8, encoded", line("GET /%ff%fe")),
        ("NUL in a value", get(b"x-user: a\0b\r\n")),
        ("NUL in the path, encoded", line("GET /a%00b")),
        ("DEL in a value", get(b"x-user: a\x7fb\r\n")),
        ("a control character in a value", get(b"x-user: a\x01b\r\n")),
        ("a control character in the target", line("GET /a\x01b")),
        ("a tab in the target", line("GET /a\tb")),
        ("CR in a value", get(b"x-user: a\rx-forwarded-for: 6.6.6.6\r\n")),
        ("line breaks, encoded, in the target", line("GET /a%0d%0ax-forwarded-for:%206.6.6.6")),
        ("a folded field", get(b"x-user: a\r\n x-forwarded-for: 6.6.6.6\r\n")),
        ("a space before the colon", get(b"x-forwarded-for : 6.6.6.6\r\n")),
        ("a field without a colon", get(b"x-forwarded-for\r\n")),
        ("a field without a name", get(b": 6.6.6.6\r\n")),
        ("bare LF", b"GET /a HTTP/1.1\nhost: other.example\nconnection: close\n\n".to_vec()),
        ("a space in the host", request("GET /a", b"host: a b\r\n")),
        ("a quote in the host", request("GET /a", b"host: \"a\r\n")),
        ("a slash in the host", request("GET /a", b"host: a/b?cost=0\r\n")),
        ("a quote that does not end", get(b"forwarded: for=\"\r\nx-user: \"\r\n")),
    ]
}

/// Who the client would like to be.
fn identities() -> Rows {
    const FORWARDED: &str = "x-forwarded-for: 6.6.6.6\r\nx-forwarded-host: free.example\r\nx-forwarded-uri: /free\r\n\
        x-forwarded-method: FREE\r\nx-original-uri: /free\r\nx-original-method: FREE\r\nx-real-ip: 6.6.6.6\r\n\
        forwarded: for=6.6.6.6\r\nx-user: free\r\n";
    const HOP: &str = "x-forwarded-for, x-forwarded-host, x-forwarded-uri, x-forwarded-method, x-forwarded-proto, \
        x-original-uri, x-original-method, x-real-ip, x-user, host, content-length";
    vec![
        ("every forwarding field", get(FORWARDED)),
        ("every forwarding field twice", get(FORWARDED.repeat(2))),
        ("every forwarding field, underscored", get(FORWARDED.replace('-', "_"))),
        ("every forwarding field, empty", get("x-forwarded-for:\r\nx-forwarded-uri:\r\nx-original-uri:\r\nx-forwarded-method:\r\n")),
        ("forwarding fields named in Connection", get(format!("connection: {HOP}\r\n"))),
        ("the same, and set", get(format!("{FORWARDED}connection: {HOP}\r\n"))),
        ("the same in Proxy-Connection and TE", get(format!("proxy-connection: {HOP}\r\nte: {HOP}\r\nkeep-alive: {HOP}\r\n"))),
        ("forwarded for nobody", get("x-forwarded-for: unknown\r\n")),
        ("forwarded for garbage", get("x-forwarded-for: ,,\"\\,\r\nforwarded: for=_x;;=\r\n")),
        ("forwarded for loopback", get("x-forwarded-for: 127.0.0.1, ::1\r\n")),
        ("other headers of addresses", get("cf-connecting-ip: 6.6.6.6\r\ntrue-client-ip: 6.6.6.6\r\nx-client-ip: 6.6.6.6\r\nfastly-client-ip: 6.6.6.6\r\n")),
        ("two hosts", get("host: free.example\r\n")),
        ("a list of hosts", request("GET /a", b"host: other.example, free.example\r\n")),
        ("slidegate's own port as host", request("GET /a", b"host: free.example:7979\r\n")),
        ("an IPv6 host", request("GET /a", b"host: [::1]:7979\r\n")),
        ("an empty host", request("GET /a", b"host:\r\n")),
        ("credentials", get("authorization: Bearer sg_none\r\nproxy-authorization: Basic eDp5\r\n")),
        ("slidegate's answer", get("slidegate-status: 200\r\nratelimit: \"address\";r=9\r\nx-ratelimit-remaining: 9\r\n")),
        ("a method override", get("x-http-method-override: OPTIONS\r\nx-method-override: HEAD\r\nx-http-method: FREE\r\n")),
        ("a URI override", get("x-original-url: /free\r\nx-rewrite-url: /free\r\n")),
        ("another site's page", get("origin: http://evil.example\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n")),
        ("a preflight", request("OPTIONS /a", b"host: other.example\r\norigin: http://evil.example\r\naccess-control-request-method: PUT\r\n")),
        ("an idempotency key", get("idempotency-key: a\r\nidempotency-key: b\r\n")),
        ("a malformed trace", get("traceparent: 00-zz-zz-00\r\ntracestate: =,=\r\nbaggage: =\r\n")),
        ("conditions", get("if-none-match: *\r\nif-match: \"x\"\r\nif-modified-since: x\r\nrange: bytes=0-0\r\n")),
    ]
}

/// Versions, upgrades and several requests on one connection.
fn framing() -> Rows {
    let twenty = "GET /a HTTP/1.1\r\nhost: other.example\r\n\r\n".repeat(20);
    let smuggled = b"0\r\n\r\nGET /a HTTP/1.1\r\nhost: other.example\r\nx-forwarded-for: 6.6.6.6\r\n\r\n";
    vec![
        ("HTTP/1.0 without a host", b"GET /a HTTP/1.0\r\n\r\n".to_vec()),
        (
            "HTTP/1.0 with keep-alive",
            b"GET /a HTTP/1.0\r\nhost: other.example\r\nconnection: keep-alive\r\n\r\n".to_vec(),
        ),
        ("HTTP/0.9", b"GET /a\r\n".to_vec()),
        ("HTTP/1.1 without a host", request("GET /a", b"")),
        ("HTTP/1.2", b"GET /a HTTP/1.2\r\nhost: other.example\r\nconnection: close\r\n\r\n".to_vec()),
        ("HTTP/2.0", b"GET /a HTTP/2.0\r\nhost: other.example\r\nconnection: close\r\n\r\n".to_vec()),
        ("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec()),
        (
            "an upgrade to h2c",
            get(
                "upgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\nconnection: upgrade, http2-settings\r\n",
            ),
        ),
        (
            "an upgrade to a socket",
            get(
                "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: x3JJHMbDL1EzLkh9GBhXDw==\r\nsec-websocket-version: 13\r\n",
            ),
        ),
        ("an upgrade to nothing", get("upgrade: \r\nconnection: upgrade\r\n")),
        ("20 requests at once", [twenty.as_bytes(), &line("GET /a")].concat()),
        ("empty lines first", [&b"\r\n\r\n"[..], &line("GET /a")].concat()),
        ("a length and chunks", post("content-length: 5\r\ntransfer-encoding: chunked\r\n", smuggled)),
        ("chunks and a length", post("transfer-encoding: chunked\r\ncontent-length: 5\r\n", smuggled)),
        ("chunks in disguise", post("transfer-encoding: xchunked\r\n", smuggled)),
        ("chunks, twice", post("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", smuggled)),
        ("two lengths", post("content-length: 0\r\ncontent-length: 5\r\n", b"hello")),
        ("a list of lengths", post("content-length: 5, 5\r\n", b"hello")),
        ("a negative length", post("content-length: -1\r\n", b"hello")),
        ("a length with a sign", post("content-length: +5\r\n", b"hello")),
    ]
}

/// Bodies that are wrong, large or do not end.
fn bodies() -> Rows {
    vec![
        ("a body of 10 MB", post("content-length: 10000000\r\n", &vec![b'x'; 10_000_000])),
        ("a body that does not end", post("content-length: 10000000000\r\n", &vec![b'x'; 300_000])),
        ("a body that does not begin", post("content-length: 10\r\n", b"")),
        ("a length beyond 64 bits", post("content-length: 99999999999999999999\r\n", b"x")),
        ("chunks that do not end", post("transfer-encoding: chunked\r\n", b"5\r\nhello\r\n")),
        ("a chunk that does not end", post("transfer-encoding: chunked\r\n", b"fffffff\r\nhello")),
        ("a chunk of no length", post("transfer-encoding: chunked\r\n", b"zz\r\nhello\r\n0\r\n\r\n")),
        (
            "a chunk beyond 64 bits",
            post("transfer-encoding: chunked\r\n", b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
        ),
        (
            "a chunk extension of 100 kB",
            post(
                "transfer-encoding: chunked\r\n",
                format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(100_000)).as_bytes(),
            ),
        ),
        ("100,000 small chunks", post("transfer-encoding: chunked\r\n", &b"1\r\nx\r\n".repeat(100_000))),
        (
            "trailers that forward",
            post(
                "transfer-encoding: chunked\r\ntrailer: x-forwarded-for\r\n",
                b"1\r\nx\r\n0\r\nx-forwarded-for: 6.6.6.6\r\n\r\n",
            ),
        ),
        ("chunks of a GET", get("transfer-encoding: chunked\r\n")),
        ("a body after 100-continue", post("expect: 100-continue\r\ncontent-length: 5\r\n", b"")),
        ("another expectation", post("expect: 200-ok\r\ncontent-length: 5\r\n", b"hello")),
        ("a compressed body", post("content-encoding: gzip\r\ncontent-length: 5\r\n", b"hello")),
    ]
}

/// Targets, above all those with parameters of auth requests.
fn targets() -> Rows {
    vec![
        ("no cost", line("GET /a?cost=0")),
        ("no cost, encoded", line("GET /a?%63ost=0")),
        ("a cost that is no number", line("GET /a?cost=x")),
        ("two costs", line("GET /a?cost=0&cost=0")),
        ("a policy that does not exist", line("GET /a?policy=none")),
        ("a policy that is not used up", line("GET /a?policy=login")),
        ("another address", line("GET /a?ip=6.6.6.6")),
        ("another path and method", line("GET /a?path=/free&method=FREE&host=free&user=free")),
        ("parameters in the path", line("GET /a;cost=0")),
        ("parameters after a second mark", line("GET /a??cost=0")),
        ("parameters in the fragment", line("GET /a#?cost=0")),
        (
            "100 parameters",
            line(&format!("GET /a?{}", (0..100).map(|at| format!("p{at}=1&")).collect::<String>())),
        ),
        ("a parameter that is not UTF-8", line("GET /a?%ff=1&cost=%ff")),
        ("an empty query", line("GET /a?")),
        ("slidegate's own path", line("GET /v1/check?user=x")),
        ("slidegate's auth path", line("GET /v1/auth/nginx?cost=0")),
        ("the internal location", line("GET /_slidegate")),
        ("slidegate's health", line("GET /healthz")),
        ("an absolute target", line("GET http://free.example/a")),
        ("an absolute target with HTTPS", line("GET https://free.example:7979/a?cost=0")),
        ("an absolute target with a user", line("GET http://x:y@free.example/a")),
        ("a target of another scheme", line("GET ftp://free.example/a")),
        ("a target without a scheme", line("GET //free.example/a")),
        ("an asterisk", line("OPTIONS *")),
        ("an authority", line("CONNECT free.example:443")),
        ("a target without a slash", line("GET a")),
        ("a target with a space", line("GET /a b")),
        ("an empty target", line("GET ")),
        ("a lone percent sign", line("GET /%")),
        ("half an encoding", line("GET /%zz%4")),
        ("a backslash", line("GET \\a")),
        ("dots above the root", line("GET /../../a")),
        ("dots above the root, encoded", line("GET /%2e%2e/%2e%2e%2fa")),
    ]
}

/// Spellings of `/login`.
fn login_targets() -> Rows {
    vec![
        ("/login", line("GET /login")),
        ("/login by POST", line("POST /login")),
        ("/login by PUT", line("PUT /login")),
        ("/login with a query", line("GET /login?next=/")),
        ("/login at no cost", line("GET /login?cost=0&path=/free")),
        ("//login", line("GET //login")),
        ("/./login", line("GET /./login")),
        ("/x/../login", line("GET /x/../login")),
        ("/%6Cogin", line("GET /%6Cogin")),
        ("/%6c%6f%67%69%6e", line("GET /%6c%6f%67%69%6e")),
        ("/x/%2e%2e/login", line("GET /x/%2e%2e/login")),
        ("an absolute /login", line("GET http://free.example/login")),
        (
            "/login that is elsewhere",
            request(
                "GET /login",
                b"host: other.example\r\nx-forwarded-uri: /free\r\nx-original-uri: /free\r\n",
            ),
        ),
        ("/login by HTTP/1.0", b"GET /login HTTP/1.0\r\n\r\n".to_vec()),
    ]
}

/// Spellings of the host `shop.example`.
fn hosts() -> Rows {
    let host = |host: &str| request("GET /a", format!("host: {host}\r\n").as_bytes());
    vec![
        ("shop.example", host("shop.example")),
        ("SHOP.example", host("SHOP.example")),
        ("shop.example:80", host("shop.example:80")),
        ("shop.example:65535", host("shop.example:65535")),
        ("shop.example.", host("shop.example.")),
        ("Shop.Example.:8080", host("Shop.Example.:8080")),
        ("shop.example:", host("shop.example:")),
        ("shop.example as a target", line("GET http://ShOp.example/a")),
        (
            "shop.example that is forwarded",
            request("GET /a", b"host: shop.example\r\nx-forwarded-host: free.example\r\n"),
        ),
    ]
}
