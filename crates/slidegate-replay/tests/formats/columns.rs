//! Columns that hold several values, or the addresses that proxies forwarded.

use std::io::Cursor;

use slidegate_http::client_addr::{ClientAddr, Source, Trust, TrustedProxies};
use slidegate_replay::{LogFormat, LogOptions, LogReader};

fn format(text: &str) -> LogFormat {
    LogFormat::parse(text).unwrap()
}

/// Start in microseconds, status and client of the only line.
fn read(line: &str, options: LogOptions) -> (u64, u16, String) {
    let log = format!("{line}\n").into_bytes();
    let mut reader = LogReader::from_reader_with(Cursor::new(log), options).unwrap();
    let entry = reader.next_entry().unwrap().unwrap_or_else(|| panic!("no request: {line}"));
    let client = String::from_utf8_lossy(entry.client).into_owned();
    (entry.time_us, entry.status, client)
}

/// 10:00:00 on 2026-11-26.
const TEN_US: u64 = 1_795_687_200_000_000;

/// A request that was passed on to several servers must have its own duration and status, not one of theirs.
#[test]
fn variables_with_several_values_keep_the_columns_apart() {
    let values = [
        "0.500",
        "-",
        "0.500, 1.000",
        "0.500, 1.000, 2.000",
        "0.500, 1.000 : 0.250",
        "- : 0.250",
        "0.1, - : -, 2",
    ];
    for variable in [
        "upstream_response_time",
        "upstream_addr",
        "upstream_status",
        "upstream_connect_time",
        "upstream_header_time",
        "upstream_bytes_sent",
        "upstream_bytes_received",
        "upstream_response_length",
        "upstream_cache_status",
        "upstream_http_x_cache",
        "sent_http_content_type",
        "http_x_forwarded_for",
        "proxy_add_x_forwarded_for",
        "http_forwarded",
        "http_via",
    ] {
        for value in values
            .into_iter()
            .chain(["text/html; charset=utf-8", "192.0.2.1:80, unix:/run/a : [2001:db8::1]:80"])
        {
            for (columns, text) in [
                (format!("${variable} $request_time $status"), format!("{value} 1.500 201")),
                (format!("{{${variable}}} $request_time $status"), format!("{{{value}}} 1.500 201")),
                (format!("$request_time ${variable} $status"), format!("1.500 {value} 201")),
                (format!("$request_time $status ${variable}"), format!("1.500 201 {value}")),
                (format!("\"${variable}\" $request_time $status"), format!("\"{value}\" 1.500 201")),
                (
                    format!("${variable} ${{upstream_status}} $request_time $status"),
                    format!("{value} {value} 1.500 201"),
                ),
                (format!("$request_time\t${variable}\t$status"), format!("1.500\t{value}\t201")),
            ] {
                let options = LogOptions {
                    format: Some(format(&format!("nginx:$remote_addr [$time_iso8601] {columns}"))),
                    ..LogOptions::default()
                };
                let found = read(&format!("198.51.100.7 [2026-11-26T10:00:00+00:00] {text}"), options);
                assert_eq!(found, (TEN_US - 1_500_000, 201, "198.51.100.7".to_owned()), "{columns}: {text}");
            }
        }
    }
}

/// What cannot be told apart is refused before a log is read, with what to do about it.
#[test]
fn a_variable_with_several_values_before_their_separator_is_refused() {
    for literal in [",", ", ", " : ", ":", ";"] {
        let text = format!("nginx:$time_iso8601 $upstream_addr{literal}$status");
        let error = LogFormat::parse(&text).unwrap_err();
        assert!(error.contains("`upstream_addr` may hold several values"), "{error}");
        assert!(error.contains("put it in double quotes, `\"$upstream_addr\"`"), "{error}");
        LogFormat::parse(&format!("nginx:$time_iso8601 \"$upstream_addr\"{literal}$status")).unwrap();
        LogFormat::parse(&format!("nginx:$time_iso8601 $remote_addr{literal}$status")).unwrap();
    }
}

/// Behind a proxy that is trusted, the client is who the proxy forwarded, in whatever column that stands.
#[test]
fn forwarded_addresses_are_read_from_a_column_as_the_service_reads_them() {
    let combined = "10.0.0.1 - - [26/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"curl/8\"";
    let json = |key: &str, value: &str| {
        format!(
            "{{\"time\":\"2026-11-26T10:00:00Z\",\"remote_addr\":\"10.0.0.1\",\"status\":200,\"{key}\":\"{value}\"}}"
        )
    };
    let named = |columns: &str| Some(format(&format!("nginx:$remote_addr [$time_iso8601] {columns}")));
    let list = "203.0.113.9, 198.51.100.7, 10.0.0.2";
    let lines = [
        (None, format!("{combined} \"{list}\"")),
        (None, format!("{combined} 0.004 \"shop\" \"{list}\" 17")),
        (Some(format("combined")), format!("{combined} \"{list}\"")),
        (None, json("http_x_forwarded_for", list)),
        (None, json("x_forwarded_for", list)),
        (None, json("X-Forwarded-For", list)),
        (
            None,
            format!(
                "time,remote_addr,status,http_x_forwarded_for\n2026-11-26T10:00:00Z,10.0.0.1,200,\"{list}\""
            ),
        ),
        (
            named("\"$http_x_forwarded_for\" $status"),
            format!("10.0.0.1 [2026-11-26T10:00:00Z] \"{list}\" 200"),
        ),
        (named("$http_x_forwarded_for $status"), format!("10.0.0.1 [2026-11-26T10:00:00Z] {list} 200")),
        (
            named("$proxy_add_x_forwarded_for $status"),
            format!("10.0.0.1 [2026-11-26T10:00:00Z] {list}, 10.0.0.1 200"),
        ),
    ];
    for (format, line) in lines {
        let client = |trusted: &[&str]| {
            let networks = TrustedProxies::new(trusted).unwrap();
            let client = ClientAddr::new(Source::XForwardedFor, Trust::Networks(networks));
            read(&line, LogOptions { format: format.clone(), client, ..LogOptions::default() }).2
        };
        assert_eq!(client(&["10.0.0.0/8"]), "198.51.100.7", "{line}");
        assert_eq!(client(&[]), "10.0.0.1", "nobody is trusted: {line}");
        assert_eq!(client(&["192.0.2.0/24"]), "10.0.0.1", "another proxy is trusted: {line}");
    }
}

/// The log of Nginx Proxy Manager has no name in it, and should be read without one.
#[test]
fn nginx_proxy_managers_formats_are_detected() {
    let hosts = "[26/Nov/2026:10:00:00 +0000] - 200 201 - GET https shop.example \"/cart?a=b\" [Client 198.51.100.7] \
                 [Length 512] [Gzip -] [Sent-to 192.168.1.20] \"Mozilla/5.0 (X11)\" \"https://shop.example/\"";
    let retried = hosts.replacen("- 200 201", "MISS 502, 200 201", 1);
    let others = "[26/Nov/2026:10:00:00 +0000] 201 - GET https shop.example \"/cart?a=b\" [Client 198.51.100.7] \
                  [Length 512] [Gzip 2.10] \"Mozilla/5.0 (X11)\" \"-\"";
    for line in [hosts, &retried, others] {
        let mut reader =
            LogReader::from_reader_with(Cursor::new(format!("{line}\n").into_bytes()), LogOptions::default())
                .unwrap();
        let entry = reader.next_entry().unwrap().unwrap();
        assert_eq!(entry.status, 201, "{line}");
        assert_eq!(entry.request.as_ref().unwrap().path(), b"/cart");
        assert_eq!(String::from_utf8_lossy(entry.client), "198.51.100.7");
        assert_eq!(entry.host.as_deref(), Some(&b"shop.example"[..]));
    }
    LogFormat::parse("nginx-proxy-manager").unwrap();
}
