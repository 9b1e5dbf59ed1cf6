//! Requests that wait for their turn behind each proxy.

use super::*;

/// One request in two seconds, and a wait that is longer than what the files give slidegate.
const WAITS: &str =
    "policies: [{name: per-ip, scope: [ip], quota: 1/2s, on_excess: wait 20s}]\nauth: {preset: PROXY}\n";
const WINDOW: Duration = Duration::from_secs(2);

fn start(kind: &Kind, edits: &[(&str, &str)]) -> Beside {
    let config = WAITS.replace("PROXY", kind.name);
    Beside::start_edited(kind, &config, edits)
}

/// Two requests, one right after the other, that slidegate answered in time.
#[allow(clippy::disallowed_methods)] // How long a request waits is what is tested.
fn two(kind: &Kind, beside: &mut Beside, fields: &str) -> (Response, Duration) {
    until("slidegate answers in time", || {
        let begun = Instant::now();
        let first = beside.ask("GET /a", "");
        if first.status != 200 || is_without_slidegate(kind, &first) {
            return None;
        }
        let second = beside.ask("GET /a", fields);
        // On a slow machine the window is over by then.
        (begun.elapsed() < WINDOW || second.status == 200).then(|| (second, begun.elapsed()))
    })
}

/// A request that waits longer than its proxy lets it would pass, although it was to be denied.
fn nothing_passes_because_it_waited(kind: &Kind) {
    let mut beside = start(kind, &[]);
    for fields in
        ["", "slidegate-max-wait: 60s\r\n", "connection: slidegate-max-wait\r\nslidegate-max-wait: 60s\r\n"]
    {
        let (second, after) = two(kind, &mut beside, fields);
        let is_its_turn = after >= WINDOW && !is_without_slidegate(kind, &second);
        assert!(second.status == 429 || is_its_turn, "{} {fields}: {} {after:?}", kind.name, second.status);
    }
}

/// With more time in the file, a burst is spread out instead.
fn requests_wait_for_their_turn(kind: &Kind) {
    let mut beside = start(kind, &[("250ms", "60s"), ("200ms", "50s")]);
    let (second, after) = two(kind, &mut beside, "");
    assert_eq!(second.status, 200, "{}: {}", kind.name, second.body);
    assert!(!is_without_slidegate(kind, &second), "{}: slidegate did not decide", kind.name);
    assert!(after >= WINDOW, "{}: {after:?}", kind.name);
}

#[test]
fn nothing_passes_nginx_because_it_waited() {
    nothing_passes_because_it_waited(&NGINX);
}

#[test]
fn nothing_passes_caddy_because_it_waited() {
    nothing_passes_because_it_waited(&CADDY);
}

#[test]
fn nothing_passes_traefik_because_it_waited() {
    nothing_passes_because_it_waited(&TRAEFIK);
}

#[test]
fn requests_wait_behind_nginx() {
    requests_wait_for_their_turn(&NGINX);
}

#[test]
fn requests_wait_behind_caddy() {
    requests_wait_for_their_turn(&CADDY);
}

#[test]
fn requests_wait_behind_traefik() {
    requests_wait_for_their_turn(&TRAEFIK);
}
