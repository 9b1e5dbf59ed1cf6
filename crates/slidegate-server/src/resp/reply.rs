//! Replies: what goes back to the client, in RESP2 or RESP3.
//!
//! Every reply of a pipeline goes to the end of one buffer, which is written when the pipeline is decided. What RESP3 has a
//! type for and RESP2 has not, RESP2 gets as numbers, texts and flat arrays.

use std::fmt::{self, Write};

/// Which version of the protocol a client speaks: the second until it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RespVersion {
    #[default]
    Resp2,
    Resp3,
}

/// Where replies are written.
#[derive(Debug)]
pub(super) struct Reply<'o> {
    pub(super) out: &'o mut Vec<u8>,
    pub(super) protocol: RespVersion,
}

/// Longest text of a client that is repeated in an error, in bytes.
const MAX_SHOWN: usize = 64;

impl Reply<'_> {
    pub(super) fn ok(&mut self) {
        self.simple("OK");
    }

    /// A text without line ends.
    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error; its first word is the code that clients look at.
    pub(super) fn error(&mut self, error: impl fmt::Display) {
        self.out.push(b'-');
        write!(OneLine(self.out), "{error}").expect("memory takes every text");
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn int(&mut self, number: u64) {
        self.number(b':', number);
    }

    pub(super) fn signed(&mut self, number: i64) {
        self.line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// Minus one, for a wait that never ends.
    pub(super) fn never(&mut self) {
        self.out.extend_from_slice(b":-1\r\n");
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.out.extend_from_slice(match (self.protocol, flag) {
            (RespVersion::Resp2, false) => b":0\r\n",
            (RespVersion::Resp2, true) => b":1\r\n",
            (RespVersion::Resp3, false) => b"#f\r\n",
            (RespVersion::Resp3, true) => b"#t\r\n",
        });
    }

    pub(super) fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
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

    /// The beginning of so many replies.
    pub(super) fn array(&mut self, replies: usize) {
        self.number(b'*', replies as u64);
    }

    /// The beginning of so many pairs; in RESP2 of twice as many replies.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.array(2 * pairs),
            RespVersion::Resp3 => self.number(b'%', pairs as u64),
        }
    }

    /// The beginning of a decision's fields, which RESP3 calls by their names.
    pub(super) fn fields(&mut self, fields: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.array(fields),
            RespVersion::Resp3 => self.map(fields),
        }
    }

    /// The name of the field that comes next.
    pub(super) fn field(&mut self, name: &str) {
        if self.protocol == RespVersion::Resp3 {
            self.text(name);
        }
    }

    fn number(&mut self, kind: u8, number: u64) {
        self.line(kind, itoa::Buffer::new().format(number).as_bytes());
    }

    fn line(&mut self, kind: u8, content: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(content);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Writes text with control characters as blanks: an error is one line.
struct OneLine<'o>(&'o mut Vec<u8>);

impl Write for OneLine<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        Ok(())
    }
}

/// Bytes of a client within an error.
pub(super) struct Shown<'b>(pub(super) &'b [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = &self.0[..self.0.len().min(MAX_SHOWN)];
        write!(f, "{}{}", cut.escape_ascii(), if cut.len() < self.0.len() { "..." } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: RespVersion, write: impl Fn(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply { out: &mut out, protocol });
        String::from_utf8(out).unwrap()
    }

    /// A reply of a type that the client has not asked for breaks its connection.
    #[test]
    fn resp2_gets_no_type_that_only_resp3_has() {
        let all = |reply: &mut Reply<'_>| {
            reply.map(1);
            reply.fields(1);
            reply.field("f");
            reply.flag(true);
            reply.null();
        };
        assert_eq!(written(RespVersion::Resp2, all), "*2\r\n*1\r\n:1\r\n$-1\r\n");
        assert_eq!(written(RespVersion::Resp3, all), "%1\r\n%1\r\n$1\r\nf\r\n#t\r\n_\r\n");
    }

    /// A line end in an error would be read as the next reply.
    #[test]
    fn an_error_is_one_line_whatever_it_repeats() {
        let error = |reply: &mut Reply<'_>| reply.error(format_args!("ERR `{}`\r\n:1", Shown(b"\r\n\xff`")));
        assert_eq!(written(RespVersion::Resp2, error), "-ERR `\\r\\n\\xff``  :1\r\n");
        assert_eq!(Shown(&[b'a'; 65]).to_string(), format!("{}...", "a".repeat(64)));
    }
}
