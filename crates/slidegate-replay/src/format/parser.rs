//! A format that parses lines: one of five grammars, with its table.

use slidegate::client_addr::ClientAddr;

use crate::block::{Parsed, RecordWriter, Text};
use crate::client;
use crate::format::clf::ClfParser;
use crate::format::delimited::DelimitedParser;
use crate::format::field::{Field, FieldCounts, FieldReader, SourceSet, Target};
use crate::format::json::JsonParser;
use crate::format::template::Template;
use crate::format::time::Unit;
use crate::format::{LineKind, haproxy};
use crate::malformed::Malformed;

/// A format that parses lines.
#[derive(Debug)]
pub(crate) struct LineParser {
    pub(crate) grammar: Grammar,
    /// Names of further attributes.
    pub(crate) attributes: Vec<String>,
    /// How the client is derived; `None` where it is as it was decided.
    pub(crate) client: Option<ClientAddr>,
}

#[derive(Debug)]
pub(crate) enum Grammar {
    Clf(Box<ClfParser>),
    Template(Box<Template>, Box<FieldReader>),
    Haproxy { fields: Box<FieldReader>, cost_is_bytes: bool },
    Json(Box<JsonParser>),
    Delimited(Box<DelimitedParser>),
}

impl LineParser {
    /// Parses one line, given without its line end. The record is not committed.
    #[inline]
    pub(crate) fn parse(&mut self, line: &[u8], out: &mut RecordWriter<'_>) -> Result<LineKind, Malformed> {
        let kind = match &mut self.grammar {
            Grammar::Clf(clf) => clf.parse(line, out).map(|()| LineKind::Request)?,
            Grammar::Template(template, fields) => {
                template.parse(line, fields, out).map(|()| LineKind::Request)?
            }
            Grammar::Haproxy { fields, cost_is_bytes } => {
                haproxy::parse(line, fields, *cost_is_bytes, out).map(|()| LineKind::Request)?
            }
            Grammar::Json(json) => json.parse(line, out)?,
            Grammar::Delimited(delimited) => delimited.parse(line, out)?,
        };
        if let (LineKind::Request, Some(rule)) = (&kind, &self.client) {
            client::derive(rule, out);
        }
        Ok(kind)
    }

    /// Prepares for a block.
    pub(crate) fn begin_block(&self, parsed: &mut Parsed) {
        let attributes = match &self.grammar {
            Grammar::Delimited(delimited) => delimited.attributes(),
            _ => &self.attributes,
        };
        parsed.clear(attributes.iter().map(String::as_str));
    }

    /// What had to be decided about times and costs, since the first line.
    pub(crate) fn counts(&self) -> FieldCounts {
        match &self.grammar {
            // Neither has columns with names: all that the user can name is the length of the response.
            Grammar::Clf(_) => FieldCounts { sources: SourceSet::ALL, ..FieldCounts::default() },
            Grammar::Haproxy { fields, .. } => FieldCounts { sources: SourceSet::ALL, ..fields.counts },
            Grammar::Template(_, fields) => fields.counts,
            Grammar::Json(json) => json.fields.counts,
            Grammar::Delimited(delimited) => delimited.fields.counts,
        }
    }

    /// Columns that the user named and that the header of the log does not have.
    pub(crate) fn missing_columns(&self) -> Vec<&str> {
        match &self.grammar {
            Grammar::Delimited(delimited) => delimited.missing(),
            _ => Vec::new(),
        }
    }

    /// Whether the log has the time of each request as it began, or as it ended, as far as the
    /// format alone says so.
    pub(crate) fn is_time_ambiguous(&self) -> bool {
        matches!(self.grammar, Grammar::Clf(_))
    }
}

/// The columns of AWS application load balancers. Only ever added to at the end.
pub(crate) const ALB: &str = "$type $time $elb $client $target $request_processing_time $target_processing_time \
     $response_processing_time $elb_status_code $target_status_code $received_bytes $sent_bytes \"$request\" \
     \"$user_agent\" $ssl_cipher $ssl_protocol $target_group_arn \"$trace_id\" \"$domain_name\" \"$chosen_cert_arn\" \
     $matched_rule_priority $request_creation_time \"$actions_executed\" \"$redirect_url\" \"$error_reason\" \
     \"$target_list\" \"$target_status_code_list\" \"$classification\" \"$classification_reason\" $conn_trace_id";
/// Columns that the oldest of its logs have.
pub(crate) const ALB_REQUIRED: usize = 14;

/// What a column of such a log means.
pub(crate) fn alb_target(column: &str) -> Option<Target> {
    let (field, rank) = match column {
        "time" => (Field::End, 1),
        "request_creation_time" => (Field::Start, 1),
        "request_processing_time" | "target_processing_time" | "response_processing_time" => {
            (Field::DurationPart(Unit::Seconds), 1)
        }
        "client" => (Field::ClientAndPort, 1),
        "elb_status_code" => (Field::Status, 1),
        "sent_bytes" => (Field::Bytes, 1),
        "request" => (Field::UrlRequest, 1),
        "user_agent" => (Field::Text(Text::UserAgent), 1),
        "domain_name" => (Field::Text(Text::Host), 2),
        _ => return None,
    };
    Some(Target::of_format(field, rank))
}
