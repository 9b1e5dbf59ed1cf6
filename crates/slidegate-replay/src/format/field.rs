//! Fields: the meaning of a format's column, variable or key, and how it is written to a record.
//!
//! Several columns can fill one field, for example the client's address as seen by a proxy and as
//! forwarded. Each has a rank; of those in a line, the lowest rank wins.

use jiff::tz::TimeZone;

use crate::block::{Escape, RecordWriter, TEXTS, Text};
use crate::clock_changes::ClockChanges;
use crate::column::{self, present};
use crate::format::fold::FoldOrder;
use crate::format::request::set_request;
use crate::format::time::{Clock, TimeReader, Unit, duration_us};
use crate::malformed::Malformed;

/// The meaning of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Text(Text),
    /// An address and a port, separated by the last colon.
    ClientAndPort,
    /// `GET /path HTTP/1.1`.
    Request,
    /// `https://host/path?query`, or the path alone.
    Url,
    /// Start of the request.
    Start,
    /// End of the request.
    End,
    Duration(Unit),
    Status,
    Bytes,
    Cost,
    /// A further attribute, by its number in the format.
    Extra(u16),
}

pub(crate) const CLIENT: Field = Field::Text(Text::Client);
pub(crate) const USER: Field = Field::Text(Text::User);
pub(crate) const METHOD: Field = Field::Text(Text::Method);
pub(crate) const PATH: Field = Field::Text(Text::Target);
pub(crate) const HOST: Field = Field::Text(Text::Host);
pub(crate) const REFERER: Field = Field::Text(Text::Referer);
pub(crate) const USER_AGENT: Field = Field::Text(Text::UserAgent);

/// Columns: their names, separated by spaces, with field and rank.
pub(crate) type Columns = [(&'static str, Field, u8)];

/// The target of a format's column; `None` if it is irrelevant to decisions.
pub(crate) fn target(columns: &Columns, name: &str) -> Option<Target> {
    let is_named = |names: &str| names.split(' ').any(|known| known == name);
    let (_, field, rank) = columns.iter().find(|(names, ..)| is_named(names))?;
    Some(Target::of_format(*field, *rank))
}

impl Field {
    pub(crate) fn is_time(self) -> bool {
        matches!(self, Self::Start | Self::End)
    }
}

/// A field and its rank: of several, the lowest wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) field: Field,
    pub(crate) rank: u8,
    /// The user's source that it belongs to, to check whether that source ever has a value.
    pub(crate) source: Option<SourceNumber>,
}

impl Target {
    /// A target defined by the format itself.
    pub(crate) fn of_format(field: Field, rank: u8) -> Self {
        Self { field, rank, source: None }
    }
}

/// The number of a source named by the user.
pub(crate) type SourceNumber = u8;

/// A set of the user's sources, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceSet(u128);

impl SourceSet {
    /// For a format that does not track its sources.
    pub(crate) const ALL: Self = Self(u128::MAX);

    /// Whether this source was found. Sources above 127 are not tracked and count as found.
    pub(crate) fn contains(self, number: usize) -> bool {
        number >= u128::BITS as usize || self.0 >> number & 1 == 1
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn add(&mut self, number: SourceNumber) {
        self.0 |= 1_u128.checked_shl(number.into()).unwrap_or(0);
    }
}

/// The rank of user mappings, above all mappings of a format.
pub(crate) const MAPPED: u8 = 0;

/// Rules for computing the time of a request.
#[derive(Clone, Debug)]
pub(crate) struct TimeRules {
    /// The zone of times without one.
    pub(crate) zone: TimeZone,
    /// Whether to subtract the duration from the end.
    pub(crate) derive_start: bool,
    /// Maximum lateness of a line, in microseconds.
    pub(crate) slack_us: u64,
}

/// Collects the fields of a line.
#[derive(Debug)]
pub(crate) struct FieldReader {
    pub(crate) time: TimeReader,
    pub(crate) fold: FoldOrder,
    derive_start: bool,
    has_cost_field: bool,
    start: Option<(u64, Clock)>,
    end: Option<(u64, Clock)>,
    duration_us: Option<u64>,
    cost: Option<u64>,
    /// The rank of each value of the line so far: first texts, then the constants below.
    ranks: [u8; RANKS],
    /// Counts of the lines so far.
    pub(crate) counts: FieldCounts,
}

/// The reader's assumptions, counted for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldCounts {
    /// Requests whose start is the logged end minus the duration.
    pub(crate) derived: u64,
    /// Requests for which only the end is known.
    pub(crate) ended: u64,
    /// Requests without a readable cost, which cost 1.
    pub(crate) without_cost: u64,
    /// The user's sources that have had a value.
    pub(crate) sources: SourceSet,
    pub(crate) clock_changes: ClockChanges,
}

/// Indexes in the ranks, after those of texts.
const START: usize = TEXTS;
const END: usize = TEXTS + 1;
const STATUS: usize = TEXTS + 2;
const BYTES: usize = TEXTS + 3;
const RANKS: usize = TEXTS + 4;

const TIME_EXPECTED: &str = "RFC 3339, Unix time, or `17/May/2015:10:05:03 +0000`, from 1970 on";

impl FieldReader {
    pub(crate) fn new(rules: &TimeRules, has_cost_field: bool, sources: SourceSet) -> Self {
        Self {
            time: TimeReader::new(rules.zone.clone()),
            fold: FoldOrder::new(rules.slack_us, None),
            derive_start: rules.derive_start,
            has_cost_field,
            start: None,
            end: None,
            duration_us: None,
            cost: None,
            ranks: [u8::MAX; RANKS],
            counts: FieldCounts { sources, ..FieldCounts::default() },
        }
    }

    /// Begins a line.
    pub(crate) fn begin(&mut self) {
        self.start = None;
        self.end = None;
        self.duration_us = None;
        self.cost = None;
        self.ranks = [u8::MAX; RANKS];
    }

    /// Takes the value of a column. Ignores absent values, such as `-`.
    ///
    /// # Errors
    /// The value of a time, status or length cannot be read.
    pub(crate) fn set(
        &mut self,
        Target { field, rank, source }: Target,
        text: &[u8],
        escape: Escape,
        out: &mut RecordWriter<'_>,
    ) -> Result<(), Malformed> {
        if present(text).is_none() {
            return Ok(());
        }
        if let Some(number) = source {
            self.counts.sources.add(number);
        }
        match field {
            Field::Text(which) => {
                if self.outranks(which as usize, rank) {
                    out.text(which, text, escape);
                }
            }
            Field::ClientAndPort => {
                if self.outranks(Text::Client as usize, rank) {
                    out.text(Text::Client, without_port(text), escape);
                }
            }
            Field::Request => {
                if self.outranks(Text::Target as usize, rank) {
                    self.ranks[Text::Method as usize] = rank;
                    set_request(text, escape, out);
                }
            }
            Field::Url => self.set_url(rank, text, escape, out),
            Field::Start => self.start = self.read_time(text, START, rank)?.or(self.start),
            Field::End => self.end = self.read_time(text, END, rank)?.or(self.end),
            Field::Duration(unit) => self.duration_us = duration_us(text, unit),
            Field::Status => {
                let status = column::number::<u16>(text).filter(|status| *status <= 999);
                let status = status.ok_or(Malformed::Field("status", "a number from 0 to 999"))?;
                if self.outranks(STATUS, rank) {
                    out.record.status = status;
                }
            }
            Field::Bytes => {
                let bytes = column::number(text).ok_or(Malformed::Field("bytes", "a whole number"))?;
                if self.outranks(BYTES, rank) {
                    out.record.bytes = bytes;
                }
            }
            Field::Cost => self.cost = cost(text),
            Field::Extra(name) => out.extra(usize::from(name), text, escape)?,
        }
        Ok(())
    }

    fn set_url(&mut self, rank: u8, text: &[u8], escape: Escape, out: &mut RecordWriter<'_>) {
        let (host, target) = split_url(text);
        if let Some(host) = host.filter(|_| self.outranks(Text::Host as usize, rank)) {
            out.text(Text::Host, host, escape);
        }
        if self.outranks(Text::Target as usize, rank) {
            out.text(Text::Target, target, escape);
        }
    }

    /// The time, if it counts.
    fn read_time(&mut self, text: &[u8], place: usize, rank: u8) -> Result<Option<(u64, Clock)>, Malformed> {
        let time_us = self.time.read(text).ok_or(Malformed::Field("time", TIME_EXPECTED))?;
        Ok(self.outranks(place, rank).then_some((time_us, self.time.clock)))
    }

    /// Decides which occurrence of a repeated time the line means.
    pub(crate) fn place(&mut self, out: &mut RecordWriter<'_>) {
        if self.time.clock != Clock::Absolute {
            let is_end = self.start.is_none() && !self.derive_start;
            let open_us = if is_end { 0 } else { self.duration_us.unwrap_or(0) };
            self.fold.place(self.time.clock, open_us, &mut out.record, &mut self.counts.clock_changes);
        }
    }

    /// Whether a value of this rank counts; if so, records the rank.
    fn outranks(&mut self, place: usize, rank: u8) -> bool {
        let known = &mut self.ranks[place];
        let counts = rank < *known;
        if counts {
            *known = rank;
        }
        counts
    }

    /// Ends a line: computes its time, duration and cost.
    ///
    /// # Errors
    /// The line has no time.
    pub(crate) fn finish(&mut self, out: &mut RecordWriter<'_>) -> Result<(), Malformed> {
        (out.record.time_us, self.time.clock) = match (self.start, self.end, self.duration_us) {
            (Some(start), ..) => start,
            (None, Some((end_us, clock)), Some(duration_us)) if self.derive_start => {
                self.counts.derived += 1;
                (end_us.saturating_sub(duration_us), clock)
            }
            (None, Some(end), _) => {
                self.counts.ended += 1;
                end
            }
            (None, None, _) => return Err(Malformed::Field("time", TIME_EXPECTED)),
        };
        self.duration_us = self.duration_us.or_else(|| {
            let ((start_us, _), (end_us, clock)) = self.start.zip(self.end)?;
            let again_us = if let Clock::Repeated { shift_us } = clock { end_us + shift_us } else { end_us };
            end_us.checked_sub(start_us).or_else(|| again_us.checked_sub(start_us))
        });
        if self.has_cost_field {
            out.record.cost = self.cost.unwrap_or_else(|| {
                self.counts.without_cost += 1;
                1
            });
        }
        Ok(())
    }
}

/// Parses a cost: a number, rounded up. `None` if it is negative or not a number.
fn cost(text: &[u8]) -> Option<u64> {
    let (whole, fraction) = match memchr::memchr(b'.', text) {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[][..]),
    };
    let whole: Option<u64> =
        if whole.is_empty() && !fraction.is_empty() { Some(0) } else { column::number(whole) };
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    whole?.checked_add(u64::from(fraction.iter().any(|digit| *digit != b'0')))
}

/// Splits a URL into its host, without a default port, and its path. A bare path has no host.
fn split_url(text: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let Some(scheme) =
        memchr::memmem::find(text, b"://").filter(|end| text[..*end].iter().all(u8::is_ascii_alphanumeric))
    else {
        return (None, text);
    };
    let rest = &text[scheme + 3..];
    let end = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let default: &[u8] =
        if text.starts_with(b"https") || text.starts_with(b"wss") { b":443" } else { b":80" };
    let host = host.strip_suffix(default).unwrap_or(host);
    (present(host), if path.is_empty() { b"/" } else { path })
}

/// A field by its `--field` name. `None` for a further attribute.
pub(crate) fn named(name: &str) -> Option<Target> {
    const FIELDS: &Columns = &[
        ("ip", CLIENT, MAPPED),
        ("user", USER, MAPPED),
        ("method", METHOD, MAPPED),
        ("path", Field::Url, MAPPED),
        ("request", Field::Request, MAPPED),
        ("host", HOST, MAPPED),
        ("referer", REFERER, MAPPED),
        ("user_agent", USER_AGENT, MAPPED),
        ("status", Field::Status, MAPPED),
        ("bytes", Field::Bytes, MAPPED),
        ("cost", Field::Cost, MAPPED),
        ("time", Field::Start, MAPPED),
        ("end_time", Field::End, MAPPED),
        ("duration", Field::Duration(Unit::Seconds), MAPPED),
        ("duration_ms", Field::Duration(Unit::Milliseconds), MAPPED),
        ("duration_us", Field::Duration(Unit::Microseconds), MAPPED),
        ("duration_ns", Field::Duration(Unit::Nanoseconds), MAPPED),
    ];
    target(FIELDS, name)
}

/// An address without its port.
fn without_port(text: &[u8]) -> &[u8] {
    let is_port = |port: &[u8]| port.iter().all(u8::is_ascii_digit);
    match memchr::memrchr(b':', text) {
        Some(colon) if is_port(&text[colon + 1..]) => &text[..colon],
        _ => text,
    }
}
