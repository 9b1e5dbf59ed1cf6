//! The user's mappings of fields: `--field NAME=SOURCE` and `--cost-field SOURCE`.

use crate::format::field::{
    CLIENT, Columns, Field, HOST, MAPPED, METHOD, REFERER, SourceNumber, Target, USER, USER_AGENT, named,
};
use crate::format::time::Unit;

/// Maximum mapped fields and further attributes of a format: as many as a line may have.
const MAX_ATTRIBUTES: usize = 64;

/// The mapping of a log's columns to fields and attributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mapping {
    /// A field or attribute, and its source: a column, variable or path.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) cost_field: Option<String>,
    /// Names of further attributes, in the order of their numbers.
    pub(crate) attributes: Vec<String>,
    /// Whether the format has each of `fields`, and the cost.
    found: Vec<bool>,
    found_cost: bool,
}

impl Mapping {
    pub(crate) fn new(fields: Vec<(String, String)>, cost_field: Option<String>) -> Self {
        let found = vec![false; fields.len()];
        Self { fields, cost_field, attributes: Vec::new(), found, found_cost: false }
    }

    /// The targets of a source: the user's mapping, otherwise the format's.
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

    /// The targets of a column that usually has forwarded addresses, unless the user maps it.
    pub(crate) fn forwarded(&mut self, source: &str) -> Vec<Target> {
        let is_mapped = self.fields.iter().any(|(_, mapped)| mapped == source);
        self.targets(source, None, (!is_mapped).then(|| FORWARDED_ATTRIBUTE.to_owned()))
    }

    /// `--cost-field bytes` means the column of the response's length, whatever its name.
    fn is_cost(&self, cost: &str, source: &str, targets: &[Target]) -> bool {
        cost == source || (cost == "bytes" && targets.iter().any(|target| target.field == Field::Bytes))
    }

    /// The target of a named field or attribute. `None` if there are too many attributes.
    pub(crate) fn target_of(&mut self, name: &str) -> Option<Target> {
        named(name).or_else(|| self.attribute(name))
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

    /// Sources missing from the format.
    pub(crate) fn missing(&self) -> Vec<&str> {
        let fields = self.fields.iter().zip(&self.found);
        let mut missing: Vec<&str> =
            fields.filter(|(_, found)| !**found).map(|((_, source), _)| source.as_str()).collect();
        missing.extend(self.cost_field.as_deref().filter(|_| !self.found_cost));
        missing
    }
}

/// The attribute of columns and keys that usually have forwarded addresses.
pub(crate) const FORWARDED_ATTRIBUTE: &str = "header.x-forwarded-for";

/// Usual names of such columns, in lower case, with `_` for `-`.
pub(crate) const FORWARDED_NAMES: [&str; 4] =
    ["http_x_forwarded_for", "x_forwarded_for", "request_x_forwarded_for", "xff"];

/// Usual columns and keys of logs without a fixed format: names in lower case, with fields and
/// ranks.
pub(crate) const USUAL: &Columns = &[
    ("start_time time_start startutc event.start", Field::Start, 1),
    ("msec time_msec", Field::End, 1),
    ("@timestamp timestamp", Field::End, 2),
    ("time ts datetime date_time time_iso8601", Field::End, 3),
    ("time_local date", Field::End, 4),
    ("request_time", Field::Duration(Unit::Seconds), 1),
    ("duration_ms latency_ms response_time_ms elapsed_ms", Field::Duration(Unit::Milliseconds), 1),
    ("duration_us latency_us", Field::Duration(Unit::Microseconds), 1),
    ("duration_ns latency_ns event.duration", Field::Duration(Unit::Nanoseconds), 1),
    ("client_ip client.ip clientip", CLIENT, 1),
    ("ip remote_ip source.ip", CLIENT, 2),
    ("remote_addr client c-ip client_addr", CLIENT, 3),
    ("user user_id user.name username", USER, 1),
    ("remote_user", USER, 2),
    ("method request_method verb http.request.method", METHOD, 1),
    ("request_uri uri url.original", Field::Url, 1),
    ("path url.path request_path", Field::Url, 2),
    ("url", Field::Url, 3),
    ("request", Field::Request, 4),
    ("status status_code response_code http.response.status_code", Field::Status, 1),
    ("bytes bytes_sent body_bytes_sent size http.response.body.bytes", Field::Bytes, 1),
    ("host http_host authority url.domain", HOST, 1),
    ("server_name", HOST, 2),
    ("referer referrer http_referer http.request.referrer", REFERER, 1),
    ("user_agent useragent user-agent http_user_agent user_agent.original agent", USER_AGENT, 1),
];
