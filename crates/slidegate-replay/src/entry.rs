//! Parses one line of an access log into an [`Entry`] (Apache and nginx, `common` and `combined`).
//!
//! A line may hold any bytes, and its request line need not be HTTP: it still counts as a request
//! of its client. A line is malformed only if the client, the time, the status or the length cannot
//! be read. Pure.

use std::borrow::Cow;
use std::fmt;

use jiff::fmt::strtime;

use crate::column::{is_token, number, number_or_dash, present, quoted, split_at_space, unescape};

/// The longest line read, without its line end. Servers refuse far shorter request heads (nginx: 32
/// KiB in all).
pub(crate) const MAX_LINE_BYTES: usize = 64 * 1024;
/// The time format of both servers, for `strftime`.
const TIME_FORMAT: &str = "%d/%b/%Y:%H:%M:%S %z";
/// Length of `17/May/2015:10:05:03 +0000`.
const TIME_LEN: usize = 26;

/// One request of an access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The client: an address, a name, or the address list of a proxy (`10.0.0.1, 10.0.0.2`), as
    /// written.
    pub host: &'a [u8],
    /// The client's name according to its identd. `None` for `-`, which is nearly always written.
    pub ident: Option<&'a [u8]>,
    /// The user the client logged in as. `None` for `-` and for Apache's `""`.
    pub user: Option<Cow<'a, [u8]>>,
    /// The time of the request, in microseconds since the Unix epoch. Logs have whole seconds.
    pub time_us: u64,
    /// The request line. `None` if it was not HTTP: `-`, empty, a TLS handshake on the plain port.
    pub request: Option<RequestLine<'a>>,
    /// The response's status. 0 for `-`.
    pub status: u16,
    /// The response's length in bytes. 0 for `-`.
    pub bytes: u64,
    /// What the request costs. 1 unless the log says otherwise.
    pub cost: u64,
    /// The `Referer` header. `None` in the common format, for `-` and when empty.
    pub referer: Option<Cow<'a, [u8]>>,
    /// The `User-Agent` header. `None` in the common format, for `-` and when empty.
    pub user_agent: Option<Cow<'a, [u8]>>,
}

/// The first line of an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLine<'a> {
    /// The method, in the case the client sent: `GET`.
    pub method: &'a [u8],
    /// The request target, with the query. Never empty; may contain spaces if the client did not
    /// encode them.
    pub target: Cow<'a, [u8]>,
    /// `HTTP/1.1`. `None` for an HTTP/0.9 request.
    pub protocol: Option<&'a [u8]>,
}

/// Why a line cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The line does not begin with a client.
    Host,
    /// The second column is missing.
    Ident,
    /// The third column is missing.
    User,
    /// No time in brackets, no such date, or a date before 1970.
    Time,
    /// The request is not in quotes.
    Request,
    /// The status is neither three digits nor `-`.
    Status,
    /// The length is neither a `u64` nor `-`.
    Bytes,
    /// The line is longer than 65,536 bytes.
    TooLong,
}

/// Parses lines. It caches the last time text: neighbouring lines often have the same.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    last: Option<([u8; TIME_LEN], u64)>,
}

impl Parser {
    /// Parses one line, given without its line end.
    pub(crate) fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Entry<'a>, Malformed> {
        let (common, rest) = self.common(line)?;
        let (referer, rest) = header(rest);
        let (user_agent, _extra_columns) = header(rest);
        Ok(Entry { referer, user_agent, ..common })
    }

    /// The time of a line. It fails for exactly the lines for which `parse` fails, and skips the
    /// headers.
    pub(crate) fn time_of(&mut self, line: &[u8]) -> Result<u64, Malformed> {
        self.common(line).map(|(entry, _)| entry.time_us)
    }

    /// The columns of the common format, which alone can be malformed, and the rest of the line.
    fn common<'a>(&mut self, line: &'a [u8]) -> Result<(Entry<'a>, Option<&'a [u8]>), Malformed> {
        let (front, rest) = split_before_request(line);
        let (columns, time) = match front.split_last_chunk::<TIME_LEN>() {
            Some(([columns @ .., b' ', b'['], time)) => (columns, Some(time)),
            _ => (front, None),
        };
        let Client { host, ident, user } = Client::parse(columns)?;
        let time_us = time.and_then(|time| self.time_us(time)).ok_or(Malformed::Time)?;
        let (request, rest) = rest.and_then(quoted).ok_or(Malformed::Request)?;
        let (status, rest) = split_at_space(rest.strip_prefix(b" ").ok_or(Malformed::Status)?);
        if status.len() != 3 && status != b"-" {
            return Err(Malformed::Status);
        }
        let status = number_or_dash(status).ok_or(Malformed::Status)?;
        let (bytes, rest) = split_at_space(rest.ok_or(Malformed::Bytes)?);
        let bytes = number_or_dash(bytes).ok_or(Malformed::Bytes)?;
        let entry = Entry {
            host,
            ident: present(ident),
            user: present(user).map(unescape),
            time_us,
            request: RequestLine::parse(request),
            status,
            bytes,
            cost: 1,
            referer: None,
            user_agent: None,
        };
        Ok((entry, rest))
    }

    fn time_us(&mut self, text: &[u8; TIME_LEN]) -> Option<u64> {
        if let Some((last, time_us)) = self.last
            && last == *text
        {
            return Some(time_us);
        }
        let time = strtime::parse(TIME_FORMAT, text).and_then(|parts| parts.to_timestamp()).ok()?;
        let time_us = u64::try_from(time.as_microsecond()).ok()?;
        self.last = Some((*text, time_us));
        Some(time_us)
    }
}

impl RequestLine<'_> {
    /// The target without its query.
    pub fn path(&self) -> &[u8] {
        self.target.split(|&byte| byte == b'?').next().unwrap_or_default()
    }

    fn parse(text: &[u8]) -> Option<RequestLine<'_>> {
        let (method, rest) = split_at_space(text);
        let rest = rest?;
        let last_space = rest.iter().rposition(|&byte| byte == b' ');
        let (target, protocol) = match last_space.map(|space| (&rest[..space], &rest[space + 1..])) {
            Some((target, protocol)) if protocol.starts_with(b"HTTP/") => (target, Some(protocol)),
            _ => (rest, None),
        };
        // Words without a protocol are a request only if they can be HTTP/0.9; garbage seldom can.
        let is_http = protocol.is_some() || (target.starts_with(b"/") && !target.contains(&b' '));
        (is_http && is_token(method) && !target.is_empty()).then(|| RequestLine {
            method,
            target: unescape(target),
            protocol,
        })
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("no client at the start of the line"),
            Self::Ident => f.write_str("no identity (or `-`) after the client"),
            Self::User => f.write_str("no user (or `-`) after the identity"),
            Self::Time => f.write_str("no time like `[17/May/2015:10:05:03 +0000]` before the request"),
            Self::Request => f.write_str("no request in double quotes after the time"),
            Self::Status => f.write_str("no status of three digits (or `-`) after the request"),
            Self::Bytes => f.write_str("no length in bytes (or `-`) after the status"),
            Self::TooLong => write!(f, "longer than {MAX_LINE_BYTES} bytes"),
        }
    }
}

/// Splits at `] "`, which ends the time and opens the request; the quote stays with the request.
///
/// The first match is the right one. A user name may contain spaces and brackets, even a forged
/// entry, but both servers escape quotes in it.
fn split_before_request(line: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut from = 0;
    while let Some(next) = line[from..].iter().position(|&byte| byte == b'"') {
        let quote = from + next;
        if let Some(front) = line[..quote].strip_suffix(b"] ") {
            return (front, Some(&line[quote..]));
        }
        from = quote + 1;
    }
    // The request is missing. The time need not be.
    let end = line.windows(2).position(|pair| pair == b"] ");
    (end.map_or(line, |end| &line[..end]), None)
}

/// The columns before the time, as written.
struct Client<'a> {
    host: &'a [u8],
    ident: &'a [u8],
    user: &'a [u8],
}

impl<'a> Client<'a> {
    /// Reads `host ident user`, of which only the identity has no spaces.
    fn parse(columns: &'a [u8]) -> Result<Self, Malformed> {
        let columns = without_vhost(columns);
        let (mut host, mut rest) = split_at_space(columns);
        // Behind proxies the first column is often `X-Forwarded-For`, a list with spaces.
        while host.ends_with(b",")
            && let Some((next, after)) = rest.map(split_at_space)
        {
            host = &columns[..host.len() + 1 + next.len()];
            rest = after;
        }
        let (ident, user) = rest.map(split_at_space).unwrap_or_default();
        let user = user.unwrap_or_default();
        for (column, malformed) in
            [(host, Malformed::Host), (ident, Malformed::Ident), (user, Malformed::User)]
        {
            if column.is_empty() {
                return Err(malformed);
            }
        }
        Ok(Self { host, ident, user })
    }
}

/// Drops the leading `host:port` column of Apache's `vhost_combined`.
///
/// A client may also be written with its port. Then `-` follows or a column is missing, and the
/// column stays.
fn without_vhost(columns: &[u8]) -> &[u8] {
    let (first, rest) = split_at_space(columns);
    let Some(colon) = first.iter().rposition(|&byte| byte == b':') else { return columns };
    let Some(rest) = rest else { return columns };
    let is_vhost = number::<u16>(&first[colon + 1..]).is_some()
        && !is_ipv6(first)
        && !rest.starts_with(b"- ")
        && rest.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).count() >= 3;
    if is_vhost { rest } else { columns }
}

fn is_ipv6(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
}

/// A header's column: ` "value"`, and what follows it.
///
/// A column that the end of the line cuts off counts as far as it goes: what decides a request came
/// before it.
fn header(rest: Option<&[u8]>) -> (Option<Cow<'_, [u8]>>, Option<&[u8]>) {
    let Some(rest) = rest.filter(|rest| rest.starts_with(b"\"")) else { return (None, None) };
    let (text, after) = quoted(rest).unwrap_or((&rest[1..], b""));
    (present(text).map(unescape), after.strip_prefix(b" "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// 17/May/2015:10:05:03 +0000.
    const TIME_US: u64 = 1_431_857_103_000_000;

    fn parse(line: &str) -> Result<Entry<'_>, Malformed> {
        Parser::default().parse(line.as_bytes())
    }

    /// A good line around one request line.
    fn requested(request: &str) -> Option<(String, String, Option<String>)> {
        let line = format!("10.0.0.1 - - [17/May/2015:10:05:03 +0000] \"{request}\" 400 0 \"-\" \"-\"");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let request = parse(&line).unwrap().request?;
        Some((text(request.method), text(&request.target), request.protocol.map(text)))
    }

    fn client_of(columns: &str) -> (String, Option<String>) {
        let line = format!("{columns} [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1");
        let entry = parse(&line).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (text(entry.host), entry.user.map(|user| text(&user)))
    }

    /// The format nearly every log has; a field read from the wrong column is a policy on the wrong
    /// key.
    #[test]
    fn combined_line_gives_every_field() {
        let line = r#"83.149.9.216 id al [17/May/2015:10:05:03 +0000] "GET /a?b=c?d HTTP/1.1" 200 203 "http://r/" "M/5 (X)""#;
        let entry = parse(line).unwrap();
        assert_eq!(entry.request.as_ref().unwrap().path(), b"/a");
        assert_eq!(
            entry,
            Entry {
                host: b"83.149.9.216",
                ident: Some(b"id"),
                user: Some(Cow::Borrowed(b"al")),
                time_us: TIME_US,
                request: Some(RequestLine {
                    method: b"GET",
                    target: Cow::Borrowed(b"/a?b=c?d"),
                    protocol: Some(b"HTTP/1.1"),
                }),
                status: 200,
                bytes: 203,
                cost: 1,
                referer: Some(Cow::Borrowed(b"http://r/")),
                user_agent: Some(Cow::Borrowed(b"M/5 (X)")),
            }
        );
    }

    /// `-` means absent: a user named `-` would put all anonymous clients under one key.
    #[test]
    fn dashes_and_missing_columns_are_none() {
        let common = parse(r#"a - - [17/May/2015:10:05:03 +0000] "-" - -"#).unwrap();
        let combined = parse(r#"a - "" [17/May/2015:10:05:03 +0000] "" - - "-" "" "#).unwrap();
        assert_eq!(common, combined);
        assert_eq!((common.ident, common.user, common.request), (None, None, None));
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

    /// The cached time must be the time of this line, not of the line before.
    #[test]
    fn cached_time_is_used_only_for_the_same_text() {
        let mut parser = Parser::default();
        for (second, times) in [(3, 2), (4, 1), (3, 1)] {
            for _ in 0..times {
                let line = format!("a - - [17/May/2015:10:05:0{second} +0000] \"GET / HTTP/1.1\" 200 1");
                let time_us = parser.parse(line.as_bytes()).unwrap().time_us;
                assert_eq!(time_us, TIME_US + (second - 3) * 1_000_000);
            }
        }
    }

    /// A client can put a quote in any header; it must not move the columns behind it.
    #[test]
    fn escaped_quotes_do_not_end_a_field() {
        let line = r#"a - - [17/May/2015:10:05:03 +0000] "GET /\"q\" 1 HTTP/1.1" 200 1 "\\" "a\x22\" 500 9 \"\xe4\xZZ\t""#;
        let entry = parse(line).unwrap();
        assert_eq!(&*entry.request.unwrap().target, b"/\"q\" 1");
        assert_eq!((entry.status, entry.bytes), (200, 1));
        assert_eq!(entry.referer.unwrap(), &b"\\"[..]);
        assert_eq!(entry.user_agent.unwrap(), &b"a\"\" 500 9 \"\xe4\\xZZ\t"[..]);
    }

    /// Old servers wrote quotes bare, and cut long lines off: the request in such a line was real.
    #[test]
    fn bare_quotes_and_a_cut_off_header_are_read() {
        let line =
            r#"a - - [17/May/2015:10:05:03 +0000] "GET /"q"s HTTP/1.1" 200 1 "x"y" "Mozilla/5.0 (comp"#;
        let entry = parse(line).unwrap();
        assert_eq!(&*entry.request.unwrap().target, b"/\"q\"s");
        assert_eq!(entry.referer.unwrap(), &b"x\"y"[..]);
        assert_eq!(entry.user_agent.unwrap(), &b"Mozilla/5.0 (comp"[..]);
    }

    /// Copying each field of millions of lines would be most of the work.
    #[test]
    fn fields_without_escapes_are_borrowed() {
        let line = r#"a - al [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "r" "u""#;
        let entry = parse(line).unwrap();
        let fields = [entry.user.unwrap(), entry.request.unwrap().target, entry.referer.unwrap()];
        assert!(fields.iter().all(|field| matches!(field, Cow::Borrowed(_))));
    }

    /// nginx logs grow columns at the end; they must not cost the line.
    #[test]
    fn columns_after_the_known_ones_are_ignored() {
        let good = r#"a - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "r" "u""#;
        for extra in [r#" "10.1.1.1, 10.2.2.2""#, r#" 0.003 0.002 . "x""#, r#" "open"#] {
            assert_eq!(parse(&format!("{good}{extra}")), parse(good), "{extra}");
        }
        let common = r#"a - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1"#;
        assert_eq!(parse(&format!("{common} 0.003")), parse(common));
    }

    /// A scanner's garbage costs the server a request as any other does.
    #[test]
    fn request_line_that_is_not_http_is_still_a_request() {
        for garbage in
            ["", "-", "GET", "GET ", r"\x16\x03\x01\x02 /", "help me", "OPTIONS / RTSP/1.0", " / HTTP/1.1"]
        {
            assert_eq!(requested(garbage), None, "{garbage}");
        }
    }

    /// Sloppy and old clients are clients: their path decides which policy applies.
    #[test]
    fn unusual_request_lines_give_method_and_target() {
        let request = |method: &str, target: &str, protocol: &str| {
            Some((method.into(), target.into(), (!protocol.is_empty()).then(|| protocol.into())))
        };
        assert_eq!(requested("GET /old"), request("GET", "/old", ""));
        assert_eq!(requested("GET /a b c HTTP/1.1"), request("GET", "/a b c", "HTTP/1.1"));
        assert_eq!(requested("CONNECT x:443 HTTP/1.1"), request("CONNECT", "x:443", "HTTP/1.1"));
        assert_eq!(requested("PRI * HTTP/2.0"), request("PRI", "*", "HTTP/2.0"));
        assert_eq!(requested("get /a?b HTTP/3"), request("get", "/a?b", "HTTP/3"));
    }

    /// The client is the key of most policies, and its column takes many shapes.
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

    /// A scanner's bytes are not text; the line around them is as good as any.
    #[test]
    fn bytes_that_are_not_utf8_are_kept() {
        let line = b"\xff - \xfe [17/May/2015:10:05:03 +0000] \"GET /\xe9 HTTP/1.1\" 200 1 \"\" \"\x00\x80\"";
        let entry = Parser::default().parse(line).unwrap();
        assert_eq!((entry.host, entry.user.as_deref()), (&b"\xff"[..], Some(&b"\xfe"[..])));
        assert_eq!(entry.request.unwrap().path(), b"/\xe9");
        assert_eq!(entry.user_agent.unwrap(), &b"\x00\x80"[..]);
    }

    /// Whoever may choose a user name must not be able to write another time into the log.
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
            (format!("a - - {time} \"-\""), "no status of three digits (or `-`) after the request"),
            (format!("a - - {time} \"-\" 20 1"), "no status of three digits (or `-`) after the request"),
            (format!("a - - {time} \"-\" +20 1"), "no status of three digits (or `-`) after the request"),
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

    /// A day that does not exist must not become some other day.
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

    /// A log holds what attackers sent: no bytes may end the replay.
    #[test]
    fn no_bytes_make_it_panic() {
        let good =
            br#"e.com:80 ::1, a - al [17/May/2015:10:05:03 +0000] "GET /\" HTTP/1.1" 200 1 "\x22" "\\""#;
        let spice = b"\"\\ []:,-x\0\xff\n";
        let mut parser = Parser::default();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).unwrap() % below
        };
        for _ in 0..20_000 {
            let mut line = good.to_vec();
            for _ in 0..random(6) {
                let at = random(line.len());
                line[at] = spice[random(spice.len())];
            }
            line.truncate(random(good.len() + 1));
            let _ = parser.parse(&line);
            let noise: Vec<u8> = (0..random(60)).map(|_| spice[random(spice.len())]).collect();
            let _ = parser.parse(&noise);
        }
    }
}
