//! Options for reading logs.

use std::time::Duration;

use jiff::tz::TimeZone;
use slidegate_http::client_addr::ClientAddr;

use crate::format::field::SourceSet;
use crate::format::name::LogFormat;

/// Maximum lateness of a line that can still be sorted. Apache logs a request when it ends under
/// the time it began, and few take two minutes.
const DEFAULT_SLACK: Duration = Duration::from_secs(120);

/// Options for reading logs.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The format of all logs; detected for each if `None`.
    pub format: Option<LogFormat>,
    /// Fields and attributes, each with the column, variable or path of the log that it is read
    /// from.
    pub fields: Vec<(String, String)>,
    /// The column, variable or path with a request's cost; `bytes` for the response's length.
    /// Fractions are rounded up. `None`: every request costs 1.
    pub cost_field: Option<String>,
    /// How to derive the client from the logged address and forwarding headers. Of a list of
    /// addresses, the last is the peer and the others were forwarded.
    pub client: ClientAddr,
    /// The time zone of times logged without one.
    pub zone: TimeZone,
    /// Whether to subtract a request's duration from its end, where the log has both.
    pub derive_start: bool,
    /// Maximum lateness of a line that can still be sorted. Zero keeps the order of each log.
    pub slack: Duration,
    /// Whether the first line that is malformed or too late is an error.
    pub strict: bool,
    /// Number of threads, including the calling one. 1 reads everything on the calling thread.
    pub threads: usize,
}

impl LogOptions {
    /// The options that name data no line has had, as given.
    pub(super) fn missing_fields(&self, sources: SourceSet) -> Vec<String> {
        let fields = self.fields.iter().map(|(name, source)| format!("--field {name}={source}"));
        let cost = self.cost_field.iter().map(|source| format!("--cost-field {source}"));
        let all = fields.chain(cost).enumerate();
        all.filter(|(at, _)| !sources.contains(*at)).map(|(_, text)| text).collect()
    }
}

impl Default for LogOptions {
    /// Detects the format, counts every request at cost 1, and uses all cores.
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
