//! Columns that a line of the log itself names: CSV with a header row, and W3C extended with
//! `#Fields`, which CloudFront and IIS write.

use std::borrow::Cow;

use crate::block::{Escape, RecordWriter};
use crate::format::LineKind;
use crate::format::field::{
    CLIENT, Columns, Field, FieldReader, HOST, METHOD, PATH, PROTOCOL, REFERER, Target, USER, USER_AGENT,
    target,
};
use crate::format::mapping::{FORWARDED_NAMES, Mapping, USUAL};
use crate::format::time::Unit;
use crate::malformed::Malformed;

/// Most columns of a line.
const MAX_COLUMNS: usize = 512;

/// CloudFront's columns, for a log whose header was cut off.
const CLOUDFRONT: &str = "date\ttime\tx-edge-location\tsc-bytes\tc-ip\tcs-method\tcs(Host)\tcs-uri-stem\tsc-status\tcs(Referer)\t\
     cs(User-Agent)\tcs-uri-query\tcs(Cookie)\tx-edge-result-type\tx-edge-request-id\tx-host-header\tcs-protocol\t\
     cs-bytes\ttime-taken\tx-forwarded-for\tssl-protocol\tssl-cipher\tx-edge-response-result-type\t\
     cs-protocol-version\tfle-status\tfle-encrypted-fields\tc-port\ttime-to-first-byte\tx-edge-detailed-result-type\t\
     sc-content-type\tsc-content-len\tsc-range-start\tsc-range-end";

/// Parses lines.
#[derive(Debug)]
pub(crate) struct DelimitedParser {
    kind: Kind,
    mapping: Mapping,
    /// What each column means. Empty before the header.
    columns: Vec<Vec<Target>>,
    /// Columns up to the last that means something.
    needed: usize,
    separator: u8,
    escape: Escape,
    /// The date of a `#Date` line, for logs without a column of dates.
    date: Vec<u8>,
    has_date: bool,
}

/// Which of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Csv,
    W3c,
    /// W3C, with known columns even before a `#Fields` line.
    CloudFront,
}

impl DelimitedParser {
    pub(crate) fn new(kind: Kind, mapping: Mapping) -> Self {
        let mut parser = Self {
            kind,
            mapping,
            columns: Vec::new(),
            needed: 0,
            separator: b'\t',
            escape: Escape::None,
            date: Vec::new(),
            has_date: false,
        };
        if kind == Kind::CloudFront {
            parser.set_w3c_columns(CLOUDFRONT);
        }
        parser
    }

    /// Names of further attributes, as far as headers have been read.
    pub(crate) fn attributes(&self) -> &[String] {
        &self.mapping.attributes
    }

    /// Sources of mapped fields that no header has had.
    pub(crate) fn missing(&self) -> Vec<&str> {
        if self.columns.is_empty() { Vec::new() } else { self.mapping.missing() }
    }

    /// Parses one line.
    pub(crate) fn parse(
        &mut self,
        line: &[u8],
        fields: &mut FieldReader,
        out: &mut RecordWriter<'_>,
    ) -> Result<LineKind, Malformed> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        if self.kind == Kind::Csv {
            return self.parse_csv(line, fields, out);
        }
        if let Some(directive) = line.strip_prefix(b"#") {
            if let Some(columns) = directive.strip_prefix(b"Fields:") {
                self.set_w3c_columns(&String::from_utf8_lossy(columns));
            } else if let Some(date) = directive.strip_prefix(b"Date:") {
                self.date =
                    date.trim_ascii_start().split(|byte| *byte == b' ').next().unwrap_or_default().to_vec();
            }
            return Ok(LineKind::Other);
        }
        self.begin(fields, out)?;
        if !self.has_date {
            fields.set(Target::of_format(Field::EndDate, 9), &self.date, Escape::None, out)?;
        }
        let mut cells = line.split(|byte| *byte == self.separator).take(MAX_COLUMNS);
        let mut found = 0;
        for targets in &self.columns[..self.needed] {
            let Some(cell) = cells.next() else { break };
            found += 1;
            for target in targets {
                fields.set(*target, cell, self.escape, out)?;
            }
        }
        self.end(found, fields, out)
    }

    fn parse_csv(
        &mut self,
        line: &[u8],
        fields: &mut FieldReader,
        out: &mut RecordWriter<'_>,
    ) -> Result<LineKind, Malformed> {
        if self.columns.is_empty() {
            self.set_csv_columns(line)?;
            return Ok(LineKind::Other);
        }
        self.begin(fields, out)?;
        let mut rest = Some(line);
        let mut found = 0;
        for targets in &self.columns[..self.needed] {
            let Some(text) = rest else { break };
            let (cell, after) = csv_cell(text, self.separator).ok_or(Malformed::Quote)?;
            rest = after;
            found += 1;
            for target in targets {
                fields.set(*target, &cell, Escape::None, out)?;
            }
        }
        self.end(found, fields, out)
    }

    fn begin(&mut self, fields: &mut FieldReader, out: &mut RecordWriter<'_>) -> Result<(), Malformed> {
        if self.columns.is_empty() {
            return Err(Malformed::NoHeader);
        }
        fields.begin();
        // Headers may come in the middle of a block, after its names were written.
        out.parsed.set_names(self.mapping.attributes.iter().map(String::as_str));
        Ok(())
    }

    fn end(
        &self,
        found: usize,
        fields: &mut FieldReader,
        out: &mut RecordWriter<'_>,
    ) -> Result<LineKind, Malformed> {
        if found < self.needed && self.kind == Kind::Csv {
            return Err(Malformed::Columns { found, expected: self.needed });
        }
        fields.finish(out)?;
        Ok(LineKind::Request)
    }

    fn set_w3c_columns(&mut self, header: &str) {
        let header = header.trim();
        self.separator = if header.contains('\t') { b'\t' } else { b' ' };
        let is_cloudfront = header.contains("x-edge-");
        self.escape = if is_cloudfront { Escape::Percent } else { Escape::Plus };
        let names: Vec<&str> = header.split_ascii_whitespace().take(MAX_COLUMNS).collect();
        // CloudFront separates names by spaces, and values by tabs.
        if is_cloudfront {
            self.separator = b'\t';
        }
        self.has_date = names.contains(&"date");
        let (mapping, unit) =
            (&mut self.mapping, if is_cloudfront { Unit::Seconds } else { Unit::Milliseconds });
        self.columns =
            names.into_iter().map(|name| mapping.targets(name, w3c_target(name, unit), None)).collect();
        self.set_needed();
    }

    fn set_csv_columns(&mut self, header: &[u8]) -> Result<(), Malformed> {
        self.separator = separator(header);
        let mut rest = Some(header);
        while let Some(text) = rest.filter(|_| self.columns.len() < MAX_COLUMNS) {
            let (cell, after) = csv_cell(text, self.separator).ok_or(Malformed::Quote)?;
            let name = String::from_utf8_lossy(&cell).trim().to_owned();
            let is_forwarded =
                FORWARDED_NAMES.contains(&name.to_ascii_lowercase().replace('-', "_").as_str());
            self.columns.push(if is_forwarded {
                self.mapping.forwarded(&name)
            } else {
                self.mapping.targets(&name, usual_target(&name), None)
            });
            rest = after;
        }
        self.set_needed();
        Ok(())
    }

    fn set_needed(&mut self) {
        self.needed = self.columns.iter().rposition(|targets| !targets.is_empty()).map_or(0, |last| last + 1);
    }
}

/// What a column with this name in its header usually means.
pub(crate) fn usual_target(name: &str) -> Option<Target> {
    target(USUAL, &name.to_ascii_lowercase().replace(' ', "_"))
}

/// What a column of the W3C format means.
fn w3c_target(name: &str, duration: Unit) -> Option<Target> {
    match name {
        "time-taken" => Some(Target::of_format(Field::Duration(duration), 1)),
        name => target(W3C, name),
    }
}

const W3C: &Columns = &[
    ("date", Field::EndDate, 1),
    ("time", Field::EndClock, 1),
    ("c-ip", CLIENT, 1),
    ("x-forwarded-for X-Forwarded-For cs(X-Forwarded-For)", CLIENT, 2),
    ("cs-username", USER, 1),
    ("cs-method", METHOD, 1),
    ("cs-uri-stem", PATH, 1),
    ("cs-uri", Field::Url, 2),
    ("x-host-header", HOST, 1),
    ("cs(Host)", HOST, 2),
    ("cs-host", HOST, 3),
    ("cs(Referer)", REFERER, 1),
    ("cs(User-Agent)", USER_AGENT, 1),
    ("cs-protocol-version cs-version", PROTOCOL, 1),
    ("sc-status", Field::Status, 1),
    ("sc-bytes", Field::Bytes, 1),
];

/// What separates the columns of a header row: the most frequent of comma, semicolon, tab and bar.
pub(crate) fn separator(header: &[u8]) -> u8 {
    let count = |byte: u8| memchr::memchr_iter(byte, header).count();
    // The first of equals, so the comma comes last for `max_by_key`.
    [b'|', b'\t', b';', b','].into_iter().max_by_key(|byte| count(*byte)).unwrap_or(b',')
}

/// A cell, and what follows its separator.
pub(crate) type CsvCell<'a> = (Cow<'a, [u8]>, Option<&'a [u8]>);

/// The first cell of a row, and what follows its separator. `None` if a quote does not end.
pub(crate) fn csv_cell(text: &[u8], separator: u8) -> Option<CsvCell<'_>> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = memchr::memchr(separator, text);
        let cell = &text[..end.unwrap_or(text.len())];
        return Some((Cow::Borrowed(cell), end.map(|end| &text[end + 1..])));
    };
    let mut cell = Cow::Borrowed(&quoted[..0]);
    let mut from = 0;
    loop {
        let quote = from + memchr::memchr(b'"', &quoted[from..])?;
        let piece = &quoted[from..quote];
        if cell.is_empty() {
            cell = Cow::Borrowed(piece);
        } else {
            cell.to_mut().extend_from_slice(piece);
        }
        match quoted.get(quote + 1) {
            // Two quotes are one.
            Some(b'"') => {
                cell.to_mut().push(b'"');
                from = quote + 2;
            }
            Some(byte) if *byte == separator => return Some((cell, Some(&quoted[quote + 2..]))),
            None => return Some((cell, None)),
            Some(_) => return None,
        }
    }
}
