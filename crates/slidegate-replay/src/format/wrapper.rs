//! Wrappers around lines: syslog, Kubernetes nodes (CRI), Docker, journald and `kubectl --prefix`.
//!
//! They are taken off before a line is parsed. A line that CRI or Docker split is put together.

use std::borrow::Cow;

use serde::Deserialize;

use crate::malformed::{MAX_LINE_BYTES, Malformed};

/// A wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapper {
    Cri,
    Docker,
    Journald,
    Syslog,
    Kubectl,
}

impl Wrapper {
    pub(crate) const ALL: [Self; 5] = [Self::Cri, Self::Docker, Self::Journald, Self::Kubectl, Self::Syslog];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cri => "cri",
            Self::Docker => "docker",
            Self::Journald => "journald",
            Self::Syslog => "syslog",
            Self::Kubectl => "kubectl",
        }
    }
}

/// Takes a wrapper off lines.
#[derive(Clone, Debug)]
pub(crate) struct Unwrapper {
    wrapper: Wrapper,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
}

impl Unwrapper {
    pub(crate) fn new(wrapper: Wrapper) -> Self {
        Self { wrapper, partial: Vec::new() }
    }

    /// Appends the line inside to `inner`. `false` if the line goes on in the next one.
    ///
    /// # Errors
    /// The line is not wrapped in this way.
    pub(crate) fn unwrap(&mut self, line: &[u8], inner: &mut Vec<u8>) -> Result<bool, Malformed> {
        let malformed = Malformed::Wrapper(self.wrapper.name());
        let (text, is_complete) = match self.wrapper {
            Wrapper::Cri => cri(line).map(|(text, complete)| (Cow::Borrowed(text), complete)),
            Wrapper::Docker => docker(line).map(|text| {
                let is_complete = text.ends_with(b"\n");
                (text, is_complete)
            }),
            Wrapper::Journald => journald(line).map(|text| (text, true)),
            Wrapper::Syslog => syslog(line).map(|text| (Cow::Borrowed(text), true)),
            Wrapper::Kubectl => kubectl(line).map(|text| (Cow::Borrowed(text), true)),
        }
        .ok_or(malformed)?;
        if !is_complete {
            // A line that never ends is cut: it is too long in any case.
            let room = (2 * MAX_LINE_BYTES).saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&text[..text.len().min(room)]);
            return Ok(false);
        }
        inner.append(&mut self.partial);
        let is_docker = self.wrapper == Wrapper::Docker;
        inner.extend_from_slice(if is_docker { text.trim_ascii_end() } else { &text });
        Ok(true)
    }
}

/// `2026-11-21T10:15:32.123456789Z stdout F LINE`; `P` is a part.
fn cri(line: &[u8]) -> Option<(&[u8], bool)> {
    let mut words = line.splitn(4, |byte| *byte == b' ');
    let (time, stream, tag) = (words.next()?, words.next()?, words.next()?);
    let is_cri = time.len() >= 20 && time[10] == b'T' && matches!(stream, b"stdout" | b"stderr");
    let tag = tag.split(|byte| *byte == b':').next()?;
    (is_cri && matches!(tag, b"F" | b"P")).then(|| (words.next().unwrap_or_default(), tag == b"F"))
}

#[derive(Deserialize)]
struct DockerLine<'l> {
    #[serde(borrow)]
    log: Cow<'l, str>,
    #[allow(dead_code)] // its presence distinguishes Docker's lines from others with a `log`
    stream: serde::de::IgnoredAny,
}

/// `{"log":"LINE\n","stream":"stdout","time":"..."}`. Without the line end it is a part.
fn docker(line: &[u8]) -> Option<Cow<'_, [u8]>> {
    let DockerLine { log, .. } = serde_json::from_slice(line).ok()?;
    Some(bytes_of(log))
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

/// `Nov 21 10:15:32 host tag[123]: LINE`, the same with an RFC 3339 time, or RFC 5424; all possibly
/// with a priority.
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
    // Structured data ends at the first bracket that is not in quotes.
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

/// What follows the first word and its space.
fn word_after(text: &[u8]) -> Option<&[u8]> {
    memchr::memchr(b' ', text).map(|space| &text[space + 1..])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn unwrapped(wrapper: Wrapper, lines: &[&str]) -> Vec<Result<Option<String>, Malformed>> {
        let mut unwrapper = Unwrapper::new(wrapper);
        let one = |line: &&str| {
            let mut inner = Vec::new();
            let complete = unwrapper.unwrap(line.as_bytes(), &mut inner)?;
            Ok(complete.then(|| String::from_utf8(inner).unwrap()))
        };
        lines.iter().map(one).collect()
    }

    fn line(text: &str) -> Result<Option<String>, Malformed> {
        Ok(Some(text.to_owned()))
    }

    /// Logs of containers and of syslog servers hold the server's lines inside their own.
    #[test]
    fn each_wrapper_is_taken_off() {
        assert_eq!(unwrapped(Wrapper::Cri, &["2026-11-21T10:15:32.123456789Z stdout F a b"]), [line("a b")]);
        let docker = r#"{"log":"a \"b\"\n","stream":"stdout","time":"2026-11-21T10:15:32Z"}"#;
        assert_eq!(unwrapped(Wrapper::Docker, &[docker]), [line("a \"b\"")]);
        let journal = [
            r#"{"__REALTIME_TIMESTAMP":"1795256132000000","MESSAGE":"a b","_PID":"7"}"#,
            r#"{"__REALTIME_TIMESTAMP":"1795256132000000","MESSAGE":[97,32,98]}"#,
        ];
        assert_eq!(unwrapped(Wrapper::Journald, &journal), [line("a b"), line("a b")]);
        assert_eq!(unwrapped(Wrapper::Kubectl, &["[pod/web-1/nginx] a b"]), [line("a b")]);
        let syslog = [
            "Nov 21 10:15:32 lb1 haproxy[814]: a: b",
            "<134>Nov  1 10:15:32 lb1 nginx: a: b",
            "2026-11-21T10:15:32.123456+00:00 lb1 haproxy[814]: a: b",
            "<134>1 2026-11-21T10:15:32.123Z lb1 haproxy 814 - - a: b",
            "<134>1 2026-11-21T10:15:32.123Z lb1 haproxy 814 - [x@1 a=\"]\\\" \"][y@1] \u{feff}a: b",
        ];
        assert_eq!(unwrapped(Wrapper::Syslog, &syslog), vec![line("a: b"); 5]);
    }

    /// Kubernetes and Docker split long lines; the pieces are one request.
    #[test]
    fn parts_of_a_line_are_put_together() {
        let cri = ["2026-11-21T10:15:32.1Z stdout P a", "2026-11-21T10:15:32.1Z stdout F b"];
        assert_eq!(unwrapped(Wrapper::Cri, &cri), [Ok(None), line("ab")]);
        let docker = [r#"{"log":"a","stream":"stdout"}"#, r#"{"log":"b\n","stream":"stdout"}"#];
        assert_eq!(unwrapped(Wrapper::Docker, &docker), [Ok(None), line("ab")]);
    }

    /// A line of something else must be counted, not parsed by chance.
    #[test]
    fn what_is_not_wrapped_is_malformed() {
        for (wrapper, text) in [
            (Wrapper::Cri, "2026-11-21T10:15:32Z stdin F a"),
            (Wrapper::Docker, r#"{"log":"a\n"}"#),
            (Wrapper::Journald, r#"{"MESSAGE":"a"}"#),
            (Wrapper::Kubectl, "[pod/web a"),
            (Wrapper::Syslog, "Nov 21 10:15:32 lb1 two words: a"),
            (Wrapper::Syslog, "<134>1 2026-11-21T10:15:32.123Z lb1 haproxy 814 - [x"),
            (Wrapper::Syslog, "192.0.2.7 - - [21/Nov/2026:10:15:32 +0000] \"GET / HTTP/1.1\" 200 5"),
        ] {
            assert_eq!(unwrapped(wrapper, &[text]), [Err(Malformed::Wrapper(wrapper.name()))], "{text}");
        }
    }

    /// A split line that never ends must not fill the memory.
    #[test]
    fn an_endless_split_line_is_cut() {
        let mut unwrapper = Unwrapper::new(Wrapper::Cri);
        let part = format!("2026-11-21T10:15:32.1Z stdout P {}", "x".repeat(60_000));
        let mut inner = Vec::new();
        for _ in 0..100 {
            assert_eq!(unwrapper.unwrap(part.as_bytes(), &mut inner), Ok(false));
        }
        assert!(unwrapper.partial.len() <= 2 * MAX_LINE_BYTES);
    }
}
