//! What clients of a proxy may send to get around a limit, as raw requests.
//!
//! A proxy may refuse any of them by itself. What it passes on must have been limited.

/// A request, by name.
pub(crate) struct Hostile {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// The requests, all of which ask for `/login` or a spelling of it.
pub(crate) fn hostile_inputs() -> Vec<Hostile> {
    let mut all = Vec::new();
    let mut add = |name: String, line: &[u8], fields: &[u8]| {
        let bytes = [line, b"\r\nconnection: close\r\n", fields, b"\r\n"].concat();
        all.push(Hostile { name, bytes });
    };
    let get: &[u8] = b"GET /login HTTP/1.1\r\nhost: test";
    let field = |name: &str, value: &[u8]| [name.as_bytes(), b": ", value, b"\r\n"].concat();

    let values: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("another", b"somebody-else".to_vec()),
        ("a byte that is not UTF-8", b"\xff".to_vec()),
        ("Latin-1", b"J\xfcrgen".to_vec()),
        ("a cut character", b"\xc3".to_vec()),
        ("a surrogate", b"\xed\xa0\x80".to_vec()),
        ("a tab", b"a\tb".to_vec()),
        ("a control character", b"a\x01b".to_vec()),
        ("delete", b"a\x7fb".to_vec()),
        ("NUL", b"a\0b".to_vec()),
        ("a bare line feed", b"a\nb".to_vec()),
        ("percent", b"%00%FF%".to_vec()),
        ("separators", b"a,b;c=d~e\\f*".to_vec()),
        ("quotes", b"\"'`{}[]".to_vec()),
        ("3,900 bytes", vec![b'u'; 3900]),
        ("8,192 bytes", vec![b'u'; 8192]),
        ("9,000 bytes", vec![b'u'; 9000]),
        ("15,000 bytes", vec![b'u'; 15_000]),
        ("17,000 bytes", vec![b'u'; 17_000]),
        ("50,000 bytes", vec![b'u'; 50_000]),
        ("50,000 bytes that are not UTF-8", vec![0xfe; 50_000]),
        ("200,000 bytes", vec![b'u'; 200_000]),
    ];
    for (name, value) in &values {
        add(format!("x-user: {name}"), get, &field("x-user", value));
    }
    for (name, value) in &values {
        let context = b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
        let state = field("tracestate", &[&b"a="[..], value].concat());
        add(format!("tracestate: {name}"), get, &[&context[..], &state].concat());
    }
    for value in ["0", "-5", "abc", "18446744073709551615", "18446744073709551616", "1e3", " "] {
        add(format!("x-items: {value}"), get, &field("x-items", value.as_bytes()));
    }
    for value in ["192.0.2.7", "nowhere", "::1", "192.0.2.7:80, x", "\u{fc}"] {
        add(format!("x-forwarded-for: {value}"), get, &field("x-forwarded-for", value.as_bytes()));
    }
    for name in [
        "forwarded",
        "x-real-ip",
        "x-envoy-external-address",
        "x-envoy-original-path",
        "x-request-id",
        "baggage",
        "authorization",
        "te",
        "x-envoy-internal",
        "x-ratelimit-remaining",
        "grpc-timeout",
        "content-type",
    ] {
        add(format!("{name}: odd"), get, &field(name, b"for=\xff;1"));
    }
    add("x-user twice".into(), get, b"x-user: a\r\nx-user: b\r\n");
    add("50 values of a field".into(), get, &b"tracestate: a=b\r\n".repeat(50));
    add("90 fields".into(), get, &b"x-a: b\r\n".repeat(90));
    add("2,000 fields".into(), get, &b"x-a: b\r\n".repeat(2000));
    add("a long name".into(), get, &field(&"n".repeat(12_000), b"v"));
    for (name, host) in [
        ("another", "other.example"),
        ("long", &*"h".repeat(9000)),
        ("of odd bytes", "\u{fc}"),
        ("with a port", "test:1"),
    ] {
        let line = format!("GET /login HTTP/1.1\r\nhost: {host}");
        add(format!("host {name}"), line.as_bytes(), b"");
    }
    for method in ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"] {
        let line = format!("{method} /login HTTP/1.1\r\nhost: test\r\ncontent-length: 0");
        add(format!("method {method}"), line.as_bytes(), b"");
    }
    for target in [
        "/login?",
        "/login?x=1",
        "/login#x",
        "//login",
        "/./login",
        "/x/../login",
        "/%6cogin",
        "/%6Cogin?x",
        "http://test/login",
    ] {
        let line = format!("GET {target} HTTP/1.1\r\nhost: test");
        add(format!("target {target}"), line.as_bytes(), b"");
    }
    for (name, query) in [
        ("of 9,000 bytes", vec![b'q'; 9000]),
        ("of odd bytes", b"\xff\xfe".to_vec()),
        ("of 50,000 bytes", vec![b'q'; 50_000]),
    ] {
        add(format!("query {name}"), &[b"GET /login?", &query[..], b" HTTP/1.1\r\nhost: test"].concat(), b"");
    }
    add("HTTP/1.0".into(), b"GET /login HTTP/1.0\r\nhost: test", b"");
    add("no host".into(), b"GET /login HTTP/1.1", b"");
    all
}
