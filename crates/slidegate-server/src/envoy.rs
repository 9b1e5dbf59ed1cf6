//! Configuration of envoyproxy/ratelimit: its files as they are, and what they say about a descriptor.
//!
//! The gRPC door asks `Live::current` once for each request and keeps that `Arc` until it has its decisions, calls
//! `lookup` for each descriptor, `dropped` for all of them, and decides what is left through `Front::decide_all`:
//!
//! ```text
//! let envoy = live.current();                       // None: "no rate limit configuration loaded"
//! let lookups = descriptors.map(|d| envoy.lookup(domain, &entries, d.limit));
//! let dropped = envoy::dropped(&lookups);           // by `replaces`; these answer OK without a limit, uncounted
//! // Lookup::Limited(hit), not dropped:
//! let request = Request::new().with(envoy::SCOPE, hit.key.as_str()).under(hit.policy).cost(addend);
//! let request = match hit.quota { Some(quota) => request.quota(quota), None => request };  // a limit of the request's own
//! // A shadow rule's policy is a shadow policy: its denial shows in its own decision and denies nothing.
//! ```

/// The attribute that every policy made of a rule counts by. Its value is a hit's key.
pub(crate) const SCOPE: &str = "descriptor";

/// The units of a limit, with the numbers that protocol buffers give them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl Unit {
    pub(crate) fn number(self) -> i32;
    /// `None` for 0 (UNKNOWN) and numbers that are no unit.
    pub(crate) fn from_number(number: i32) -> Option<Self>;
    /// `MINUTE`
    pub(crate) fn name(self) -> &'static str;
    pub(crate) fn window(self) -> std::time::Duration;
}

/// A limit that a request brings along for one descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnLimit {
    pub(crate) requests_per_unit: u32,
    pub(crate) unit: Unit,
}

/// What the files say about one descriptor of a request.
pub(crate) enum Lookup<'e> {
    /// No limit: OK, no current_limit, remaining 0. `domain_found: false` counts as `<domain>.domain_not_found`.
    NoMatch { domain_found: bool },
    /// OK, no current_limit, remaining u32::MAX; nothing is decided.
    Unlimited { rule: &'e Rule, stat_key: Cow<'e, str> },
    Limited(RuleHit<'e>),
}

/// A limit to decide by.
pub(crate) struct RuleHit<'e> {
    /// What the file says besides the numbers. Of a limit that came with the request: all defaults.
    pub(crate) rule: &'e Rule,
    /// The policy's name, for `Request::under`. Bounded in number: good for a metric's label.
    pub(crate) policy: &'e str,
    /// The value of the attribute [`SCOPE`]: no two descriptors of any domain have one key.
    pub(crate) key: String,
    pub(crate) requests_per_unit: u32,
    pub(crate) unit: Unit,
    /// For `Request::quota`: only of a limit that came with the request.
    pub(crate) quota: Option<Quota>,
    /// The name of its statistics as the reference has it. `Owned` when values of the request are in it, so that their
    /// number has no bound.
    pub(crate) stat_key: Cow<'e, str>,
}

/// A node's `rate_limit` and what stands beside it.
pub(crate) struct Rule {
    /// Empty unless given.
    pub(crate) name: String,
    pub(crate) replaces: Vec<String>,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
    /// Without the `slidegate` part, which is ours.
    pub(crate) metadata: serde_json::Map<String, serde_json::Value>,
    /// `metadata.slidegate.excess: charge`: a refused hit is charged all the same (`Verb::Penalize` after a denial).
    pub(crate) charges_excess: bool,
}

/// Everything that the files of one directory say. Immutable; a reload makes a new one.
pub(crate) struct Envoy;

impl Envoy {
    pub(crate) fn lookup<'e>(&'e self, domain: &str, entries: &[(&str, &str)], own: Option<OwnLimit>) -> Lookup<'e>;
    /// At least one domain is configured.
    pub(crate) fn has_domains(&self) -> bool;
    /// The text of `/rlconfig`.
    pub(crate) fn dump(&self) -> String;
}

/// Which of a request's lookups a `replaces` of another names.
pub(crate) fn dropped(lookups: &[Lookup<'_>]) -> Vec<bool>;

/// The configuration in force; a clone for each door.
#[derive(Clone)]
pub(crate) struct Live;

impl Live {
    /// `None` while none was ever loaded.
    pub(crate) fn current(&self) -> Option<Arc<Envoy>>;
    /// How often loading went well and how often not, for `config_load_success` and `config_load_error`.
    pub(crate) fn loads(&self) -> Loads { /* { succeeded: u64, failed: u64 } */ }
}

/// `envoy::settings::Settings`: the reference's environment variables, see settings.rs when it is there:
/// `http: SocketAddr` (HOST:PORT), `grpc: Grpc::{Tcp(SocketAddr), Unix(PathBuf)}`, `debug: SocketAddr`, `shadow_mode: bool`,
/// `quota_mode: bool`, `near_limit_ratio: f32`, `headers: Option<HeaderNames { limit, remaining, reset: String }>`,
/// `dynamic_metadata: bool`, `healthy_with_one_config: bool`, `max_connection_age: Duration`, and what concerns loading.
pub(crate) struct Settings;
