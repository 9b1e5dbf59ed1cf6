//! Wrappers around lines: syslog, journald and `kubectl --prefix`.
//!
//! They are removed before a line is parsed.

use std::borrow::Cow;

use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapper {
    Journald,
    Syslog,
    Kubectl,
}

impl Wrapper {
    pub(crate) const ALL: [Self; 3] = [Self::Journald, Self::Kubectl, Self::Syslog];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Journald => "journald",
            Self::Syslog => "syslog",
            Self::Kubectl => "kubectl",
        }
    }

    /// The line inside. `None` if the line does not have this wrapper.
    pub(crate) fn unwrap(self, line: &[u8]) -> Option<Cow<'_, [u8]>> {
        match self {
            Self::Journald => journald(line),
            Self::Syslog => syslog(line).map(Cow::Borrowed),
            Self::Kubectl => kubectl(line).map(Cow::Borrowed),
        }
    }
}

fn bytes_of(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

#[derive(Deserialize)]
struct JournalLine<'l> {
    #[serde(rename = "MESSAGE", borrow)]
    message: Message<'l>,
    #[allow(dead_code)] // its presence distinguishes the journal's lines from others
    #[serde(rename = "__REALTIME_TIMESTAMP")]
    time: serde::de::IgnoredAny,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Message<'l> {
    Text(#[serde(borrow)] Cow<'l, str>),
    Bytes(Vec<u8>),
}

/// `journalctl -o json`: the message is text, or a list of bytes if it is not UTF-8.
fn journald(line: &[u8]) -> Option<Cow<'_, [u8]>> {
    let JournalLine { message, .. } = serde_json::from_slice(line).ok()?;
    Some(match message {
        Message::Text(text) => bytes_of(text),
        Message::Bytes(bytes) => Cow::Owned(bytes),
    })
}

/// `[pod/NAME/CONTAINER] LINE`.
fn kubectl(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"[pod/")?;
    let end = memchr::memmem::find(rest, b"] ")?;
    Some(&rest[end + 2..])
}

/// `Nov 21 10:15:32 host tag[123]: LINE`, also with an RFC 3339 time, or RFC 5424; all with an
/// optional priority.
fn syslog(line: &[u8]) -> Option<&[u8]> {
    let (line, has_priority) = match line.strip_prefix(b"<") {
        Some(rest) => {
            let end = memchr::memchr(b'>', rest).filter(|end| (1..=3).contains(end))?;
            (&rest[end + 1..], true)
        }
        None => (line, false),
    };
    if has_priority && let Some(rest) = line.strip_prefix(b"1 ") {
        return rfc5424(rest);
    }
    let rest = match line {
        [m1, m2, m3, b' ', _, d, b' ', h1, h2, b':', _, _, b':', _, _, b' ', rest @ ..]
            if [m1, m2, m3].iter().all(|byte| byte.is_ascii_alphabetic())
                && [d, h1, h2].iter().all(|byte| byte.is_ascii_digit()) =>
        {
            rest
        }
        [y, _, _, _, b'-', _, _, b'-', _, _, b'T', ..] if y.is_ascii_digit() => word_after(line)?,
        _ => return None,
    };
    let word_end = memchr::memchr(b' ', rest)?;
    // HAProxy sends datagrams without a host: then the tag comes first.
    let rest = if rest[..word_end].ends_with(b":") { rest } else { word_after(rest)? };
    let end = memchr::memmem::find(rest, b": ")?;
    // A tag is one word.
    (end > 0 && !rest[..end].contains(&b' ')).then(|| &rest[end + 2..])
}

/// `TIME HOST APP PROCESS MESSAGE-ID STRUCTURED-DATA LINE`.
fn rfc5424(text: &[u8]) -> Option<&[u8]> {
    let mut rest = text;
    for _ in 0..5 {
        rest = word_after(rest)?;
    }
    if let Some(rest) = rest.strip_prefix(b"- ") {
        return Some(rest.strip_prefix(b"\xef\xbb\xbf").unwrap_or(rest));
    }
    // Structured data ends at the first bracket outside quotes.
    let mut is_quoted = false;
    let mut at = 0;
    loop {
        match *rest.get(at)? {
            b'\\' => at += 1,
            b'"' => is_quoted = !is_quoted,
            b']' if !is_quoted && rest.get(at + 1) == Some(&b' ') => {
                let rest = &rest[at + 2..];
                return Some(rest.strip_prefix(b"\xef\xbb\xbf").unwrap_or(rest));
            }
            _ => {}
        }
        at += 1;
    }
}

/// The text after the first word and its space.
fn word_after(text: &[u8]) -> Option<&[u8]> {
    memchr::memchr(b' ', text).map(|space| &text[space + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs of syslog servers and the journal contain the server's lines inside their own.
    #[test]
    fn each_wrapper_is_taken_off() {
        let journal = [
            r#"{"__REALTIME_TIMESTAMP":"1795256132000000","MESSAGE":"a b","_PID":"7"}"#,
            r#"{"__REALTIME_TIMESTAMP":"1795256132000000","MESSAGE":[97,32,98]}"#,
        ];
        for line in journal {
            assert_eq!(Wrapper::Journald.unwrap(line.as_bytes()).as_deref(), Some(&b"a b"[..]), "{line}");
        }
        let kubectl = Wrapper::Kubectl.unwrap(b"[pod/web-1/nginx] a b");
        assert_eq!(kubectl.as_deref(), Some(&b"a b"[..]));
        let syslog = [
            "Nov 21 10:15:32 lb1 haproxy[814]: a: b",
            "<134>Nov  1 10:15:32 lb1 nginx: a: b",
            "2026-11-21T10:15:32.123456+00:00 lb1 haproxy[814]: a: b",
            "<134>1 2026-11-21T10:15:32.123Z lb1 haproxy 814 - - a: b",
            "<134>1 2026-11-21T10:15:32.123Z lb1 haproxy 814 - [x@1 a=\"]\\\" \"][y@1] \u{feff}a: b",
        ];
        for line in syslog {
            assert_eq!(Wrapper::Syslog.unwrap(line.as_bytes()).as_deref(), Some(&b"a: b"[..]), "{line}");
        }
    }

    /// An unrelated line must be counted, not parsed by chance.
    #[test]
    fn what_is_not_wrapped_is_malformed() {
        for (wrapper, text) in [
            (Wrapper::Journald, r#"{"MESSAGE":"a"}"#),
            (Wrapper::Kubectl, "[pod/web a"),
            (Wrapper::Syslog, "Nov 21 10:15:32 lb1 two words: a"),
            (Wrapper::Syslog, "<134>1 2026-11-21T10:15:32.123Z lb1 haproxy 814 - [x"),
            (Wrapper::Syslog, "192.0.2.7 - - [21/Nov/2026:10:15:32 +0000] \"GET / HTTP/1.1\" 200 5"),
        ] {
            assert_eq!(wrapper.unwrap(text.as_bytes()), None, "{text}");
        }
    }
}
