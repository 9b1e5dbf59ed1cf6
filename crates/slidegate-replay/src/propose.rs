//! A first configuration from a log: limits that no ordinary client would have hit, each with its
//! reason.
//!
//! The log is read twice. First each key's busiest window is found; then the few keys that are
//! above the first proposal are decided by the exact log under several limits, of which the
//! smallest is taken that denies no more than asked for.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use slidegate::client_addr::{Ipv6Prefix, group};
use slidegate::{Request, Timestamp, Value, format_window};

use crate::attributes::with_request;
use crate::entry::Entry;
use crate::share::Share;
use crate::wording::count_of;
use peaks::{KeyPeaks, Percentiles};
use trial::Trial;

mod login;
mod peaks;
mod trial;

/// The limit is this many times what the busiest ordinary client used.
const MARGIN: u64 = 2;
/// The least limits that are proposed: an attempt to log in is seldom right at once, and a page
/// consists of many requests.
const MIN_LIMIT: u64 = 10;
const MIN_LOGIN_LIMIT: u64 = 5;
/// A policy for users is proposed if at least so many requests in a thousand have one.
const MIN_USERS_PER_MILLE: u64 = 10;
/// If one address has more than this share of the requests, in per cent, it is probably a proxy.
const PROXY_PERCENT: u64 = 50;
/// Login paths in the condition of a policy.
const MAX_LOGIN_PATHS: usize = 16;

/// What is to be proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProposalOptions {
    /// The window of the limits.
    pub window: Duration,
    /// The greatest share of the log's requests that all policies together may deny.
    pub deny_at_most: Share,
}

/// What the first reading of a log found.
#[derive(Debug)]
pub struct Survey {
    options: ProposalOptions,
    hasher: RandomState,
    now: Timestamp,
    requests: u64,
    first_us: Option<u64>,
    ips: KeyPeaks,
    users: KeyPeaks,
    logins: KeyPeaks,
    login_paths: HashMap<String, u64>,
    /// Requests with each attribute.
    attributes: Vec<(&'static str, u64)>,
}

/// The second reading of a log.
#[derive(Debug)]
pub struct Proposal {
    survey: Survey,
    /// Those for addresses, users and logins that are proposed.
    policies: Vec<ProposedPolicy>,
    now: Timestamp,
}

/// One proposed policy.
#[derive(Debug)]
struct ProposedPolicy {
    kind: Kind,
    percentiles: Percentiles,
    trial: Trial,
}

/// What a policy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Address,
    User,
    Login,
}

/// The attributes that are looked for, as policies name them.
const ATTRIBUTES: [&str; 6] = ["ip", "user", "method", "path", "user_agent", "host"];

impl Survey {
    /// An empty survey.
    #[must_use]
    pub fn new(options: ProposalOptions) -> Self {
        let peaks = || KeyPeaks::new(options.window);
        Self {
            options,
            hasher: RandomState::new(),
            now: Timestamp::EPOCH,
            requests: 0,
            first_us: None,
            ips: peaks(),
            users: peaks(),
            logins: peaks(),
            login_paths: HashMap::new(),
            attributes: ATTRIBUTES.map(|name| (name, 0)).to_vec(),
        }
    }

    /// Counts an entry.
    pub fn count(&mut self, entry: &Entry<'_>) {
        with_request(entry, |request| self.count_check(entry.time_us, request));
    }

    fn count_check(&mut self, time_us: u64, request: &Request<'_>) {
        self.now = self.now.max(Timestamp::from_micros(time_us));
        let now_us = self.now.as_micros();
        self.first_us.get_or_insert(now_us);
        self.requests += 1;
        for (name, count) in &mut self.attributes {
            *count += u64::from(request.value(name).is_some());
        }
        let cost = request.cost();
        let of = |kind| key(&self.hasher, request, kind);
        let keys = [of(Kind::Address), of(Kind::User), of(Kind::Login)];
        for (peaks, key) in [&mut self.ips, &mut self.users, &mut self.logins].into_iter().zip(keys) {
            if let Some(key) = key {
                peaks.count(key, now_us, cost);
            }
        }
        if keys[2].is_some()
            && let Some(path) = text(request, "path")
            && (self.login_paths.len() < login::MAX_PATHS || self.login_paths.contains_key(path))
        {
            *self.login_paths.entry(path.to_owned()).or_default() += 1;
        }
    }

    /// Begins the second reading of the same log.
    #[must_use]
    pub fn propose(self) -> Proposal {
        let has_users = self.users.requests() * 1000 >= self.requests * MIN_USERS_PER_MILLE;
        let kinds = [
            (Kind::Address, &self.ips, self.ips.requests() > 0),
            (Kind::User, &self.users, has_users && self.users.requests() > 0),
            (Kind::Login, &self.logins, self.logins.requests() > 0),
        ];
        let policies = kinds.into_iter().filter(|(.., is_proposed)| *is_proposed).map(|(kind, peaks, _)| {
            let percentiles = peaks.percentiles();
            // Of those who log in, more than one in a thousand may be guessing.
            let ordinary = if kind == Kind::Login { percentiles.p95 } else { percentiles.p999 };
            let least = if kind == Kind::Login { MIN_LOGIN_LIMIT } else { MIN_LIMIT };
            let first = human((ordinary * MARGIN).max(least));
            let trial = Trial::new(self.options.window, peaks, limits(first, percentiles.max));
            ProposedPolicy { kind, percentiles, trial }
        });
        Proposal { policies: policies.collect(), now: Timestamp::EPOCH, survey: self }
    }
}

impl Proposal {
    /// Decides an entry under the limits that come into question.
    pub fn try_out(&mut self, entry: &Entry<'_>) {
        self.now = self.now.max(Timestamp::from_micros(entry.time_us));
        with_request(entry, |request| {
            for policy in &mut self.policies {
                if let Some(key) = key(&self.survey.hasher, request, policy.kind) {
                    policy.trial.check(key, self.now, request.cost());
                }
            }
        });
    }

    /// Requests of the log.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.survey.requests
    }

    /// The configuration, as YAML with comments. `log` names the log.
    #[must_use]
    pub fn yaml(&self, log: &str) -> String {
        let survey = &self.survey;
        let (count, asked) = (self.policies.len() as u64, survey.options.deny_at_most);
        // Each has its part of what all of them together may deny.
        let is_accepted = |denied: u64| !asked.is_exceeded_by(denied.saturating_mul(count), survey.requests);
        let chosen: Vec<_> = self.policies.iter().map(|policy| policy.trial.choose(is_accepted)).collect();
        let denied: u64 = chosen.iter().map(|choice| choice.denied).sum();
        let mut out = String::new();
        let date = crate::each::rfc3339;
        let _ = writeln!(out, "# Proposed by `slidegate init` from {}:", one_line(log));
        let _ = writeln!(
            out,
            "# {} from {} to {}.",
            requests(survey.requests),
            date(survey.first_us.unwrap_or_default()),
            date(survey.now.as_micros())
        );
        let _ = writeln!(
            out,
            "# Every policy is in shadow mode: it decides and reports, and denies nothing. In this log all of\n\
             # them together would deny {} ({}); at most {} was asked for.\n\
             # Watch `slidegate_decisions_total{{verdict=\"shadow_deny\"}}` for some days, then remove `mode`.",
            requests(denied),
            percent(denied, survey.requests),
            survey.options.deny_at_most,
        );
        let found = survey.attributes.iter().filter(|(_, count)| *count > 0);
        let found = found.map(|(name, count)| format!("{name} ({})", percent(*count, survey.requests)));
        let _ = writeln!(out, "# Attributes found: {}.", found.collect::<Vec<_>>().join(", "));
        if survey.ips.busiest() * 100 > survey.requests * PROXY_PERCENT && survey.ips.keys() > 1 {
            out.push_str(
                "# One address sent more than half of the requests: if it is a proxy, let the log have the addresses of\n\
                 # its clients.\n",
            );
        }
        if [&survey.ips, &survey.users, &survey.logins].into_iter().any(KeyPeaks::is_incomplete) {
            out.push_str(
                "# There were more keys than are followed one by one; the figures are of the first ones.\n",
            );
        }
        out.push_str("policies:\n");
        for (policy, choice) in self.policies.iter().zip(chosen) {
            policy.write(&mut out, survey, choice);
        }
        if self.policies.is_empty() {
            out.push_str("  []\n");
        }
        out
    }
}

impl ProposedPolicy {
    fn write(&self, out: &mut String, survey: &Survey, choice: trial::Choice) {
        let (name, whose, scope) = match self.kind {
            Kind::Address => ("per-ip", "an address", "ip"),
            Kind::User => ("per-user", "a user", "user"),
            Kind::Login => ("login-per-ip", "an address, for attempts to log in", "ip"),
        };
        let Percentiles { keys, p50, p95, p99, p999, max } = self.percentiles;
        let window = format_window(survey.options.window);
        let (of, ordinary) = if self.kind == Kind::Login { ("95 %", p95) } else { ("99.9 %", p999) };
        let _ = writeln!(
            out,
            "  # The most within {window} of {whose}: half of the {keys} have at most {p50}, 95 % {p95}, 99 % {p99},\n  \
             # 99.9 % {p999}, the busiest {max}."
        );
        let least = if self.kind == Kind::Login { MIN_LOGIN_LIMIT } else { MIN_LIMIT };
        let first = human((ordinary * MARGIN).max(least));
        let why = if choice.limit > first {
            format!(
                "{first}, which is {MARGIN} times what {of} use, would have denied more than was asked for"
            )
        } else if ordinary * MARGIN < least {
            format!("More than {MARGIN} times what {of} use, and at least {least}")
        } else {
            format!("{MARGIN} times what {of} use, rounded up")
        };
        let _ = writeln!(out, "  # {why}.");
        let _ = writeln!(
            out,
            "  # In this log it would deny {} ({}), of {}.",
            requests(choice.denied),
            percent(choice.denied, survey.requests),
            count_of(choice.denied_keys as u64, "key", "keys")
        );
        let _ = writeln!(out, "  - name: {name}");
        if self.kind == Kind::Login {
            let mut paths: Vec<_> = survey.login_paths.iter().collect();
            paths.sort_by_key(|(path, count)| (std::cmp::Reverse(**count), path.as_str()));
            let paths: Vec<_> =
                paths.into_iter().take(MAX_LOGIN_PATHS).map(|(path, _)| quoted(path)).collect();
            let _ = writeln!(out, "    when:");
            let _ = writeln!(out, "      path: {{ one_of: [{}] }}", paths.join(", "));
            let _ = writeln!(out, "      method: [{}]", login::METHODS.join(", "));
        }
        let _ = writeln!(out, "    scope: [{scope}]");
        let _ = writeln!(out, "    limit: {}", choice.limit);
        let _ = writeln!(out, "    window: {window}");
        let _ = writeln!(out, "    mode: shadow");
    }
}

/// The key of a request for a policy of this kind, as a hash. `None`: the policy does not apply.
fn key(hasher: &RandomState, request: &Request<'_>, kind: Kind) -> Option<u64> {
    let value = match kind {
        Kind::User => request.value("user")?,
        Kind::Address => request.value("ip")?,
        Kind::Login => {
            let is_attempt = login::METHODS.contains(&text(request, "method")?);
            let is_login = is_attempt && login::is_login(text(request, "path")?);
            is_login.then(|| request.value("ip")).flatten()?
        }
    };
    Some(match value {
        Value::Address(ip) => hasher.hash_one(group(ip, Ipv6Prefix::default())),
        Value::Bytes(bytes) => hasher.hash_one(bytes),
        _ => return None,
    })
}

fn text<'r>(request: &Request<'r>, attribute: &str) -> Option<&'r str> {
    match request.value(attribute)? {
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// The next number that people choose: 1, 2, 3 or 5, and zeros.
fn human(least: u64) -> u64 {
    let mut unit = 1_u64;
    loop {
        for digit in [1, 2, 3, 5] {
            let Some(number) = unit.checked_mul(digit) else { return least };
            if number >= least {
                return number;
            }
        }
        let Some(next) = unit.checked_mul(10) else { return least };
        unit = next;
    }
}

/// The limits from this one to one that denies nobody.
fn limits(first: u64, busiest: u64) -> Vec<u64> {
    let mut limits = vec![first];
    while let Some(&last) = limits.last()
        && last < busiest
    {
        limits.push(human(last + 1));
    }
    limits
}

fn requests(count: u64) -> String {
    count_of(count, "request", "requests")
}

/// A share in per cent, with up to three decimals.
fn percent(part: u64, whole: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // three decimals are shown
    let share = part as f64 * 100.0 / whole.max(1) as f64;
    let text = format!("{share:.3}");
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A text of a log in quotes, as YAML reads it. Nothing in it ends the line.
fn quoted(text: &str) -> String {
    let json = serde_json::to_string(text).expect("a text is JSON");
    // Line separators that JSON allows and YAML does not, and characters that turn a line around.
    json.chars().fold(String::with_capacity(json.len()), |mut out, c| {
        match c {
            ' '..='~' => out.push(c),
            c if c.is_alphanumeric() => out.push(c),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(out, "\\u{unit:04x}")),
        }
        out
    })
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::reader::LogReader;

    /// A line of this client, this many seconds after ten.
    fn line(client: &str, user: &str, second: u64, request: &str) -> String {
        let (minute, second) = (second / 60, second % 60);
        format!(
            "{client} - {user} [20/Nov/2026:10:{minute:02}:{second:02} +0000] \"{request} HTTP/1.1\" 200 5\n"
        )
    }

    fn proposal(log: &str, deny_at_most: &str) -> String {
        let deny_at_most = deny_at_most.parse().unwrap();
        let options = ProposalOptions { window: Duration::from_secs(60), deny_at_most };
        let read = |each: &mut dyn FnMut(&Entry<'_>)| {
            let mut reader = LogReader::from_reader(std::io::Cursor::new(log.as_bytes().to_vec())).unwrap();
            // An empty log is an error of the reader, after its last entry.
            while let Ok(Some(entry)) = reader.next_entry() {
                each(&entry);
            }
        };
        let mut survey = Survey::new(options);
        read(&mut |entry| survey.count(entry));
        let mut proposal = survey.propose();
        read(&mut |entry| proposal.try_out(entry));
        proposal.yaml("access.log")
    }

    /// The limit of a policy in a proposal.
    fn limit(yaml: &str, policy: &str) -> u64 {
        let (_, rest) =
            yaml.split_once(&format!("- name: {policy}\n")).unwrap_or_else(|| panic!("{policy}: {yaml}"));
        let text = rest.lines().find_map(|line| line.trim().strip_prefix("limit: ")).unwrap();
        text.parse().unwrap()
    }

    /// A hundred ordinary clients with up to 20 requests a minute.
    fn ordinary() -> String {
        (0..100u64)
            .flat_map(|client| {
                (0..=client % 20)
                    .map(move |n| line(&format!("10.0.0.{client}"), "-", client + n * 2, "GET /"))
            })
            .collect()
    }

    /// Ordinary clients must have room: twice what the busiest of them needs, as a number that reads
    /// well.
    #[test]
    fn the_limit_is_twice_what_ordinary_clients_use_rounded_up() {
        let yaml = proposal(&ordinary(), "0.1%");
        assert_eq!(limit(&yaml, "per-ip"), 50);
        assert!(yaml.contains("# 2 times what 99.9 % use, rounded up."), "{yaml}");
        assert!(yaml.contains("deny 0 requests (0%)"), "{yaml}");
        assert!(!yaml.contains("per-user") && !yaml.contains("login"), "{yaml}");
        assert_eq!([1, 4, 5, 6, 10, 11, 40, 999, 1001].map(human), [1, 5, 5, 10, 10, 20, 50, 1000, 2000]);
        assert_eq!(human(u64::MAX), u64::MAX);
    }

    /// The share that was asked for is a promise, also where one client is far busier than the others.
    #[test]
    fn a_limit_that_denies_too_much_is_raised_until_it_does_not() {
        // Among 2000 clients one scans at 10 requests a second for a minute: it is beyond 99.9 %.
        let many: String = (0..2000u64)
            .map(|client| line(&format!("10.1.{}.{}", client / 250, client % 250), "-", client / 10, "GET /"))
            .collect();
        let scan: String = (0..600u64).map(|n| line("192.0.2.1", "-", n / 10, "GET /x")).collect();
        let log = many + &scan;
        let denied = |limit: u64| 600 - limit;
        // 2600 requests: 590 denied are 22.7 %, 570 are 21.9 %, and 100 are 3.8 %.
        for (share, expected) in [("30%", 10), ("22%", 30), ("4%", 500), ("3%", 1000)] {
            let yaml = proposal(&log, share);
            assert_eq!(limit(&yaml, "per-ip"), expected, "{share}: {yaml}");
            if expected < 600 {
                assert!(yaml.contains(&format!("it would deny {} requests", denied(expected))), "{yaml}");
            }
        }
    }

    /// Guessing passwords takes many attempts, and ordinary clients need few.
    #[test]
    fn paths_for_logging_in_get_a_stricter_limit() {
        let logins: String = (0..50u64)
            .flat_map(|client| {
                let ip = format!("10.0.0.{client}");
                [line(&ip, "-", client, "GET /login"), line(&ip, "-", client + 3, "POST /login")]
            })
            .collect();
        let yaml = proposal(&(ordinary() + &logins), "0.1%");
        assert_eq!(limit(&yaml, "login-per-ip"), 5);
        assert!(yaml.contains("path: { one_of: [\"/login\"] }\n      method: [POST, PUT]"), "{yaml}");
        for path in ["/api/v1/Sessions", "/users/sign-in", "/wp-login.php"] {
            assert!(login::is_login(path), "{path}");
        }
        for path in ["/blog/login-tips", "/authors", "/tokens-of-love", "/"] {
            assert!(!login::is_login(path), "{path}");
        }
    }

    /// Users behind one address are counted separately where the log has them.
    #[test]
    fn users_get_a_policy_if_the_log_has_them() {
        let users: String =
            (0..30u64).map(|n| line("10.9.9.9", &format!("user{}", n % 3), n * 4, "GET /")).collect();
        let yaml = proposal(&users, "0.1%");
        assert_eq!(limit(&yaml, "per-user"), 20);
        assert!(yaml.contains("ip (100%), user (100%), method (100%)"), "{yaml}");
    }

    /// The figures must not be too low, whatever the step.
    #[test]
    fn peaks_are_at_least_those_of_any_window_and_at_most_a_step_more() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..200 {
            let mut now = random(100_000_000);
            let times: Vec<u64> = (0..random(200) + 1)
                .map(|_| {
                    now += if random(20) == 0 { random(200_000_000) } else { random(2_000_000) };
                    now
                })
                .collect();
            let mut peaks = KeyPeaks::new(Duration::from_secs(60));
            times.iter().for_each(|time| peaks.count(1, *time, 1));
            let most = |window: u64| {
                let within =
                    |from: &u64| times.iter().filter(|at| (*from..from + window).contains(at)).count();
                times.iter().map(within).max().unwrap() as u64
            };
            let found = peaks.percentiles().max;
            assert!((most(60_000_000)..=most(65_000_000)).contains(&found), "{found} of {times:?}");
        }
    }

    /// A path is chosen by anyone who sends a request: it must not become configuration.
    #[test]
    fn texts_of_the_log_cannot_leave_their_quotes() {
        for (text, expected) in [
            ("/login", "\"/login\""),
            ("/a\"b\\c\nd", "\"/a\\\"b\\\\c\\nd\""),
            ("/\u{2028}\u{85}", "\"/\\u2028\\u0085\""),
            ("/\u{202e}x", "\"/\\u202ex\""),
            ("/\u{1f600}", "\"/\\ud83d\\ude00\""),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    /// An empty log has nothing to propose, and must not divide by it.
    #[test]
    fn a_log_without_requests_is_an_empty_list() {
        let options =
            ProposalOptions { window: Duration::from_secs(60), deny_at_most: Share::ONE_IN_A_THOUSAND };
        assert!(Survey::new(options).propose().yaml("access.log").ends_with("policies:\n  []\n"));
    }
}
