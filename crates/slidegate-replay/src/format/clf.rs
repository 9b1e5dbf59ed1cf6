//! The common and combined formats of Apache and nginx, also after a `host:port` column, with further
//! columns, and with Traefik's extensions.
//!
//! A line may contain any bytes, and its request line need not be HTTP: it still counts as a request by its
//! client. A line is malformed only if the client, time, status or length is unreadable.

use crate::attributes::address;
use crate::block::{Escape, RecordWriter, Text};
use crate::column::{number, number_or_dash, present, quoted, split_at_space};
use crate::format::mapping::FORWARDED_ATTRIBUTE;
use crate::format::request::set_request;
use crate::format::time::TimeReader;
use crate::malformed::Malformed;

/// Length of `17/May/2015:10:05:03 +0000`.
const TIME_LEN: usize = 26;

/// Parses one line, given without its line end.
pub(crate) fn parse(line: &[u8], time: &mut TimeReader, out: &mut RecordWriter<'_>) -> Result<(), Malformed> {
    let (before, rest) = split_before_request(line);
    let escape = if memchr::memchr(b'\\', line).is_some() { Escape::Backslash } else { Escape::None };
    let (columns, time_text) = match before.split_last_chunk::<TIME_LEN>() {
        Some(([columns @ .., b' ', b'['], time)) => (columns, Some(time)),
        _ => (before, None),
    };
    let Client { vhost, client, user } = Client::parse(columns)?;
    let time_us = time_text.and_then(|text| time.read(text)).ok_or(Malformed::Time)?;
    let (request, rest) = rest.and_then(quoted).ok_or(Malformed::Request)?;
    let (status, rest) = split_at_space(rest.strip_prefix(b" ").ok_or(Malformed::Status)?);
    if status.len() != 3 && status != b"-" {
        return Err(Malformed::Status);
    }
    let status = number_or_dash(status).ok_or(Malformed::Status)?;
    let (bytes, rest) = split_at_space(rest.ok_or(Malformed::Bytes)?);
    let bytes = number_or_dash(bytes).ok_or(Malformed::Bytes)?;
    out.record.time_us = time_us;
    out.record.status = status;
    out.record.bytes = bytes;
    out.text(Text::Client, client, Escape::None);
    for (which, text) in [(Text::User, user), (Text::Host, vhost.unwrap_or_default())] {
        if let Some(text) = present(text) {
            out.text(which, text, if which == Text::User { escape } else { Escape::None });
        }
    }
    set_request(request, escape, out);
    let (referer, rest) = header(rest);
    let (user_agent, further_columns) = header(rest);
    for (which, text) in [(Text::Referer, referer), (Text::UserAgent, user_agent)] {
        if let Some(text) = text {
            out.text(which, text, escape);
        }
    }
    if let Some(forwarded) = further_columns.and_then(forwarded) {
        out.named_extra(FORWARDED_ATTRIBUTE, forwarded)?;
    }
    Ok(())
}

/// Splits before the quote of `] "`, which ends the time and opens the request.
///
/// The first match is right. A user name may contain spaces and brackets, even a forged entry, but both
/// servers escape quotes in it.
fn split_before_request(line: &[u8]) -> (&[u8], Option<&[u8]>) {
    for quote in memchr::memchr_iter(b'"', line) {
        if let Some(before) = line[..quote].strip_suffix(b"] ") {
            return (before, Some(&line[quote..]));
        }
    }
    // The request is missing; the time may be present.
    let end = memchr::memmem::find(line, b"] ");
    (end.map_or(line, |end| &line[..end]), None)
}

/// The columns before the time, as written.
struct Client<'a> {
    /// The host of `vhost_combined`, without its port.
    vhost: Option<&'a [u8]>,
    client: &'a [u8],
    user: &'a [u8],
}

impl<'a> Client<'a> {
    /// Parses `client ident user`, of which only the identity has no spaces.
    fn parse(mut columns: &'a [u8]) -> Result<Self, Malformed> {
        let (mut client, mut rest) = split_at_space(columns);
        let vhost = rest.and_then(|rest| vhost(client, rest));
        if let (Some(_), Some(after)) = (vhost, rest) {
            columns = after;
            (client, rest) = split_at_space(columns);
        }
        // Behind proxies the first column is often `X-Forwarded-For`, a list with spaces.
        while client.ends_with(b",")
            && let Some((next, after)) = rest.map(split_at_space)
        {
            client = &columns[..client.len() + 1 + next.len()];
            rest = after;
        }
        let (ident, user) = rest.map(split_at_space).unwrap_or_default();
        let user = user.unwrap_or_default();
        match [client, ident, user].iter().position(|column| column.is_empty()) {
            Some(0) => Err(Malformed::Client),
            Some(1) => Err(Malformed::Ident),
            Some(_) => Err(Malformed::User),
            None => Ok(Self { vhost, client, user }),
        }
    }
}

/// The host of a leading `host:port` column, as in Apache's `vhost_combined`.
///
/// A client may also be logged with its port. Then `-` follows or a column is missing, and the column stays.
fn vhost<'a>(first: &'a [u8], rest: &[u8]) -> Option<&'a [u8]> {
    let colon = first.iter().rposition(|&byte| byte == b':')?;
    let is_vhost = number::<u16>(&first[colon + 1..]).is_some()
        && !is_ipv6(first)
        && !rest.starts_with(b"- ")
        && rest.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).count() >= 3;
    is_vhost.then(|| &first[..colon])
}

fn is_ipv6(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
}

/// The first quoted column that contains only addresses: forwarded addresses, as in nginx's `main` format.
fn forwarded(mut columns: &[u8]) -> Option<&[u8]> {
    /// Addresses to check; a longer list counts as one of addresses.
    const MOST: usize = 64;
    loop {
        columns = &columns[memchr::memchr(b'"', columns)?..];
        let (text, rest) = quoted(columns)?;
        if text.split(|byte| *byte == b',').take(MOST).all(|one| address(one.trim_ascii()).is_some()) {
            return Some(text);
        }
        columns = rest;
    }
}

/// Splits off a header's column, ` "value"`, from the rest.
///
/// A column cut off by the line end counts as far as it goes: everything that decides a request precedes it.
fn header(rest: Option<&[u8]>) -> (Option<&[u8]>, Option<&[u8]>) {
    let Some(column) = rest else { return (None, None) };
    let column = column.strip_prefix(b" ").unwrap_or(column);
    if !column.starts_with(b"\"") {
        return (None, None);
    }
    match quoted(column) {
        Some((text, rest)) => (present(text), Some(rest)),
        None => (present(&column[1..]), None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::borrow::Cow;

    use jiff::tz::TimeZone;

    use super::*;
    use crate::block::Block;
    use crate::entry::{Entry, Extras, RequestLine};

    /// 17/May/2015:10:05:03 +0000.
    const TIME_US: u64 = 1_431_857_103_000_000;

    fn parse_bytes(line: &[u8]) -> Result<Entry<'static>, Malformed> {
        let mut block = Block::default();
        block.append(line);
        let (lines, parsed) = block.parts();
        let mut out = RecordWriter::new(lines, parsed);
        out.begin(1);
        super::parse(lines, &mut TimeReader::new(TimeZone::UTC), &mut out)?;
        out.commit();
        let block: &'static Block = Box::leak(Box::new(block));
        Ok(Entry::of(block, &block.parsed.records[0]))
    }

    fn parse(line: &str) -> Result<Entry<'static>, Malformed> {
        parse_bytes(line.as_bytes())
    }

    /// A valid line around one request line.
    fn requested(request: &str) -> Option<(String, String)> {
        let line = format!("10.0.0.1 - - [17/May/2015:10:05:03 +0000] \"{request}\" 400 0 \"-\" \"-\"");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let request = parse(&line).unwrap().request?;
        Some((text(request.method), text(&request.target)))
    }

    /// A policy on hosts must find those in a log.
    #[test]
    fn vhost_is_the_host_of_the_request() {
        let line = r#"shop.example:443 a - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1"#;
        assert_eq!(parse(line).unwrap().host.unwrap(), &b"shop.example"[..]);
    }

    fn client_of(columns: &str) -> (String, Option<String>) {
        let line = format!("{columns} [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1");
        let entry = parse(&line).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (text(entry.client), entry.user.map(|user| text(&user)))
    }

    /// Nearly every log has this format; a field read from the wrong column is a policy on the wrong key.
    #[test]
    fn combined_line_gives_every_field() {
        let line = r#"83.149.9.216 id al [17/May/2015:10:05:03 +0000] "GET /a?b=c?d HTTP/1.1" 200 203 "http://r/" "M/5 (X)""#;
        let entry = parse(line).unwrap();
        assert_eq!(entry.request.as_ref().unwrap().path(), b"/a");
        assert_eq!(
            entry,
            Entry {
                client: b"83.149.9.216",
                user: Some(Cow::Borrowed(b"al")),
                time_us: TIME_US,
                request: Some(RequestLine { method: b"GET", target: Cow::Borrowed(b"/a?b=c?d") }),
                status: 200,
                bytes: 203,
                cost: 1,
                referer: Some(Cow::Borrowed(b"http://r/")),
                user_agent: Some(Cow::Borrowed(b"M/5 (X)")),
                host: None,
                extra: Extras::default(),
            }
        );
    }

    /// `-` means absent: a user named `-` would put all anonymous clients under one key.
    #[test]
    fn dashes_and_missing_columns_are_none() {
        let common = parse(r#"a - - [17/May/2015:10:05:03 +0000] "-" - -"#).unwrap();
        let combined = parse(r#"a - "" [17/May/2015:10:05:03 +0000] "" - - "-" "" "#).unwrap();
        assert_eq!(common, combined);
        assert_eq!((common.user, common.request), (None, None));
        assert_eq!((common.status, common.bytes), (0, 0));
        assert_eq!((common.referer, common.user_agent), (None, None));
    }

    /// Servers log in local time: an hour off would replay the day with two rush hours or none.
    #[test]
    fn zone_offset_is_taken_off_the_time() {
        for text in ["17/May/2015:10:05:03 +0000", "17/May/2015:15:35:03 +0530", "17/May/2015:00:05:03 -1000"]
        {
            let line = format!("a - - [{text}] \"GET / HTTP/1.1\" 200 1");
            assert_eq!(parse(&line).unwrap().time_us, TIME_US, "{text}");
        }
    }

    /// A client can put a quote in any header; it must not shift later columns.
    #[test]
    fn escaped_quotes_do_not_end_a_field() {
        let line = r#"a - - [17/May/2015:10:05:03 +0000] "GET /\"q\" 1 HTTP/1.1" 200 1 "\\" "a\x22\" 500 9 \"\xe4\xZZ\t""#;
        let entry = parse(line).unwrap();
        assert_eq!(&*entry.request.unwrap().target, b"/\"q\" 1");
        assert_eq!((entry.status, entry.bytes), (200, 1));
        assert_eq!(entry.referer.unwrap(), &b"\\"[..]);
        assert_eq!(entry.user_agent.unwrap(), &b"a\"\" 500 9 \"\xe4\\xZZ\t"[..]);
    }

    /// Old servers wrote quotes bare and cut off long lines: the request in such a line was real.
    #[test]
    fn bare_quotes_and_a_cut_off_header_are_read() {
        let line =
            r#"a - - [17/May/2015:10:05:03 +0000] "GET /"q"s HTTP/1.1" 200 1 "x"y" "Mozilla/5.0 (comp"#;
        let entry = parse(line).unwrap();
        assert_eq!(&*entry.request.unwrap().target, b"/\"q\"s");
        assert_eq!(entry.referer.unwrap(), &b"x\"y"[..]);
        assert_eq!(entry.user_agent.unwrap(), &b"Mozilla/5.0 (comp"[..]);
    }

    /// nginx logs gain columns at the end; they must not cost the line.
    #[test]
    fn columns_after_the_known_ones_are_ignored() {
        let good = r#"a - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "r" "u""#;
        for extra in [r#" "not, addresses""#, r#" 0.003 0.002 . "x""#, r#" "open"#] {
            assert_eq!(parse(&format!("{good}{extra}")), parse(good), "{extra}");
        }
        let common = r#"a - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1"#;
        assert_eq!(parse(&format!("{common} 0.003")), parse(common));
    }

    /// A scanner's garbage costs the server a request like any other.
    #[test]
    fn request_line_that_is_not_http_is_still_a_request() {
        for garbage in
            ["", "-", "GET", "GET ", r"\x16\x03\x01\x02 /", "help me", "OPTIONS / RTSP/1.0", " / HTTP/1.1"]
        {
            assert_eq!(requested(garbage), None, "{garbage}");
        }
    }

    /// Sloppy and old clients count too: their path decides which policy applies.
    #[test]
    fn unusual_request_lines_give_method_and_target() {
        let request = |method: &str, target: &str| Some((method.into(), target.into()));
        assert_eq!(requested("GET /old"), request("GET", "/old"));
        assert_eq!(requested("GET /a b c HTTP/1.1"), request("GET", "/a b c"));
        assert_eq!(requested("CONNECT x:443 HTTP/1.1"), request("CONNECT", "x:443"));
        assert_eq!(requested("PRI * HTTP/2.0"), request("PRI", "*"));
        assert_eq!(requested("get /a?b HTTP/3"), request("get", "/a?b"));
    }

    /// The client is the key of most policies, and its column has many forms.
    #[test]
    fn host_is_whatever_the_first_column_holds() {
        for host in
            ["2001:db8::1", "::1", "::ffff:10.0.0.1", "[::1]:443", "crawl-66.example.com", "unix:", "-"]
        {
            assert_eq!(client_of(&format!("{host} - -")), (host.into(), None));
        }
        assert_eq!(client_of("10.0.0.1, 10.0.0.2, 10.0.0.3 - al").0, "10.0.0.1, 10.0.0.2, 10.0.0.3");
    }

    /// The vhost would make all clients of a site one key, and a client with a port is not a vhost.
    #[test]
    fn vhost_column_is_told_from_a_client_with_a_port() {
        assert_eq!(client_of("example.com:443 10.0.0.1 - al"), ("10.0.0.1".into(), Some("al".into())));
        assert_eq!(client_of("[::1]:80 2001:db8::1 - al").0, "2001:db8::1");
        assert_eq!(client_of("10.0.0.1:5000 - al b").0, "10.0.0.1:5000");
        assert_eq!(client_of("10.0.0.1:5000 id al").0, "10.0.0.1:5000");
        assert_eq!(client_of("2001:db8::1 id al b").0, "2001:db8::1");
    }

    /// A scanner's bytes are not text; the line around them is still valid.
    #[test]
    fn bytes_that_are_not_utf8_are_kept() {
        let line = b"\xff - \xfe [17/May/2015:10:05:03 +0000] \"GET /\xe9 HTTP/1.1\" 200 1 \"\" \"\x00\x80\"";
        let entry = parse_bytes(line).unwrap();
        assert_eq!((entry.client, entry.user.as_deref()), (&b"\xff"[..], Some(&b"\xfe"[..])));
        assert_eq!(entry.request.unwrap().path(), b"/\xe9");
        assert_eq!(entry.user_agent.unwrap(), &b"\x00\x80"[..]);
    }

    /// A user who chooses a name must not be able to write another time into the log.
    #[test]
    fn user_may_hold_spaces_brackets_and_a_forged_time() {
        for user in ["john doe", "[x] [y]", r"x [01/Jan/1999:00:00:00 +0000] \x22GET / HTTP/1.1\x22 200 1"] {
            assert_eq!(client_of(&format!("a - {user}")).1, Some(user.replace(r"\x22", "\"")));
        }
    }

    /// The error must name the column.
    #[test]
    fn malformed_line_names_the_field() {
        let time = "[17/May/2015:10:05:03 +0000]";
        let cases = [
            (String::new(), "no client at the start of the line"),
            (format!(" - - {time} \"-\" 200 1"), "no client at the start of the line"),
            ("hello".into(), "no identity (or `-`) after the client"),
            (format!("a {time} \"-\" 200 1"), "no identity (or `-`) after the client"),
            (format!("a - {time} \"-\" 200 1"), "no user (or `-`) after the identity"),
            ("a - - - no log".into(), "no time like `[17/May/2015:10:05:03 +0000]` before the request"),
            (
                format!("a - - {} \"-\" 200 1", &time[1..]),
                "no time like `[17/May/2015:10:05:03 +0000]` before the request",
            ),
            (format!("a - - {time} GET / 200 1"), "no request in double quotes after the time"),
            (format!("a - - {time} \"GET / 200 1"), "no request in double quotes after the time"),
            (format!("a - - {time} \"-\""), "expected a three-digit status or `-` after the request"),
            (format!("a - - {time} \"-\" 20 1"), "expected a three-digit status or `-` after the request"),
            (format!("a - - {time} \"-\" +20 1"), "expected a three-digit status or `-` after the request"),
            (format!("a - - {time} \"-\" 200"), "no length in bytes (or `-`) after the status"),
            (format!("a - - {time} \"-\" 200 -1"), "no length in bytes (or `-`) after the status"),
            (
                format!("a - - {time} \"-\" 200 18446744073709551616"),
                "no length in bytes (or `-`) after the status",
            ),
        ];
        for (line, reason) in cases {
            assert_eq!(parse(&line).unwrap_err().to_string(), reason, "{line}");
        }
        assert_eq!(Malformed::TooLong.to_string(), "longer than 65536 bytes");
    }

    /// An invalid date must not become another day.
    #[test]
    fn impossible_time_is_malformed() {
        for text in [
            "31/Feb/2015:10:05:03 +0000",
            "17/Foo/2015:10:05:03 +0000",
            "17/May/2015:24:05:03 +0000",
            "17/May/2015:10:05:03 +0099",
            "31/Dec/1969:23:59:59 +0000",
            "17/May/2015 10:05:03 +0000",
        ] {
            let line = format!("a - - [{text}] \"GET / HTTP/1.1\" 200 1");
            assert_eq!(parse(&line), Err(Malformed::Time), "{text}");
        }
    }

    /// A log contains attackers' input: no bytes may end the replay.
    #[test]
    fn no_bytes_make_it_panic() {
        let good =
            br#"e.com:80 ::1, a - al [17/May/2015:10:05:03 +0000] "GET /\" HTTP/1.1" 200 1 "\x22" "\\""#;
        let spice = b"\"\\ []:,-x\0\xff\n";
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).unwrap() % below
        };
        for _ in 0..10_000 {
            let mut line = good.to_vec();
            for _ in 0..random(6) {
                let at = random(line.len());
                line[at] = spice[random(spice.len())];
            }
            line.truncate(random(good.len() + 1));
            let _ = parse_bytes(&line);
            let noise: Vec<u8> = (0..random(60)).map(|_| spice[random(spice.len())]).collect();
            let _ = parse_bytes(&noise);
        }
    }
}
