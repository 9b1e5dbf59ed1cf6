//! Bounds on reply sizes, checked on the bytes before parsing.
//!
//! The parser allocates what a header announces, and `*1000000000` announces gigabytes, so headers are
//! checked here first. Contents are skipped: the cost is that of the headers.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum nesting of lists. The deepest reply, of `CLUSTER SLOTS`, has 4 levels.
const MAX_DEPTH: usize = 8;
/// Maximum bytes of a line: an error, status or number. Script errors have a few hundred.
const MAX_LINE: usize = 16 * 1024;
/// Bytes of the shortest element, `_` and a line end: a list of `n` elements has at least `n` times as many.
const MIN_ELEMENT: usize = 3;
/// Maximum digits of a length. Any accepted reply has fewer.
const MAX_DIGITS: usize = 18;

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
    refused: OnceLock<RefusedReply>,
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

    /// Why the connection ended, if a reply was refused.
    pub(crate) fn refused(&self) -> Option<&RefusedReply> {
        self.refused.get()
    }

    /// Checks received bytes. The error is the number of bytes that may be parsed: the complete replies
    /// before the rejected one.
    pub(crate) fn check(&self, scanner: &mut ReplyScanner, bytes: &[u8]) -> Result<(), usize> {
        scanner.scan(bytes, self.most.load(Ordering::Relaxed)).map_err(|(complete, refused)| {
            let _ = self.refused.set(refused);
            complete
        })
    }
}

/// Why a reply was rejected. Its text is one line with the size sent and the size accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusedReply {
    /// A string of this many bytes, in a reply of at most `most`.
    Bytes { announced: u64, most: usize },
    /// A list of this many elements, in a reply of at most `most` bytes.
    Elements { announced: u64, most: usize },
    /// Several small elements whose sum is too large.
    Sum { most: usize },
    /// A line without end.
    Line,
    /// Lists nested too deeply.
    Depth,
    /// No reply begins with this byte.
    Type(u8),
    /// An invalid length.
    Length,
}

impl fmt::Display for RefusedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes { announced, most } => {
                write!(f, "reply too large: {announced} bytes, must be at most {most}")
            }
            Self::Elements { announced, most } => {
                write!(f, "reply too large: a list of {announced} elements, must be at most {most} bytes")
            }
            Self::Sum { most } => {
                write!(f, "reply too large: more than {most} bytes, which is the most for these calls")
            }
            Self::Line => write!(f, "reply too large: a line of more than {MAX_LINE} bytes"),
            Self::Depth => write!(f, "reply too deep: must be at most {MAX_DEPTH} lists within one another"),
            Self::Type(byte) => write!(
                f,
                "malformed reply: begins with `{}`, which no reply does",
                char::from(*byte).escape_debug()
            ),
            Self::Length => f.write_str("malformed reply: a length that is not a number from -1"),
        }?;
        f.write_str("; is a Redis server at this address?")
    }
}

/// Follows the framing of replies, in chunks of any size. Stores no bytes.
#[derive(Debug, Default)]
pub(crate) struct ReplyScanner {
    /// Elements still missing from each open list, innermost last.
    open: [u64; MAX_DEPTH],
    depth: usize,
    /// Bytes of the current reply so far.
    bytes: usize,
    within: Within,
}

/// The context of the next byte.
#[derive(Debug, Clone, Copy, Default)]
enum Within {
    /// The first byte of an element.
    #[default]
    Start,
    /// A line: its bytes so far, and whether the last was a carriage return.
    Line { length: usize, after_return: bool },
    /// The length of a list or string of this type.
    Length { of: u8, value: u64, digits: usize, is_negative: bool, after_return: bool },
    /// The contents of a string and its line end, of which this many bytes are left.
    Contents { left: usize },
}

impl ReplyScanner {
    /// Follows bytes of replies with at most `most` bytes each. The error has the number of bytes before the
    /// rejected reply.
    fn scan(&mut self, input: &[u8], most: usize) -> Result<(), (usize, RefusedReply)> {
        let mut at = 0;
        let mut complete = 0;
        while let Some(byte) = input.get(at) {
            if self.is_between_replies() {
                complete = at;
            }
            let taken = match &mut self.within {
                // Contents are skipped unread.
                Within::Contents { left } => {
                    let taken = (*left).min(input.len() - at);
                    *left -= taken;
                    let is_over = *left == 0;
                    self.bytes += taken;
                    if is_over {
                        self.end_element();
                    }
                    taken
                }
                _ => {
                    self.bytes += 1;
                    self.step(*byte, most).map_err(|refused| (complete, refused))?;
                    1
                }
            };
            if self.bytes > most {
                return Err((complete, RefusedReply::Sum { most }));
            }
            at += taken;
        }
        Ok(())
    }

    /// Whether the last reply is complete.
    pub(crate) fn is_between_replies(&self) -> bool {
        self.bytes == 0
    }

    fn step(&mut self, byte: u8, most: usize) -> Result<(), RefusedReply> {
        match &mut self.within {
            Within::Start => {
                self.within = match byte {
                    b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {
                        Within::Line { length: 0, after_return: false }
                    }
                    b'$' | b'=' | b'!' | b'*' | b'~' | b'>' | b'%' | b'|' => Within::Length {
                        of: byte,
                        value: 0,
                        digits: 0,
                        is_negative: false,
                        after_return: false,
                    },
                    other => return Err(RefusedReply::Type(other)),
                };
            }
            Within::Line { length, after_return } => {
                if *after_return && byte == b'\n' {
                    self.end_element();
                    return Ok(());
                }
                *after_return = byte == b'\r';
                *length += 1;
                if *length > MAX_LINE {
                    return Err(RefusedReply::Line);
                }
            }
            Within::Length { of, value, digits, is_negative, after_return } => match byte {
                b'\n' if *after_return => {
                    let (of, value, is_negative) = (*of, *value, *is_negative);
                    return self.announce(of, value, is_negative, most);
                }
                b'\r' if *digits > 0 && !*after_return => *after_return = true,
                b'-' if *digits == 0 && !*is_negative => *is_negative = true,
                b'0'..=b'9' if *digits < MAX_DIGITS && !*after_return => {
                    *value = *value * 10 + u64::from(byte - b'0');
                    *digits += 1;
                }
                _ => return Err(RefusedReply::Length),
            },
            Within::Contents { .. } => {}
        }
        Ok(())
    }

    /// Handles a complete header: a string of `value` bytes, or a list of `value` elements or pairs.
    fn announce(&mut self, of: u8, value: u64, is_negative: bool, most: usize) -> Result<(), RefusedReply> {
        if is_negative {
            // RESP2's null.
            if value != 1 || !matches!(of, b'$' | b'*') {
                return Err(RefusedReply::Length);
            }
            self.end_element();
            return Ok(());
        }
        let left = most.saturating_sub(self.bytes) as u64;
        if matches!(of, b'$' | b'=' | b'!') {
            // Including its line end.
            let contents = usize::try_from(value + 2).ok().filter(|_| value + 2 <= left);
            let left = contents.ok_or(RefusedReply::Bytes { announced: value, most })?;
            self.within = Within::Contents { left };
            return Ok(());
        }
        let elements = match of {
            b'%' => value * 2,
            // Attributes precede a value.
            b'|' => value * 2 + 1,
            _ => value,
        };
        if elements.saturating_mul(MIN_ELEMENT as u64) > left {
            return Err(RefusedReply::Elements { announced: value, most });
        }
        if elements == 0 {
            self.end_element();
            return Ok(());
        }
        let place = self.open.get_mut(self.depth).ok_or(RefusedReply::Depth)?;
        *place = elements;
        self.depth += 1;
        self.within = Within::Start;
        Ok(())
    }

    /// Handles a complete element, and the lists and reply that it may complete.
    fn end_element(&mut self) {
        self.within = Within::Start;
        while let Some(innermost) = self.depth.checked_sub(1) {
            self.open[innermost] -= 1;
            if self.open[innermost] > 0 {
                return;
            }
            self.depth = innermost;
        }
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(input: &[u8], most: usize) -> Result<(), (usize, RefusedReply)> {
        let whole = ReplyScanner::default().scan(input, most);
        // The same bytes, one at a time.
        let mut scanner = ReplyScanner::default();
        let one_by_one = input.iter().try_for_each(|byte| scanner.scan(&[*byte], most));
        assert_eq!(whole.map_err(|(_, why)| why), one_by_one.map_err(|(_, why)| why), "{input:?}");
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
            "(123456789012345678901234567890\r\n",
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
            assert_eq!((scanner.bytes, scanner.depth), (0, 0), "{reply:?} is whole");
            assert_eq!(scan(twice.as_bytes(), 1000), Ok(()), "{reply:?}");
        }
    }

    /// An announced size must be rejected before anything is allocated for it.
    #[test]
    fn what_is_too_large_is_refused_at_its_header() {
        for (reply, expected) in [
            ("$1073741824\r\n", RefusedReply::Bytes { announced: 1 << 30, most: 1000 }),
            ("!1073741824\r\n", RefusedReply::Bytes { announced: 1 << 30, most: 1000 }),
            ("*1000000000\r\n", RefusedReply::Elements { announced: 1_000_000_000, most: 1000 }),
            ("%500\r\n", RefusedReply::Elements { announced: 500, most: 1000 }),
            (
                "$999999999999999999\r\n",
                RefusedReply::Bytes { announced: 999_999_999_999_999_999, most: 1000 },
            ),
            (
                "|999999999999999999\r\n",
                RefusedReply::Elements { announced: 999_999_999_999_999_999, most: 1000 },
            ),
            ("$9999999999999999999\r\n", RefusedReply::Length),
            ("$-2\r\n", RefusedReply::Length),
            ("%-1\r\n", RefusedReply::Length),
            ("$\r\n", RefusedReply::Length),
            ("$?\r\n", RefusedReply::Length),
            ("$1 \r\n", RefusedReply::Length),
            ("$1\n", RefusedReply::Length),
            ("x", RefusedReply::Type(b'x')),
            ("\0", RefusedReply::Type(0)),
        ] {
            assert_eq!(scan(reply.as_bytes(), 1000).map_err(|(_, why)| why), Err(expected), "{reply:?}");
        }
        // Each fits; together they do not.
        let two = format!("*2\r\n$500\r\n{}\r\n$500\r\n", "a".repeat(500));
        assert_eq!(scan(two.as_bytes(), 1000), Err((0, RefusedReply::Bytes { announced: 500, most: 1000 })));
        assert_eq!(scan("*1\r\n".repeat(9).as_bytes(), 1000), Err((0, RefusedReply::Depth)));
        assert_eq!(scan("*1\r\n".repeat(8).as_bytes(), 1000), Ok(()));
        let line = "+".to_owned() + &"a".repeat(MAX_LINE + 1);
        assert_eq!(scan(line.as_bytes(), 1 << 20), Err((0, RefusedReply::Line)));
        assert_eq!(scan(line.as_bytes(), 1000), Err((0, RefusedReply::Sum { most: 1000 })));
    }

    /// Calls whose replies have arrived must not fail because of the next one.
    #[test]
    fn complete_replies_before_the_refused_one_are_kept() {
        assert_eq!(scan(b"+OK\r\n:1\r\nx", 1000), Err((9, RefusedReply::Type(b'x'))));
        let accepted = AcceptedReplies::default();
        let mut scanner = ReplyScanner::default();
        let large = b":1\r\n$100000\r\n";
        assert_eq!(accepted.check(&mut scanner, large), Err(4));
        assert_eq!(
            accepted.refused().map(ToString::to_string).unwrap_or_default(),
            "reply too large: 100000 bytes, must be at most 65536; is a Redis server at this address?"
        );
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
