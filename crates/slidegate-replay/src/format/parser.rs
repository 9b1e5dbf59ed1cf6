//! A parser for lines of one format: one of five grammars with its table.

use slidegate_http::client_addr::ClientAddr;

use crate::block::{Parsed, RecordWriter};
use crate::client;
use crate::format::delimited::DelimitedParser;
use crate::format::field::FieldReader;
use crate::format::json::Tree;
use crate::format::template::Template;
use crate::format::{LineKind, clf, haproxy, json};
use crate::malformed::Malformed;

/// Parses lines of one format.
#[derive(Debug)]
pub(crate) struct LineParser {
    pub(crate) grammar: Grammar,
    pub(crate) fields: FieldReader,
    /// Whether a request's cost is its length, in a format without named columns.
    pub(crate) cost_is_bytes: bool,
    /// Names of further attributes.
    pub(crate) attributes: Vec<String>,
    /// The rule for deriving the client.
    pub(crate) client: ClientAddr,
}

#[derive(Debug)]
pub(crate) enum Grammar {
    Clf,
    Template(Template),
    Haproxy,
    Json(Tree),
    Csv(Box<DelimitedParser>),
}

impl LineParser {
    /// Parses one line, given without its line end. The record is not committed.
    pub(crate) fn parse(&mut self, line: &[u8], out: &mut RecordWriter<'_>) -> Result<LineKind, Malformed> {
        let fields = &mut self.fields;
        let kind = match &mut self.grammar {
            Grammar::Clf => clf::parse(line, &mut fields.time, out).map(|()| LineKind::Request),
            Grammar::Template(template) => template.parse(line, fields, out).map(|()| LineKind::Request),
            Grammar::Haproxy => haproxy::parse(line, fields, out).map(|()| LineKind::Request),
            Grammar::Json(tree) => json::parse(line, tree, fields, out),
            Grammar::Csv(delimited) => delimited.parse(line, fields, out),
        }?;
        if self.cost_is_bytes {
            out.record.cost = out.record.bytes;
        }
        if kind == LineKind::Request {
            fields.place(out);
            client::derive(&self.client, out);
        }
        Ok(kind)
    }

    /// Prepares a block.
    pub(crate) fn begin_block(&self, parsed: &mut Parsed) {
        let attributes = match &self.grammar {
            Grammar::Csv(delimited) => delimited.attributes(),
            _ => &self.attributes,
        };
        parsed.clear(attributes.iter().map(String::as_str));
    }

    /// Columns named by the user that the log's header does not have.
    pub(crate) fn missing_columns(&self) -> Vec<&str> {
        match &self.grammar {
            Grammar::Csv(delimited) => delimited.missing(),
            _ => Vec::new(),
        }
    }

    /// Whether the format alone does not say if a log has the start or the end of requests.
    pub(crate) fn is_time_ambiguous(&self) -> bool {
        matches!(self.grammar, Grammar::Clf)
    }
}
