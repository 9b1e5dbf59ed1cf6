//! Bounds on reply sizes, checked on the bytes before parsing.
//!
//! The parser allocates what a header announces, and `*1000000000` announces gigabytes, so headers are
//! read here first. Contents are skipped unread. Everything else that is malformed is the parser's to reject.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the shortest element, `_` and a line end: a list of `n` elements has at least `n` times as many.
const MIN_ELEMENT: u64 = 3;
/// Bytes of a line that are kept: more than the longest header has.
const MAX_HEADER: usize = 32;

/// Maximum bytes of a reply to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplyBound(usize);

impl ReplyBound {
    /// For every call that does not need more: the state of a few keys, counters, `INFO`, `HELLO`.
    pub const SMALL: Self = Self(64 * 1024);
    /// For `CLUSTER SLOTS` and one scan step: a cluster with slots scattered over a hundred nodes, or 20,000
    /// long names.
    pub const LISTING: Self = Self(8 << 20);

    /// For a value of this many bytes, at least [`SMALL`](Self::SMALL).
    #[must_use]
    pub fn of(bytes: usize) -> Self {
        Self(bytes.saturating_add(64)).max(Self::SMALL)
    }
}

/// Bounds of the calls on one connection, shared with the stream that receives the replies.
#[derive(Debug)]
pub(crate) struct AcceptedReplies {
    /// The largest bound of any call so far. Never shrinks: the reply to an abandoned call may still arrive.
    most: AtomicUsize,
    /// Why a reply was rejected, which ends the connection.
    refused: OnceLock<String>,
}

impl Default for AcceptedReplies {
    fn default() -> Self {
        Self { most: AtomicUsize::new(ReplyBound::SMALL.0), refused: OnceLock::new() }
    }
}

impl AcceptedReplies {
    /// Accepts replies up to this bound from now on. Call before sending the call.
    pub(crate) fn accept(&self, bound: ReplyBound) {
        if self.most.load(Ordering::Relaxed) < bound.0 {
            self.most.fetch_max(bound.0, Ordering::Relaxed);
        }
    }

    /// Why the connection ended, if a reply was refused: one line with the size sent and the size accepted.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.get().map(String::as_str)
    }

    /// Checks received bytes. The error says why they must not be parsed.
    pub(crate) fn check(&self, scanner: &mut ReplyScanner, bytes: &[u8]) -> Result<(), &str> {
        scanner.scan(bytes, self.most.load(Ordering::Relaxed)).map_err(|why| {
            self.refused.get_or_init(|| format!("{why}; is a Redis server at this address?")).as_str()
        })
    }
}

/// Follows the framing of replies, in chunks of any size.
#[derive(Debug, Default)]
pub(crate) struct ReplyScanner {
    /// Bytes of the current reply so far; 0 between replies.
    bytes: usize,
    /// Elements that the current reply lacks, those of lists within lists included.
    missing: u64,
    /// Bytes of a string and its line end that are yet to come.
    contents: usize,
    /// The current line, at most [`MAX_HEADER`] bytes of it.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return.
    after_return: bool,
}

impl ReplyScanner {
    /// Whether the last reply is complete.
    pub(crate) fn is_between_replies(&self) -> bool {
        self.bytes == 0
    }

    /// Follows bytes of replies with at most `most` bytes each.
    fn scan(&mut self, mut input: &[u8], most: usize) -> Result<(), String> {
        while let Some(&byte) = input.first() {
            if self.is_between_replies() {
                self.missing = 1;
            }
            let taken = self.contents.min(input.len()).max(1);
            self.bytes += taken;
            if self.contents > 0 {
                self.contents -= taken;
            } else {
                self.step(byte, most)?;
            }
            if self.bytes > most {
                return Err(too_large(&format!("{} bytes and more", self.bytes), most));
            }
            if self.missing == 0 && self.contents == 0 {
                self.bytes = 0;
            }
            input = &input[taken..];
        }
        Ok(())
    }

    /// Follows one byte of a line.
    fn step(&mut self, byte: u8, most: usize) -> Result<(), String> {
        if self.line.is_empty() && !b"+-:_,#($=!*~>%|".contains(&byte) {
            let begin = char::from(byte).escape_debug();
            return Err(format!("malformed reply: begins with `{begin}`, which no reply does"));
        }
        if self.line.len() < MAX_HEADER {
            self.line.push(byte);
        }
        let is_over = self.after_return && byte == b'\n';
        self.after_return = byte == b'\r';
        if is_over {
            self.end_line(most)?;
            self.line.clear();
        }
        Ok(())
    }

    /// Handles a complete line: an element, or the header of a string or list.
    fn end_line(&mut self, most: usize) -> Result<(), String> {
        self.missing -= 1;
        let kind = self.line[0];
        if b"+-:_,#(".contains(&kind) {
            return Ok(());
        }
        // As the parser reads it, but never a part of a longer line.
        let text = std::str::from_utf8(&self.line[1..]).ok().filter(|_| self.line.len() < MAX_HEADER);
        let number = text.and_then(|text| text.trim().parse::<i64>().ok());
        let announced = match number.map(u64::try_from) {
            Some(Ok(announced)) => announced,
            // RESP2's null.
            Some(Err(_)) if number == Some(-1) && b"$*".contains(&kind) => return Ok(()),
            _ => return Err("malformed reply: a length that is not a number from -1".to_owned()),
        };
        let left = most.saturating_sub(self.bytes) as u64;
        if b"$=!".contains(&kind) {
            let contents = announced + 2;
            self.contents = usize::try_from(contents)
                .ok()
                .filter(|_| contents <= left)
                .ok_or_else(|| too_large(&format!("{announced} bytes"), most))?;
            return Ok(());
        }
        self.missing += match kind {
            b'%' => announced * 2,
            // Attributes precede a value.
            b'|' => announced * 2 + 1,
            _ => announced,
        };
        if self.missing.saturating_mul(MIN_ELEMENT) > left {
            return Err(too_large(&format!("a list of {announced} elements"), most));
        }
        Ok(())
    }
}

fn too_large(sent: &str, most: usize) -> String {
    format!("reply too large: {sent}, must be at most {most} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(input: &[u8], most: usize) -> Result<(), String> {
        let whole = ReplyScanner::default().scan(input, most);
        // The same bytes, one at a time.
        let mut scanner = ReplyScanner::default();
        assert_eq!(whole, input.iter().try_for_each(|byte| scanner.scan(&[*byte], most)), "{input:?}");
        whole
    }

    /// Wrongly rejecting a reply takes the store away from every caller.
    #[test]
    fn replies_of_every_type_pass() {
        for reply in [
            "+OK\r\n",
            "-ERR no\r\n",
            ":-5\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "$0\r\n\r\n",
            "$5\r\na\r\nbc\r\n",
            "*0\r\n",
            "*2\r\n:1\r\n*1\r\n$1\r\nx\r\n",
            "%1\r\n+a\r\n:1\r\n",
            "~2\r\n#t\r\n_\r\n",
            ",1.5\r\n",
            "(123456789012345678901234567890123456789012345678901234567890\r\n",
            "=7\r\ntxt:abc\r\n",
            "!5\r\nERR x\r\n",
            "|1\r\n+ttl\r\n:3600\r\n$1\r\nv\r\n",
            ">2\r\n+message\r\n+x\r\n",
            "+a\r\r\n",
            "+a\nb\r\n",
        ] {
            let twice = reply.repeat(2);
            let mut scanner = ReplyScanner::default();
            assert_eq!(scanner.scan(twice.as_bytes(), 1000), Ok(()), "{reply:?}");
            assert!(scanner.is_between_replies(), "{reply:?} is whole");
            assert_eq!(scan(twice.as_bytes(), 1000), Ok(()), "{reply:?}");
        }
    }

    /// An announced size must be rejected before anything is allocated for it.
    #[test]
    fn replies_that_are_too_large_are_rejected_at_their_header() {
        let line = format!("+{}", "a".repeat(1000));
        let strings = format!("*2\r\n$500\r\n{}\r\n$500\r\n", "a".repeat(500));
        for (reply, expected) in [
            ("$1073741824\r\n", "too large: 1073741824 bytes, must"),
            ("!1073741824\r\n", "too large: 1073741824 bytes, must"),
            ("*1000000000\r\n", "too large: a list of 1000000000 elements, must"),
            ("%200\r\n", "too large: a list of 200 elements, must"),
            ("|9223372036854775807\r\n", "too large: a list of 9223372036854775807 elements, must"),
            // Each fits; together they do not.
            (&strings, "too large: 500 bytes, must"),
            ("*200\r\n*200\r\n", "too large: a list of 200 elements, must"),
            (&line, "too large: 1001 bytes and more, must"),
            ("$9223372036854775808\r\n", "a length that is not a number"),
            ("$-2\r\n", "a length that is not a number"),
            ("%-1\r\n", "a length that is not a number"),
            ("$\r\n", "a length that is not a number"),
            ("$?\r\n", "a length that is not a number"),
            (&format!("*{:050}\r\n", 1_000_000_000), "a length that is not a number"),
            ("x", "begins with `x`"),
            ("\0", "begins with `\\0`"),
        ] {
            let why = scan(reply.as_bytes(), 1000).unwrap_err();
            assert!(why.contains(expected), "{reply:?}: {why}");
        }
    }

    /// A call that needs more raises the connection's bound, and no call lowers it.
    #[test]
    fn a_connection_accepts_what_its_largest_call_can_get() {
        let accepted = AcceptedReplies::default();
        let check = || accepted.check(&mut ReplyScanner::default(), b"$100000\r\n");
        accepted.accept(ReplyBound::of(100_000));
        accepted.accept(ReplyBound::SMALL);
        assert_eq!(check(), Ok(()));
        assert_eq!(ReplyBound::of(1), ReplyBound::SMALL);
        assert_eq!(ReplyBound::of(usize::MAX), ReplyBound(usize::MAX));
    }
}
