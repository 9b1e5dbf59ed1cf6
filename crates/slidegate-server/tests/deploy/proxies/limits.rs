//! Limits behind each proxy, also while slidegate hangs or is gone.

use super::*;

/// The limits hold, whatever the client sends, and its response has the headers.
fn limits_hold(kind: &Kind, beside: &mut Beside) {
    until("slidegate answers every question in time", || {
        let held = limits_hold_once(kind, beside).is_ok();
        if !held {
            beside.forget_usage(kind);
        }
        held.then_some(())
    });
}

/// Whether CORS lets pages of other origins read slidegate's fields.
fn exposes_fields(answer: &Response) -> bool {
    let exposed = answer.header("access-control-expose-headers").unwrap_or_default();
    let is_exposed = |name: &str| exposed.split(',').any(|one| one.trim().eq_ignore_ascii_case(name));
    [
        "Retry-After",
        "RateLimit",
        "RateLimit-Policy",
        "X-RateLimit-Limit",
        "X-RateLimit-Remaining",
        "X-RateLimit-Reset",
    ]
    .into_iter()
    .all(is_exposed)
}

/// Counts from a fresh slidegate. An answer without it ends the count.
fn limits_hold_once(kind: &Kind, beside: &mut Beside) -> Result<(), NotAnswered> {
    let mut ask = |line: &str, fields: &str| {
        let answer = beside.ask(line, fields);
        if is_without_slidegate(kind, &answer) { Err(NotAnswered) } else { Ok(answer) }
    };
    let passed = ask("POST /a?x=1", SPOOFED)?;
    assert_eq!(passed.status, 200, "{}: {}", kind.name, passed.body);
    assert!(
        passed.body.starts_with("POST /a?x=1 ") && passed.body.ends_with("\r\n\r\nhi"),
        "{}",
        passed.body
    );
    let header = |answer: &Response, name: &str| client_header(kind, answer, name);
    assert_eq!(header(&passed, "ratelimit-policy").as_deref(), Some("\"per-ip\";q=3;w=3600"));
    assert_eq!(header(&passed, "ratelimit").as_deref(), Some("\"per-ip\";r=2;t=3600"));
    assert_eq!(header(&passed, "x-ratelimit-limit").as_deref(), Some("3"));
    assert_eq!(header(&passed, "x-ratelimit-remaining").as_deref(), Some("2"));
    assert!(header(&passed, "x-ratelimit-reset").is_some());
    assert!(exposes_fields(&passed), "{}: pages of other origins may read the fields", kind.name);

    // The path is the client's own, in whatever spelling.
    assert_eq!(ask("GET /%6Cogin?next=/", SPOOFED)?.status, 200);
    let denied = ask("POST //login", SPOOFED)?;
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (429, Some("1")), "{}", denied.body);
    assert_eq!(ask("GET /b", "")?.status, 200);

    let denied = ask("GET /c", SPOOFED)?;
    assert_eq!(denied.status, 429);
    assert!(exposes_fields(&denied), "{}: pages of other origins may read why", kind.name);
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3000..=3600).contains(&wait), "{wait}");
    assert_eq!(denied.header("ratelimit-policy"), Some("\"per-ip\";q=3;w=3600"));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert!(denied.header("ratelimit").unwrap().starts_with("\"per-ip\";r=0;t="));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    let problem = denied.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    Ok(())
}

/// Hanging, gone, and back: what the file chose happens, in time.
#[allow(clippy::disallowed_methods)] // What hangs shows by the time that passes.
fn absence_is_bounded(kind: &Kind, closed: bool) {
    let mut beside = Beside::start(kind, closed);
    limits_hold(kind, &mut beside);
    let as_chosen = |status| if closed { (502..=504).contains(&status) } else { status == 200 };

    beside.limiter.signal("STOP");
    until_true("a hanging slidegate is noticed", || {
        let begun = Instant::now();
        let status = beside.status();
        assert!(begun.elapsed() < BOUNDED, "{}: {:?}", kind.name, begun.elapsed());
        assert!(status == 429 || as_chosen(status), "{}: {status}", kind.name);
        as_chosen(status)
    });
    slower_than_the_timeout(kind, closed, &mut beside);
    beside.limiter.signal("CONT");
    until_true("the limits are back", || beside.status() == 429);

    beside.limiter.signal("KILL");
    beside.limiter.wait();
    until_true("an absent slidegate is noticed", || as_chosen(beside.status()));
    beside.start_limiter();
    until_true("a new slidegate counts from the beginning", || beside.status() == 429);
}

/// What a client sees while every answer of slidegate takes longer than the file allows.
#[allow(clippy::disallowed_methods)] // The time that passes is what is tested.
fn slower_than_the_timeout(kind: &Kind, closed: bool, beside: &mut Beside) {
    let mut waited = Duration::ZERO;
    for _ in 0..3 {
        let begun = Instant::now();
        let answer = beside.ask("POST /a?x=1", SPOOFED);
        let took = begun.elapsed();
        assert!(took < BOUNDED, "{}: {took:?}", kind.name);
        waited = waited.max(took);
        if closed {
            assert!(is_refused(&answer), "{}: {}", kind.name, answer.status);
            assert!(!answer.body.contains("POST /a"), "{}: the application was asked", kind.name);
        } else {
            assert_eq!(answer.status, 200, "{}", kind.name);
            assert!(
                answer.body.starts_with("POST /a?x=1 ") && answer.body.ends_with("\r\n\r\nhi"),
                "{}",
                answer.body
            );
        }
        // It must not get rate-limit headers without a decision, especially not those it sent
        // itself.
        for name in
            ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "retry-after"]
        {
            assert_eq!(client_header(kind, &answer, name), None, "{}: {name}", kind.name);
        }
    }
    // Traefik's health check may have found it before, and does not ask any more.
    if kind.name != "traefik" {
        assert!(waited >= TIMEOUT, "{}: {waited:?} is not the file's timeout", kind.name);
    }
}

/// nginx is the proxy that most have, and the only one whose language cannot say 429.
#[test]
fn nginx_limits_and_passes_requests_while_slidegate_is_away() {
    absence_is_bounded(&NGINX, false);
}

/// The same where nginx calls slidegate on a Unix socket, as on machines without free ports.
#[test]
fn nginx_limits_addresses_over_a_unix_socket() {
    let dir = TempDir::new("nginx-socket");
    let socket = dir.path().join("http.sock").to_str().unwrap().to_owned();
    let config = format!("{POLICIES}server: {{socket: '{socket}'}}\n");
    let upstream = format!("server 'unix:{socket}';");
    let mut beside = Beside::start_edited(&NGINX, &config, &[("server 127.0.0.1:7979;", &upstream)]);
    limits_hold(&NGINX, &mut beside);
    assert_eq!(beside.status(), 429);
}

/// The other choice of the same line.
#[test]
fn nginx_limits_and_refuses_requests_while_slidegate_is_away() {
    absence_is_bounded(&NGINX, true);
}

/// A denial is an ordinary answer: nobody reads an error log that fills with them.
#[test]
fn nginx_logs_no_error_for_a_denial() {
    let mut beside = Beside::start(&NGINX, false);
    let file = beside.dir.path().join("error.log");
    let log = || std::fs::read_to_string(&file).unwrap();
    let new_lines = until("slidegate answers every question in time", || {
        // Timeouts of an attempt that was given up are errors.
        let before = log().len();
        if limits_hold_once(&NGINX, &mut beside).is_err() {
            beside.forget_usage(&NGINX);
            return None;
        }
        Some(log()[before..].to_owned())
    });
    assert!(!new_lines.contains("[error]"), "{new_lines}");
}

/// The same for Caddy.
#[test]
fn caddy_limits_and_passes_requests_while_slidegate_is_away() {
    absence_is_bounded(&CADDY, false);
}

/// The other choice of the same line.
#[test]
fn caddy_limits_and_refuses_requests_while_slidegate_is_away() {
    absence_is_bounded(&CADDY, true);
}

/// The same for Traefik, whose applications get the fields.
#[test]
fn traefik_limits_and_passes_requests_while_slidegate_is_away() {
    absence_is_bounded(&TRAEFIK, false);
}

/// The other choice of the same line.
#[test]
fn traefik_limits_and_refuses_requests_while_slidegate_is_away() {
    absence_is_bounded(&TRAEFIK, true);
}

/// The block that people copy first ends with a denial.
#[test]
fn the_block_of_the_readme_denies_the_sixth_login() {
    let preset = include_str!("../../../src/config/presets/proxy.yaml");
    let mut beside = Beside::start_with(&NGINX, false, preset);
    until("slidegate answers every question in time", || {
        let (serve, statuses) = crate::of_readme("nginx", "127.0.0.1:8000", beside.port);
        assert_eq!(serve, "--preset proxy");
        let is_held = statuses == ["200", "200", "200", "200", "200", "429"];
        if !is_held {
            beside.forget_usage(&NGINX);
        }
        is_held.then_some(())
    });
}
