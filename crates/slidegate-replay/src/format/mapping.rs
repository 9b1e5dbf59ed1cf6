//! What the user says about fields: `--field NAME=SOURCE` and `--cost-field SOURCE`.

use crate::block::Text;
use crate::format::field::{Field, MAPPED, SourceNumber, Target, named};
use crate::format::time::Unit;

/// Most mapped fields and further attributes of a format: as many as a line may have.
const MAX_ATTRIBUTES: usize = 64;

/// The mapping of a log's columns to fields and attributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mapping {
    /// Field or attribute, and the column, variable or path it is read from.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) cost_field: Option<String>,
    /// Names of further attributes, in the order of their numbers.
    pub(crate) attributes: Vec<String>,
    /// Which of `fields`, and whether the cost, have been found in the format.
    found: Vec<bool>,
    found_cost: bool,
}

impl Mapping {
    pub(crate) fn new(fields: Vec<(String, String)>, cost_field: Option<String>) -> Self {
        let found = vec![false; fields.len()];
        Self { fields, cost_field, attributes: Vec::new(), found, found_cost: false }
    }

    /// What a source means: what the user says, and else what the format does.
    pub(crate) fn targets(
        &mut self,
        source: &str,
        of_format: Option<Target>,
        attribute: Option<String>,
    ) -> Vec<Target> {
        let mut targets: Vec<Target> = of_format.into_iter().collect();
        let mapped: Vec<usize> = (0..self.fields.len()).filter(|at| self.fields[*at].1 == source).collect();
        for at in mapped {
            self.found[at] = true;
            let name = self.fields[at].0.clone();
            let source = SourceNumber::try_from(at).ok();
            targets.extend(self.target_of(&name).map(|target| Target { source, ..target }));
        }
        targets.extend(attribute.and_then(|name| self.attribute(&name)));
        if self.cost_field.as_deref().is_some_and(|cost| self.is_cost(cost, source, &targets)) {
            self.found_cost = true;
            let source = SourceNumber::try_from(self.fields.len()).ok();
            targets.push(Target { field: Field::Cost, rank: MAPPED, source });
        }
        targets
    }

    /// `--cost-field bytes` is the column of the response's length, whatever its name.
    fn is_cost(&self, cost: &str, source: &str, targets: &[Target]) -> bool {
        cost == source || (cost == "bytes" && targets.iter().any(|target| target.field == Field::Bytes))
    }

    /// The target of a field or attribute by its name. `None` if there are too many attributes.
    pub(crate) fn target_of(&mut self, name: &str) -> Option<Target> {
        match named(name) {
            Some(field) => Some(Target::of_format(field, MAPPED)),
            None => self.attribute(name),
        }
    }

    fn attribute(&mut self, name: &str) -> Option<Target> {
        let known = self.attributes.iter().position(|known| known == name);
        let number = match known {
            Some(number) => number,
            None if self.attributes.len() < MAX_ATTRIBUTES => {
                self.attributes.push(name.to_owned());
                self.attributes.len() - 1
            }
            None => return None,
        };
        Some(Target::of_format(Field::Extra(u16::try_from(number).ok()?), MAPPED))
    }

    /// Sources that the format does not have.
    pub(crate) fn missing(&self) -> Vec<&str> {
        let fields = self.fields.iter().zip(&self.found);
        let mut missing: Vec<&str> =
            fields.filter(|(_, found)| !**found).map(|((_, source), _)| source.as_str()).collect();
        missing.extend(self.cost_field.as_deref().filter(|_| !self.found_cost));
        missing
    }
}

/// What columns and keys of logs without a fixed format usually mean: names in lower case, and
/// ranks.
#[rustfmt::skip]
pub(crate) const USUAL: &[(&str, Field, u8)] = &[
    ("start_time", Field::Start, 1),
    ("time_start", Field::Start, 1),
    ("startutc", Field::Start, 1),
    ("event.start", Field::Start, 1),
    ("msec", Field::End, 1),
    ("time_msec", Field::End, 1),
    ("@timestamp", Field::End, 2),
    ("timestamp", Field::End, 2),
    ("time", Field::End, 3),
    ("ts", Field::End, 3),
    ("datetime", Field::End, 3),
    ("date_time", Field::End, 3),
    ("time_iso8601", Field::End, 3),
    ("time_local", Field::End, 4),
    ("date", Field::End, 4),
    ("request_time", Field::Duration(Unit::Seconds), 1),
    ("duration_ms", Field::Duration(Unit::Milliseconds), 1),
    ("latency_ms", Field::Duration(Unit::Milliseconds), 1),
    ("response_time_ms", Field::Duration(Unit::Milliseconds), 1),
    ("elapsed_ms", Field::Duration(Unit::Milliseconds), 1),
    ("duration_us", Field::Duration(Unit::Microseconds), 1),
    ("latency_us", Field::Duration(Unit::Microseconds), 1),
    ("duration_ns", Field::Duration(Unit::Nanoseconds), 1),
    ("latency_ns", Field::Duration(Unit::Nanoseconds), 1),
    ("event.duration", Field::Duration(Unit::Nanoseconds), 1),
    ("client_ip", Field::Text(Text::Client), 1),
    ("client.ip", Field::Text(Text::Client), 1),
    ("clientip", Field::Text(Text::Client), 1),
    ("ip", Field::Text(Text::Client), 2),
    ("remote_ip", Field::Text(Text::Client), 2),
    ("source.ip", Field::Text(Text::Client), 2),
    ("remote_addr", Field::Text(Text::Client), 3),
    ("client", Field::Text(Text::Client), 3),
    ("c-ip", Field::Text(Text::Client), 3),
    ("client_addr", Field::Text(Text::Client), 3),
    ("user", Field::Text(Text::User), 1),
    ("user_id", Field::Text(Text::User), 1),
    ("user.name", Field::Text(Text::User), 1),
    ("username", Field::Text(Text::User), 1),
    ("remote_user", Field::Text(Text::User), 2),
    ("method", Field::Text(Text::Method), 1),
    ("request_method", Field::Text(Text::Method), 1),
    ("verb", Field::Text(Text::Method), 1),
    ("http.request.method", Field::Text(Text::Method), 1),
    ("request_uri", Field::Url, 1),
    ("uri", Field::Url, 1),
    ("url.original", Field::Url, 1),
    ("path", Field::Url, 2),
    ("url.path", Field::Url, 2),
    ("request_path", Field::Url, 2),
    ("url", Field::Url, 3),
    ("request", Field::Request, 4),
    ("protocol", Field::Text(Text::Protocol), 1),
    ("server_protocol", Field::Text(Text::Protocol), 1),
    ("proto", Field::Text(Text::Protocol), 1),
    ("status", Field::Status, 1),
    ("status_code", Field::Status, 1),
    ("response_code", Field::Status, 1),
    ("http.response.status_code", Field::Status, 1),
    ("bytes", Field::Bytes, 1),
    ("bytes_sent", Field::Bytes, 1),
    ("body_bytes_sent", Field::Bytes, 1),
    ("size", Field::Bytes, 1),
    ("http.response.body.bytes", Field::Bytes, 1),
    ("host", Field::Text(Text::Host), 1),
    ("http_host", Field::Text(Text::Host), 1),
    ("authority", Field::Text(Text::Host), 1),
    ("url.domain", Field::Text(Text::Host), 1),
    ("server_name", Field::Text(Text::Host), 2),
    ("referer", Field::Text(Text::Referer), 1),
    ("referrer", Field::Text(Text::Referer), 1),
    ("http_referer", Field::Text(Text::Referer), 1),
    ("http.request.referrer", Field::Text(Text::Referer), 1),
    ("user_agent", Field::Text(Text::UserAgent), 1),
    ("useragent", Field::Text(Text::UserAgent), 1),
    ("user-agent", Field::Text(Text::UserAgent), 1),
    ("http_user_agent", Field::Text(Text::UserAgent), 1),
    ("user_agent.original", Field::Text(Text::UserAgent), 1),
    ("agent", Field::Text(Text::UserAgent), 1),
];

/// What a column of this name, in lower case, usually means.
pub(crate) fn usual(name: &str) -> Option<Target> {
    let (_, field, rank) = USUAL.iter().find(|(known, ..)| *known == name)?;
    Some(Target::of_format(*field, *rank))
}
