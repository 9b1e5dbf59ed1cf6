//! CSV: columns named by a header row.

use std::borrow::Cow;

use crate::block::{Escape, RecordWriter};
use crate::format::LineKind;
use crate::format::field::{FieldReader, Target, target};
use crate::format::mapping::{FORWARDED_NAMES, Mapping, USUAL};
use crate::malformed::Malformed;

/// Maximum columns of a line.
const MAX_COLUMNS: usize = 512;

/// Parses lines.
#[derive(Debug)]
pub(crate) struct DelimitedParser {
    mapping: Mapping,
    /// The targets of each column. Empty before the header.
    columns: Vec<Vec<Target>>,
    /// Number of columns up to the last with a target.
    needed: usize,
    separator: u8,
}

impl DelimitedParser {
    pub(crate) fn new(mapping: Mapping) -> Self {
        Self { mapping, columns: Vec::new(), needed: 0, separator: b',' }
    }

    /// Names of further attributes from the headers so far.
    pub(crate) fn attributes(&self) -> &[String] {
        &self.mapping.attributes
    }

    /// Sources of mapped fields that no header has named.
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
        if self.columns.is_empty() {
            self.set_columns(line)?;
            return Ok(LineKind::Other);
        }
        fields.begin();
        // The header may come in the middle of a block, after its names were written.
        out.parsed.set_names(self.mapping.attributes.iter().map(String::as_str));
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
        if found < self.needed {
            return Err(Malformed::Columns { found, expected: self.needed });
        }
        fields.finish(out)?;
        Ok(LineKind::Request)
    }

    fn set_columns(&mut self, header: &[u8]) -> Result<(), Malformed> {
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
        self.needed = self.columns.iter().rposition(|targets| !targets.is_empty()).map_or(0, |last| last + 1);
        Ok(())
    }
}

/// The usual target of a column with this header.
pub(crate) fn usual_target(name: &str) -> Option<Target> {
    target(USUAL, &name.to_ascii_lowercase().replace(' ', "_"))
}

/// The separator of a header row: the most frequent of comma, semicolon, tab and bar.
pub(crate) fn separator(header: &[u8]) -> u8 {
    let count = |byte: u8| memchr::memchr_iter(byte, header).count();
    // The comma comes last, because `max_by_key` returns the last of equals.
    [b'|', b'\t', b';', b','].into_iter().max_by_key(|byte| count(*byte)).unwrap_or(b',')
}

/// A cell, and the text after its separator.
pub(crate) type CsvCell<'a> = (Cow<'a, [u8]>, Option<&'a [u8]>);

/// The first cell of a row, and the text after its separator. `None` if a quote is not closed.
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
            // Two quotes stand for one.
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
