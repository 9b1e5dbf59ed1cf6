//! The entries of a forwarding header, from right to left across all its lines.

use std::iter;

use super::resolved::Found;

/// Maximum number of lines read of one header: the last ones. A proxy appends to a line or adds
/// one, and real chains have fewer than ten proxies.
pub const MAX_LINES: usize = 16;

/// Maximum number of entries read from the right, including empty ones: the largest
/// [`Trust::Hops`](super::Trust::Hops).
pub const MAX_ENTRIES: usize = 255;

/// The last lines of one header, in a ring: at most [`MAX_LINES`] of `count`.
pub(super) struct Lines<'h> {
    pub(super) kept: [&'h [u8]; MAX_LINES],
    pub(super) count: usize,
}

impl<'h> Lines<'h> {
    pub(super) fn of(header: &str, headers: impl IntoIterator<Item = (&'h str, &'h [u8])>) -> Self {
        let mut lines = Self { kept: [b""; MAX_LINES], count: 0 };
        for (name, line) in headers {
            if name.eq_ignore_ascii_case(header) {
                lines.kept[lines.count % MAX_LINES] = line;
                lines.count += 1;
            }
        }
        lines
    }

    /// The entries of all lines from the right. Empty entries are skipped (RFC 9110, 5.6.1).
    pub(super) fn entries(&self) -> impl Iterator<Item = Result<&'h [u8], Found>> {
        let line = |back| self.kept[(self.count - back) % MAX_LINES];
        let lost = (self.count > MAX_LINES).then_some(Err(Found::TooMany));
        (1..=self.count.min(MAX_LINES))
            .flat_map(move |back| from_right(line(back), b','))
            .map(Ok)
            .chain(lost)
            .enumerate()
            .map(|(at, entry)| if at < MAX_ENTRIES { entry } else { Err(Found::TooMany) })
            .filter(|entry| *entry != Ok(b""))
    }
}

/// The elements of `list` from the right, trimmed. Separators inside quotes do not separate.
///
/// Reading from the right makes the result independent of what is on the left. From the left, a
/// client could send `for="` and swallow what the proxy appends.
pub(super) fn from_right(list: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(list);
    iter::from_fn(move || {
        let list = rest.take()?;
        let mut quoted = false;
        let cut = list.iter().enumerate().rposition(|(at, &byte)| {
            if byte == b'"' && !(quoted && is_escaped(&list[..at])) {
                quoted = !quoted;
            }
            byte == separator && !quoted
        });
        rest = cut.map(|at| &list[..at]);
        Some(list[cut.map_or(0, |at| at + 1)..].trim_ascii())
    })
}

/// Whether the byte after `before` is the second of a quoted pair, which is the case after an odd
/// number of backslashes.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}
