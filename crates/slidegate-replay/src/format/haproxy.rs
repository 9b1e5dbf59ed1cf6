//! HAProxy's `option httplog`, without its syslog prefix.
//!
//! Captured headers are up to two columns in braces, absent if none is declared. A request line too
//! long for the log has no closing quote.

use crate::block::{Escape, RecordWriter, Text};
use crate::column::split_at_space;
use crate::format::field::{Field, FieldReader, Target};
use crate::format::time::Unit;
use crate::malformed::Malformed;

/// Parses one line.
pub(crate) fn parse(
    line: &[u8],
    fields: &mut FieldReader,
    out: &mut RecordWriter<'_>,
) -> Result<(), Malformed> {
    let columns = |found| Malformed::Columns { found, expected: 12 };
    fields.begin();
    let (client, rest) = split_at_space(line);
    let (time, rest) = split_at_space(rest.ok_or_else(|| columns(1))?);
    let time = time.strip_prefix(b"[").and_then(|time| time.strip_suffix(b"]"));
    let expected = "a time such as [21/Nov/2026:10:15:32.123] after the client";
    let time = time.ok_or(Malformed::Field("time", expected))?;
    let mut cells: [&[u8]; 9] = [&[]; 9];
    let mut rest = rest;
    for (found, cell) in cells.iter_mut().enumerate() {
        let (text, after) = split_at_space(rest.ok_or_else(|| columns(found + 2))?);
        *cell = text;
        rest = after;
    }
    // Frontend, backend/server, timers, status, bytes, cookies, termination, connections, then the
    // queues, which precede captured headers.
    let [_, _, timers, status, bytes, ..] = cells;
    let (_, rest) = split_at_space(rest.ok_or_else(|| columns(11))?);
    let mut rest = rest.ok_or(Malformed::Request)?;
    for _ in 0..2 {
        if rest.starts_with(b"{") {
            let end = memchr::memmem::find_iter(rest, b"} ")
                .find(|end| matches!(rest.get(end + 2), Some(b'{' | b'"')));
            rest = &rest[end.ok_or(Malformed::Request)? + 2..];
        }
    }
    let request = rest.strip_prefix(b"\"").ok_or(Malformed::Request)?;
    let request = memchr::memchr(b'"', request).map_or(request, |end| &request[..end]);

    let set = |field| Target::of_format(field, 1);
    fields.set(set(Field::Start), time, Escape::None, out)?;
    fields.set(set(Field::ClientAndPort), client, Escape::None, out)?;
    if out.record.texts[Text::Client as usize].is_absent() {
        return Err(Malformed::Client);
    }
    // The last timer is the total time; `+` marks a request that was not over. -1 if unknown.
    let whole = timers.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let whole = whole.strip_prefix(b"+").unwrap_or(whole);
    fields.set(set(Field::Duration(Unit::Milliseconds)), whole, Escape::None, out)?;
    // -1 if the request was aborted before a response.
    if status != b"-1" {
        fields.set(set(Field::Status), status, Escape::None, out)?;
    }
    // `+` marks that more was sent after the line was written.
    fields.set(set(Field::Bytes), bytes.strip_prefix(b"+").unwrap_or(bytes), Escape::None, out)?;
    fields.set(set(Field::Request), request, Escape::None, out)?;
    fields.finish(out)
}
