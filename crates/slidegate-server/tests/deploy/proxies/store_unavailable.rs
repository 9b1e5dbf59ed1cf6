//! Denials with 503 behind each proxy, while the store is unavailable.

use super::*;

/// Sends an auth request, as a proxy does. The files let requests pass while slidegate is away. A
/// policy that denies while its store is away must not be taken for that: slidegate answers, and
/// what it answers is 503.
fn a_store_that_is_away_denies(kind: &Kind) {
    // Nothing listens at port 1.
    let config = "
store: {redis: 'redis://127.0.0.1:1'}
policies:
  - {name: per-ip, scope: [ip], quota: 3/1h, on_store_error: deny}
";
    let mut beside = Beside::start_with(kind, false, config);
    let denied = until("slidegate answers in time and is heard", || {
        let answer = beside.ask("GET /a", "");
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(denied.status, 503, "{}: {}", kind.name, denied.body);
    let problem = denied.json();
    assert_eq!(
        problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        "{}: {}",
        kind.name, denied.body
    );
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    assert_eq!(denied.header("x-ratelimit-remaining"), None, "nobody knows what remains");
}

/// Logins behind nginx must stay shut while nobody can count them.
#[test]
fn nginx_denies_with_503_while_the_store_is_away() {
    a_store_that_is_away_denies(&NGINX);
}

/// The same behind Caddy.
#[test]
fn caddy_denies_with_503_while_the_store_is_away() {
    a_store_that_is_away_denies(&CADDY);
}

/// The same behind Traefik, whose file names the statuses that count as slidegate being away.
#[test]
fn traefik_denies_with_503_while_the_store_is_away() {
    a_store_that_is_away_denies(&TRAEFIK);
}
