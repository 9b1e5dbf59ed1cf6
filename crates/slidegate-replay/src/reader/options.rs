//! How logs are read.

use std::time::Duration;

use jiff::tz::TimeZone;
use slidegate_http::client_addr::ClientAddr;

use crate::format::field::SourceSet;
use crate::format::name::LogFormat;

/// How late a line may come and still be sorted in. Apache logs a request when it ends under the
/// time it began, and few take two minutes.
const DEFAULT_SLACK: Duration = Duration::from_secs(120);

/// How logs are read.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The format of all logs; detected for each if `None`.
    pub format: Option<LogFormat>,
    /// Fields and attributes, and the column, variable or path of the log that each is read from.
    pub fields: Vec<(String, String)>,
    /// The column, variable or path with the cost of a request; `bytes` for the response's length.
    /// Fractions are rounded up. 1 for every request if `None`.
    pub cost_field: Option<String>,
    /// How the client is derived from the address that a log has and the forwarding headers in it.
    /// Of a list of addresses, the last is the peer and the others were forwarded.
    pub client: ClientAddr,
    /// The zone of times that are logged without one.
    pub zone: TimeZone,
    /// Whether the duration of a request is taken off its end, where the log has both.
    pub derive_start: bool,
    /// How late a line may come and still be sorted in. Zero keeps the order of each log.
    pub slack: Duration,
    /// Whether the first line that cannot be parsed, or comes too late, is an error.
    pub strict: bool,
    /// Threads in use, the calling one included. 1 reads everything on the calling one.
    pub threads: usize,
}

impl LogOptions {
    /// The options that name what no line has had, as they were given.
    pub(super) fn missing_fields(&self, sources: SourceSet) -> Vec<String> {
        let fields = self.fields.iter().map(|(name, source)| format!("--field {name}={source}"));
        let cost = self.cost_field.iter().map(|source| format!("--cost-field {source}"));
        let all = fields.chain(cost).enumerate();
        all.filter(|(at, _)| !sources.contains(*at)).map(|(_, text)| text).collect()
    }
}

impl Default for LogOptions {
    /// Detects the format, takes every request to cost 1, and uses all cores.
    fn default() -> Self {
        Self {
            format: None,
            fields: Vec::new(),
            cost_field: None,
            client: ClientAddr::default(),
            zone: TimeZone::UTC,
            derive_start: true,
            slack: DEFAULT_SLACK,
            strict: false,
            threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }
}
