//! Writes visits in every format, independently of the parsers. Each line comes with the time that
//! a reader has to find in it: formats differ in what they keep.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::visit::{Visit, visits};

/// A log in one format.
pub(crate) struct Written {
    pub(crate) name: &'static str,
    /// `--log-format`; `None` if it is detected.
    pub(crate) given: Option<String>,
    pub(crate) fields: Vec<(&'static str, &'static str)>,
    /// The name that detection has to find.
    pub(crate) detected: &'static str,
    pub(crate) text: String,
    /// Microseconds, by visit.
    pub(crate) times_us: Vec<u64>,
    pub(crate) has_user: bool,
    pub(crate) has_host: bool,
    /// Whether user agents come out as they went in.
    pub(crate) has_agent: bool,
    /// Lines that are not about requests.
    pub(crate) other: u64,
}

type Line = fn(&Visit) -> String;
type Time = fn(&Visit) -> u64;

fn start_us(visit: &Visit) -> u64 {
    visit.start_ms * 1000
}

fn start_second_us(visit: &Visit) -> u64 {
    visit.start_ms / 1000 * 1_000_000
}

fn end_second_us(visit: &Visit) -> u64 {
    visit.end_ms() / 1000 * 1_000_000
}

/// The second of the end, less the duration.
fn derived_us(visit: &Visit) -> u64 {
    end_second_us(visit) - visit.duration_ms * 1000
}

/// Year, month, day, hour, minute, second and millisecond: of one month only.
fn date(ms: u64) -> (u64, u64, u64, u64, u64, u64, u64) {
    let day_ms = 86_400_000;
    let day = (ms - 1_793_491_200_000) / day_ms + 1;
    let of_day = ms % day_ms;
    (2026, 11, day, of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60, of_day % 1000)
}

fn clf(ms: u64) -> String {
    let (year, _, day, hour, minute, second, _) = date(ms);
    format!("{day:02}/Nov/{year}:{hour:02}:{minute:02}:{second:02} +0000")
}

/// The same in another zone.
fn clf_of_india(ms: u64) -> String {
    clf(ms + 19_800_000).replace("+0000", "+0530")
}

fn rfc3339(ms: u64) -> String {
    let (year, month, day, hour, minute, second, ms) = date(ms);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// As nginx escapes in a log.
fn nginx_escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' | '\0'..'\x20' | '\x7f'.. => format!("\\x{:02X}", u32::from(c)),
        _ => c.to_string(),
    };
    or_dash(&text.chars().map(escape).collect::<String>()).to_owned()
}

/// As Apache escapes in a log.
fn apache_escaped(text: &str) -> String {
    or_dash(&text.replace('\\', "\\\\").replace('"', "\\\"").replace('\t', "\\t")).to_owned()
}

fn common(visit: &Visit) -> String {
    let Visit { ip, method, status, bytes, .. } = visit;
    let bytes = if *bytes == 0 { "-".to_owned() } else { bytes.to_string() };
    format!(
        "{ip} - {} [{}] \"{method} {} HTTP/1.1\" {status} {bytes}",
        visit.user.unwrap_or("-"),
        clf_of_india(visit.start_ms),
        visit.target()
    )
}

fn combined_at(visit: &Visit, ms: u64) -> String {
    format!(
        "{} - {} [{}] \"{} {} HTTP/2.0\" {} {} \"{}\" \"{}\"",
        visit.ip,
        visit.user.unwrap_or("-"),
        clf(ms),
        visit.method,
        visit.target(),
        visit.status,
        visit.bytes,
        nginx_escaped(visit.referer),
        nginx_escaped(visit.agent)
    )
}

fn combined(visit: &Visit) -> String {
    combined_at(visit, visit.end_ms())
}

fn vhost(visit: &Visit) -> String {
    format!("shop.example:443 {} \"{}\" \"{}\"", common(visit), visit.referer, apache_escaped(visit.agent))
}

fn ingress(visit: &Visit) -> String {
    format!(
        "{} 93 {}.{:03} [shop-api-8080] [] 10.1.2.3:8080, 10.1.2.4:8080 512, 0 0.004, 0.001 200, 502 5f1c0d3a9be2",
        combined(visit),
        visit.duration_ms / 1000,
        visit.duration_ms % 1000
    )
}

const CUSTOM: &str = "$msec|$request_time|$http_x_tenant|$request_method $request_uri|$http_host|$status|$remote_addr:$remote_port";

fn custom(visit: &Visit) -> String {
    format!(
        "{}.{:03}|{}.{:03}|t{}|{} {}|shop.example|{}|{}:{}",
        visit.end_ms() / 1000,
        visit.end_ms() % 1000,
        visit.duration_ms / 1000,
        visit.duration_ms % 1000,
        visit.port % 3,
        visit.method,
        visit.target(),
        visit.status,
        // The format cannot tell an IPv6 address from a port, as nobody would write it.
        visit.ip.replace(':', "_"),
        visit.port
    )
}

fn caddy(visit: &Visit) -> String {
    let agents: Vec<&str> = [visit.agent].into_iter().filter(|agent| !agent.is_empty()).collect();
    json!({
        "level": "info", "ts": ms_as_float(visit.end_ms()), "logger": "http.log.access.log0", "msg": "handled request",
        "request": {
            "remote_ip": "10.0.0.1", "remote_port": "51234", "client_ip": visit.ip, "proto": "HTTP/2.0",
            "method": visit.method, "host": "shop.example", "uri": visit.target(),
            "headers": {"User-Agent": agents, "Authorization": ["REDACTED"], "X-Tenant": ["t1"]},
        },
        "bytes_read": 0, "user_id": visit.user.unwrap_or(""), "duration": ms_as_float(visit.duration_ms),
        "size": visit.bytes, "status": visit.status, "resp_headers": {"Server": ["Caddy"]},
    })
    .to_string()
}

#[allow(clippy::cast_precision_loss)] // milliseconds of this century fit
fn ms_as_float(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

fn traefik(visit: &Visit) -> String {
    format!(
        "{} {} \"shop@docker\" \"http://10.1.2.3:8080\" {}ms",
        combined_at(visit, visit.start_ms),
        visit.port,
        visit.duration_ms
    )
}

fn traefik_json(visit: &Visit) -> String {
    json!({
        "ClientAddr": "10.0.0.1:5000", "ClientHost": visit.ip, "ClientPort": "5000",
        "ClientUsername": visit.user.unwrap_or("-"), "DownstreamContentSize": visit.bytes,
        "DownstreamStatus": visit.status, "Duration": visit.duration_ms * 1_000_000, "OriginStatus": 299,
        "RequestHost": "shop.example", "RequestMethod": visit.method, "RequestPath": visit.target(),
        "RequestProtocol": "HTTP/1.1", "RouterName": "api@docker",
        "StartUTC": rfc3339(visit.start_ms).replace('Z', "456789Z"), "entryPointName": "web", "level": "info",
        "msg": "", "request_User-Agent": visit.agent, "time": rfc3339(visit.end_ms()),
    })
    .to_string()
}

fn envoy(visit: &Visit) -> String {
    // Envoy escapes nothing; a quote stands raw.
    format!(
        "[{}] \"{} {} HTTP/1.1\" {} - 0 {} {} 3 \"{}\" \"{}\" \"0f2c1d4e\" \"shop.example\" \"10.1.2.3:8080\"",
        rfc3339(visit.start_ms),
        visit.method,
        visit.target(),
        visit.status,
        visit.bytes,
        visit.duration_ms,
        visit.ip,
        or_dash(visit.agent)
    )
}

fn istio(visit: &Visit) -> String {
    format!(
        "[{}] \"{} {} HTTP/1.1\" {} - via_upstream - \"-\" 0 {} {} 3 \"{}\" \"{}\" \"0f2c1d4e\" \"shop.example\" \
         \"10.1.2.3:8080\" inbound|8080|| 127.0.0.6:5 10.1.2.3:80 10.0.0.1:0 outbound_.80_._.web default",
        rfc3339(visit.start_ms),
        visit.method,
        visit.target(),
        visit.status,
        visit.bytes,
        visit.duration_ms,
        visit.ip,
        or_dash(visit.agent)
    )
}

const ENVOY_CUSTOM: &str = "%START_TIME(%s.%3f)% %DOWNSTREAM_REMOTE_ADDRESS% %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE% %REQ(X-TENANT):10%";

fn envoy_custom(visit: &Visit) -> String {
    let ip = if visit.ip.contains(':') { format!("[{}]", visit.ip) } else { visit.ip.clone() };
    format!(
        "{}.{:03} {ip}:{} {} {} {} -",
        visit.start_ms / 1000,
        visit.start_ms % 1000,
        visit.port,
        visit.method,
        visit.target(),
        visit.status
    )
}

fn envoy_json(visit: &Visit) -> String {
    json!({
        "start_time": rfc3339(visit.start_ms), "method": visit.method, "path": visit.target(), "protocol": "HTTP/1.1",
        "response_code": visit.status, "response_flags": "-", "bytes_received": 0, "bytes_sent": visit.bytes,
        "duration": visit.duration_ms, "upstream_service_time": "3", "x_forwarded_for": visit.ip,
        "user_agent": if visit.agent.is_empty() { Value::Null } else { visit.agent.into() }, "authority": "shop.example",
        "downstream_remote_address": "10.0.0.1:5000", "upstream_host": null, "route_name": "default",
    })
    .to_string()
}

fn haproxy(visit: &Visit) -> String {
    let time = clf(visit.start_ms).replace(" +0000", &format!(".{:03}", visit.start_ms % 1000));
    let captured = ["", "{shop.example|x} ", "{a b|} {text/html} "][usize::from(visit.port % 3)];
    format!(
        "{}:{} [{time}] web~ api/srv1 0/0/1/3/{} {} {} - - ---- 12/12/3/1/0 0/0 {captured}\"{} {} HTTP/1.1\"",
        visit.ip,
        visit.port,
        visit.duration_ms,
        visit.status,
        visit.bytes,
        visit.method,
        visit.target()
    )
}

fn haproxy_in_syslog(visit: &Visit) -> String {
    format!("Nov 20 10:15:32 lb1 haproxy[814]: {}", haproxy(visit))
}

fn gcp(visit: &Visit) -> String {
    json!({
        "httpRequest": {
            "requestMethod": visit.method, "requestUrl": format!("https://shop.example{}", visit.target()),
            "requestSize": "93", "status": visit.status, "responseSize": visit.bytes.to_string(),
            "userAgent": visit.agent, "remoteIp": visit.ip, "latency": "0.004193s", "protocol": "HTTP/2",
        },
        "insertId": "1x9k2", "timestamp": rfc3339(visit.start_ms),
    })
    .to_string()
}

fn mapped_json(visit: &Visit) -> String {
    json!({
        "when": {"at": rfc3339(visit.start_ms)}, "request": {"client": visit.ip, "verb": visit.method},
        "url": {"path.raw": visit.target()}, "code": visit.status.to_string(), "who": visit.user, "len": visit.bytes,
        "ua": visit.agent,
    })
    .to_string()
}

fn nginx_json(visit: &Visit) -> String {
    json!({
        "time_local": clf(visit.end_ms()), "msec": format!("{}.{:03}", visit.end_ms() / 1000, visit.end_ms() % 1000),
        "remote_addr": visit.ip, "remote_user": visit.user.unwrap_or(""),
        "request": format!("{} {} HTTP/1.1", visit.method, visit.target()), "status": visit.status.to_string(),
        "body_bytes_sent": visit.bytes.to_string(), "request_time": format!("{}", ms_as_float(visit.duration_ms)),
        "http_user_agent": visit.agent, "host": "shop.example",
    })
    .to_string()
}

fn csv_quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn csv(visit: &Visit) -> String {
    format!(
        "{},{},{},{},{},{},{}",
        rfc3339(visit.start_ms),
        csv_quoted(visit.agent),
        visit.ip,
        visit.method,
        csv_quoted(&visit.target()),
        visit.status,
        visit.user.unwrap_or("")
    )
}

fn in_journald(line: &str) -> String {
    json!({"__REALTIME_TIMESTAMP": "1795256132000000", "MESSAGE": line, "_PID": "7"}).to_string()
}

/// The visits in every format, written once for all tests.
pub(crate) fn all() -> &'static [Written] {
    static ALL: OnceLock<Vec<Written>> = OnceLock::new();
    ALL.get_or_init(|| write_all(&visits()))
}

fn write_all(visits: &[Visit]) -> Vec<Written> {
    let written = |name: &'static str, detected: &'static str, line: Line, time: Time| Written {
        name,
        given: None,
        fields: Vec::new(),
        detected,
        text: visits.iter().map(|visit| line(visit) + "\n").collect(),
        times_us: visits.iter().map(time).collect(),
        has_user: false,
        has_host: false,
        has_agent: true,
        other: 0,
    };
    let user = |log: Written| Written { has_user: true, ..log };
    let host = |log: Written| Written { has_host: true, ..log };
    let given = |log: Written, format: &str| Written { given: Some(format.to_owned()), ..log };
    let no_agent = |log: Written| Written { has_agent: false, ..log };
    let wrapped = |name, detected, line: Line, time: Time, wrap: fn(&str) -> String| Written {
        text: visits.iter().map(|visit| wrap(&line(visit)) + "\n").collect(),
        ..written(name, detected, line, time)
    };
    vec![
        no_agent(user(written("common in another zone", "common", common, start_second_us))),
        user(written("combined", "combined", combined, end_second_us)),
        host(user(written("vhost_combined", "combined", vhost, start_second_us))),
        user(written("ingress-nginx", "ingress-nginx", ingress, derived_us)),
        user(given(written("ingress-nginx, named", "ingress-nginx", ingress, derived_us), "ingress-nginx")),
        host(user(written("caddy", "caddy", caddy, start_us))),
        user(written("traefik", "traefik", traefik, start_second_us)),
        host(user(Written {
            times_us: visits.iter().map(|visit| start_us(visit) + 456).collect(),
            ..written("traefik-json", "traefik-json", traefik_json, start_us)
        })),
        host(written("envoy", "envoy", envoy, start_us)),
        host(written("istio", "istio", istio, start_us)),
        no_agent(given(
            written("envoy, custom", "envoy", envoy_custom, start_us),
            &format!("envoy:{ENVOY_CUSTOM}"),
        )),
        host(written("envoy-json", "envoy-json", envoy_json, start_us)),
        no_agent(written("haproxy", "haproxy", haproxy, start_us)),
        no_agent(written("haproxy in syslog", "haproxy in syslog", haproxy_in_syslog, start_us)),
        host(written("gcp", "gcp", gcp, start_us)),
        Written {
            fields: vec![
                ("time", "when.at"),
                ("ip", "request.client"),
                ("method", "request.verb"),
                ("path", "url.path.raw"),
                ("status", "code"),
                ("user", "who"),
                ("user_agent", "ua"),
            ],
            ..user(written("json, mapped", "json", mapped_json, start_us))
        },
        host(user(written("json of nginx", "json", nginx_json, start_us))),
        Written {
            text: "Time,User Agent,Client IP,Method,Path,Status,User\n".to_owned()
                + &visits.iter().map(|visit| csv(visit) + "\n").collect::<String>(),
            other: 1,
            ..user(written("csv", "csv", csv, start_us))
        },
        Written {
            text: "at,agent,peer,verb,target,code,login\n".to_owned()
                + &visits.iter().map(|visit| csv(visit) + "\n").collect::<String>(),
            other: 1,
            fields: vec![
                ("time", "at"),
                ("user_agent", "agent"),
                ("ip", "peer"),
                ("method", "verb"),
                ("path", "target"),
                ("status", "code"),
                ("user", "login"),
            ],
            ..user(written("csv, mapped", "csv", csv, start_us))
        },
        host(wrapped("envoy in journald", "envoy in journald", envoy, start_us, in_journald)),
    ]
}

/// nginx with a format of its own; its clients are no IPv6 addresses, so it is apart.
pub(crate) fn nginx_custom(visits: &[Visit]) -> Written {
    Written {
        name: "nginx, custom",
        given: Some(format!("nginx:{CUSTOM}")),
        fields: vec![("tenant", "http_x_tenant")],
        detected: "nginx",
        text: visits.iter().map(|visit| custom(visit) + "\n").collect(),
        times_us: visits.iter().map(start_us).collect(),
        has_user: false,
        has_host: true,
        has_agent: false,
        other: 0,
    }
}
