//! Replies: encodes RESP2 and RESP3.
//!
//! Replies of a pipeline are appended to one buffer. RESP2 clients get integers, bulk strings and
//! flat arrays in place of RESP3 booleans, nulls and maps.

use std::fmt::{self, Write};

/// The protocol version of a connection. RESP2 until `HELLO 3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RespVersion {
    #[default]
    Resp2,
    Resp3,
}

/// Writes replies to a buffer.
#[derive(Debug)]
pub(super) struct Reply<'o> {
    pub(super) out: &'o mut Vec<u8>,
    pub(super) version: RespVersion,
}

/// Maximum bytes of client input repeated in an error.
const MAX_ESCAPED: usize = 64;

impl Reply<'_> {
    pub(super) fn ok(&mut self) {
        self.simple("OK");
    }

    /// A simple string, which must not contain line ends.
    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error. Its first word is the error code.
    pub(super) fn error(&mut self, error: impl fmt::Display) {
        self.out.push(b'-');
        write!(OneLine(self.out), "{error}").expect("writing to a Vec cannot fail");
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn int(&mut self, number: u64) {
        self.number(b':', number);
    }

    pub(super) fn signed(&mut self, number: i64) {
        self.line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// Writes -1: a wait that never ends.
    pub(super) fn never(&mut self) {
        self.out.extend_from_slice(b":-1\r\n");
    }

    pub(super) fn boolean(&mut self, value: bool) {
        self.out.extend_from_slice(match (self.version, value) {
            (RespVersion::Resp2, false) => b":0\r\n",
            (RespVersion::Resp2, true) => b":1\r\n",
            (RespVersion::Resp3, false) => b"#f\r\n",
            (RespVersion::Resp3, true) => b"#t\r\n",
        });
    }

    pub(super) fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as u64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// Starts an array of this many replies.
    pub(super) fn array(&mut self, replies: usize) {
        self.number(b'*', replies as u64);
    }

    /// Starts a map of this many pairs; in RESP2, an array of twice as many replies.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.version {
            RespVersion::Resp2 => self.array(2 * pairs),
            RespVersion::Resp3 => self.number(b'%', pairs as u64),
        }
    }

    /// Starts the fields of a decision: a map in RESP3, an array of values in RESP2.
    pub(super) fn fields(&mut self, fields: usize) {
        match self.version {
            RespVersion::Resp2 => self.array(fields),
            RespVersion::Resp3 => self.map(fields),
        }
    }

    /// Writes the next field's name, nothing in RESP2; its value follows.
    pub(super) fn field(&mut self, name: &str) -> &mut Self {
        if self.version == RespVersion::Resp3 {
            self.text(name);
        }
        self
    }

    /// Writes the next key of a map; its value follows.
    pub(super) fn key(&mut self, name: &str) -> &mut Self {
        self.text(name);
        self
    }

    fn number(&mut self, kind: u8, number: u64) {
        // Most numbers have one digit: verdicts, lengths, zero waits.
        if let Ok(digit @ 0..=9) = u8::try_from(number) {
            return self.out.extend_from_slice(&[kind, b'0' + digit, b'\r', b'\n']);
        }
        self.line(kind, itoa::Buffer::new().format(number).as_bytes());
    }

    fn line(&mut self, kind: u8, content: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(content);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Replaces control characters by spaces: an error must be one line.
struct OneLine<'o>(&'o mut Vec<u8>);

impl Write for OneLine<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        Ok(())
    }
}

/// Client input, escaped and truncated for an error.
pub(super) struct Escaped<'b>(pub(super) &'b [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = &self.0[..self.0.len().min(MAX_ESCAPED)];
        write!(f, "{}{}", cut.escape_ascii(), if cut.len() < self.0.len() { "..." } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: RespVersion, write: impl Fn(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply { out: &mut out, version });
        String::from_utf8(out).unwrap()
    }

    /// A RESP2 client disconnects at a type it does not know.
    #[test]
    fn resp2_replies_contain_no_resp3_types() {
        let all = |reply: &mut Reply<'_>| {
            reply.map(1);
            reply.fields(1);
            reply.field("f");
            reply.boolean(true);
            reply.null();
        };
        assert_eq!(written(RespVersion::Resp2, all), "*2\r\n*1\r\n:1\r\n$-1\r\n");
        assert_eq!(written(RespVersion::Resp3, all), "%1\r\n%1\r\n$1\r\nf\r\n#t\r\n_\r\n");
    }

    /// A client would parse the text after a line end as the next reply.
    #[test]
    fn an_error_is_one_line_whatever_it_contains() {
        let error =
            |reply: &mut Reply<'_>| reply.error(format_args!("ERR `{}`\r\n:1", Escaped(b"\r\n\xff`")));
        assert_eq!(written(RespVersion::Resp2, error), "-ERR `\\r\\n\\xff``  :1\r\n");
        assert_eq!(Escaped(&[b'a'; 65]).to_string(), format!("{}...", "a".repeat(64)));
    }
}
