//! Conditions on one attribute: equal, one of, prefix, glob, network, present, absent, and their opposites.

use std::fmt;

use ipnet::IpNet;

use crate::error::Error;
use crate::fold::Fold;
use crate::network::{Network, canonical};
use crate::request::Value;

/// A condition on an attribute, for a policy to apply. Compares bytes, so case matters unless it is
/// [folded](crate::Policy::with_fold).
///
/// Only [`absent`](Self::absent) and [`not`](Self::not) hold for a request that lacks the attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    kind: MatchKind,
    /// The fold of its texts, also applied to values before they are compared.
    fold: Fold,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum MatchKind {
    OneOf(Vec<String>),
    Prefix(String),
    Glob(String),
    Networks(Vec<IpNet>),
    Present,
    Absent,
    Not(Box<Self>),
}

/// A term that an attribute can be looked up by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Term<'m> {
    /// Present.
    Present,
    /// This text, or the address that it spells.
    Text(&'m str),
    /// An address of this network.
    Network(IpNet),
    /// Text that begins with this.
    Prefix(Vec<u8>),
}

impl Match {
    /// Longest glob in bytes. Matching takes time proportional to the lengths of the glob and the
    /// value multiplied.
    pub const MAX_GLOB: usize = 256;

    /// Holds for exactly this value. If the attribute is an address, addresses are compared, not
    /// their texts.
    #[must_use]
    pub fn equals(value: impl Into<String>) -> Self {
        Self::of(MatchKind::OneOf(vec![value.into()]))
    }

    /// Holds for any of these values.
    #[must_use]
    pub fn one_of<V: Into<String>>(values: impl IntoIterator<Item = V>) -> Self {
        Self::of(MatchKind::OneOf(values.into_iter().map(Into::into).collect()))
    }

    /// Holds for values that begin with `prefix`. Never holds for an address; see
    /// [`networks`](Self::networks).
    #[must_use]
    pub fn prefix(prefix: impl Into<String>) -> Self {
        Self::of(MatchKind::Prefix(prefix.into()))
    }

    /// Holds for values that match the pattern. `*` matches any number of bytes, including `/`. `?`
    /// matches one byte. A backslash makes the next character literal. Never holds for an address.
    ///
    /// # Errors
    /// If the pattern is longer than [`MAX_GLOB`](Self::MAX_GLOB) bytes or ends in an unpaired
    /// backslash.
    ///
    /// ```
    /// # use slidegate::Match;
    /// let users = Match::glob("/v*/users/*")?;
    /// assert!(users.holds(Some("/v2/users/7".into())));
    /// assert!(!users.holds(Some("/v2/orders".into())));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn glob(pattern: impl Into<String>) -> Result<Self, Error> {
        let pattern = pattern.into();
        if pattern.len() > Self::MAX_GLOB {
            return Err(Error::policy(format!(
                "invalid pattern: {} bytes long, must be at most {}; use a shorter one",
                pattern.len(),
                Self::MAX_GLOB
            )));
        }
        let trailing = pattern.bytes().rev().take_while(|b| *b == b'\\').count();
        if trailing % 2 == 1 {
            return Err(Error::policy(format!(
                "invalid pattern `{pattern}`: ends in an unpaired backslash; write `\\\\` for a backslash"
            )));
        }
        Ok(Self::of(MatchKind::Glob(pattern)))
    }

    /// Holds for addresses in any of these networks: `10.0.0.0/8`, `2001:db8::/32` or a single
    /// address. Never holds for text, even if it looks like an address.
    ///
    /// # Errors
    /// If an entry is neither a network nor an address.
    pub fn networks<N: AsRef<str>>(networks: impl IntoIterator<Item = N>) -> Result<Self, Error> {
        let read = |text: N| text.as_ref().parse().map(|Network(network)| network);
        let networks = networks.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self::of(MatchKind::Networks(networks)))
    }

    /// Holds for any value, including an empty one.
    #[must_use]
    pub fn present() -> Self {
        Self::of(MatchKind::Present)
    }

    /// Holds for requests that lack the attribute.
    #[must_use]
    pub fn absent() -> Self {
        Self::of(MatchKind::Absent)
    }

    /// Holds where `condition` does not. So it also holds for requests that lack the attribute,
    /// unless `condition` holds for these.
    ///
    /// ```
    /// # use slidegate::Match;
    /// let all_but_health = Match::not(Match::one_of(["/healthz", "/readyz"]));
    /// assert!(all_but_health.holds(Some("/login".into())) && all_but_health.holds(None));
    /// assert!(!all_but_health.holds(Some("/healthz".into())));
    /// ```
    #[must_use]
    #[allow(clippy::should_implement_trait)] // it takes no `self`
    pub fn not(condition: Self) -> Self {
        let kind = match condition.kind {
            MatchKind::Present => MatchKind::Absent,
            MatchKind::Absent => MatchKind::Present,
            MatchKind::Not(kind) => *kind,
            kind => MatchKind::Not(Box::new(kind)),
        };
        Self { kind, ..condition }
    }

    fn of(kind: MatchKind) -> Self {
        Self { kind, fold: Fold::NONE }
    }

    /// The condition on folded values.
    pub(super) fn folded(self, fold: Fold) -> Self {
        Self { kind: self.kind.folded(fold), fold: self.fold.and(fold) }
    }

    pub(super) fn fold(&self) -> Fold {
        self.fold
    }

    /// The terms of which a folded value must match at least one. `None` if the condition holds
    /// without a value.
    pub(super) fn terms(&self) -> Option<Vec<Term<'_>>> {
        // With folded slashes, `/api` is in the folder `/api/`.
        let beginning = |mut bytes: Vec<u8>| {
            if self.fold.folds_slash() && bytes.last() == Some(&b'/') {
                bytes.pop();
            }
            vec![Term::Prefix(bytes)]
        };
        Some(match &self.kind {
            MatchKind::OneOf(values) => values.iter().map(|value| Term::Text(value)).collect(),
            MatchKind::Prefix(prefix) => beginning(prefix.as_bytes().to_vec()),
            MatchKind::Glob(pattern) => beginning(literal_start(pattern.as_bytes())),
            MatchKind::Networks(networks) => networks.iter().map(|net| Term::Network(net.trunc())).collect(),
            MatchKind::Present => vec![Term::Present],
            MatchKind::Absent | MatchKind::Not(_) => return None,
        })
    }

    /// Whether the condition holds for this value; `None` if the request lacks the attribute.
    #[must_use]
    pub fn holds(&self, value: Option<Value<'_>>) -> bool {
        match value {
            Some(value) if self.fold != Fold::NONE => {
                self.kind.holds(Some(self.fold.of(value).value()), self.fold)
            }
            value => self.kind.holds(value, Fold::NONE),
        }
    }
}

impl MatchKind {
    /// Whether it holds for this value, already folded by `fold`.
    fn holds(&self, value: Option<Value<'_>>, fold: Fold) -> bool {
        if let Self::Not(kind) = self {
            return !kind.holds(value, fold);
        }
        let Some(value) = value else { return *self == Self::Absent };
        // Folding takes the slash from the folder itself.
        let folder = |bytes: &[u8]| fold.folds_slash().then(|| [bytes, b"/"].concat());
        match (self, value) {
            (Self::Absent | Self::Not(_), _) => false,
            (Self::Present, _) => true,
            (Self::OneOf(values), Value::Bytes(bytes)) => values.iter().any(|v| v.as_bytes() == bytes),
            (Self::OneOf(values), Value::Address(ip)) => {
                let ip = canonical(ip);
                values.iter().any(|v| v.parse().is_ok_and(|v| canonical(v) == ip))
            }
            (Self::Prefix(prefix), Value::Bytes(bytes)) => {
                bytes.starts_with(prefix.as_bytes())
                    || folder(bytes).is_some_and(|folder| folder.starts_with(prefix.as_bytes()))
            }
            (Self::Glob(pattern), Value::Bytes(bytes)) => {
                glob_matches(pattern.as_bytes(), bytes)
                    || folder(bytes).is_some_and(|folder| glob_matches(pattern.as_bytes(), &folder))
            }
            (Self::Networks(networks), Value::Address(ip)) => {
                let ip = canonical(ip);
                networks.iter().any(|network| network.contains(&ip))
            }
            (Self::Prefix(_) | Self::Glob(_), Value::Address(_)) | (Self::Networks(_), Value::Bytes(_)) => {
                false
            }
        }
    }

    fn folded(self, fold: Fold) -> Self {
        match self {
            Self::OneOf(values) => Self::OneOf(values.iter().map(|value| fold.of_text(value)).collect()),
            Self::Prefix(prefix) => Self::Prefix(fold.of_pattern(&prefix)),
            Self::Glob(pattern) => Self::Glob(fold.of_pattern(&pattern)),
            Self::Not(kind) => Self::Not(Box::new(kind.folded(fold))),
            other @ (Self::Networks(_) | Self::Present | Self::Absent) => other,
        }
    }
}

/// The condition in words: "is `/login`", "begins with `/api/`", "is not `/healthz`", "is absent".
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.describe(f, true)
    }
}

impl MatchKind {
    fn describe(&self, f: &mut fmt::Formatter<'_>, holds: bool) -> fmt::Result {
        let list = |values: Vec<String>| values.join(" or ");
        let (is, begins, looks) =
            if holds { ("is", "begins", "looks") } else { ("is not", "does not begin", "does not look") };
        match self {
            Self::OneOf(values) => {
                write!(f, "{is} {}", list(values.iter().map(|v| format!("`{v}`")).collect()))
            }
            Self::Prefix(prefix) => write!(f, "{begins} with `{prefix}`"),
            Self::Glob(pattern) => write!(f, "{looks} like `{pattern}`"),
            Self::Networks(networks) => {
                write!(f, "{is} in {}", list(networks.iter().map(ToString::to_string).collect()))
            }
            Self::Present => write!(f, "{is} present"),
            Self::Absent => write!(f, "{is} absent"),
            Self::Not(kind) => kind.describe(f, !holds),
        }
    }
}

/// The literal start of a pattern.
fn literal_start(pattern: &[u8]) -> Vec<u8> {
    let mut literal = Vec::new();
    let mut bytes = pattern.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'*' | b'?' => break,
            b'\\' => literal.extend(bytes.next()),
            byte => literal.push(*byte),
        }
    }
    literal
}

/// Greedy matching that backtracks to the last star only, in time proportional to the product of
/// the lengths.
fn glob_matches(pattern: &[u8], value: &[u8]) -> bool {
    let (mut p, mut v) = (0, 0);
    // Position after the last star in the pattern, and end of what it matches in the value.
    let mut star: Option<(usize, usize)> = None;
    while v < value.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, v));
                p += 1;
                continue;
            }
            Some(b'?') => Some(1),
            Some(b'\\') => (pattern.get(p + 1) == Some(&value[v])).then_some(2),
            Some(byte) => (*byte == value[v]).then_some(1),
            None => None,
        };
        match (step, star) {
            (Some(step), _) => {
                p += step;
                v += 1;
            }
            (None, Some((after, taken))) => {
                star = Some((after, taken + 1));
                p = after;
                v = taken + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn holds(condition: &Match, value: &str) -> bool {
        condition.holds(Some(value.into()))
    }

    /// A policy on /login that also matches /login-help, or misses /login, limits the wrong
    /// clients.
    #[test]
    fn each_kind_holds_for_what_it_says() {
        assert!(holds(&Match::equals("/login"), "/login") && !holds(&Match::equals("/login"), "/login/"));
        let one = Match::one_of(["GET", "HEAD"]);
        assert!(holds(&one, "HEAD") && !holds(&one, "get"));
        let api = Match::prefix("/api/");
        assert!(holds(&api, "/api/") && holds(&api, "/api/x") && !holds(&api, "/api"));
        assert!(holds(&Match::present(), "") && !Match::present().holds(None));
        assert!(Match::absent().holds(None) && !holds(&Match::absent(), ""));
        assert!(!Match::prefix("").holds(None));
    }

    /// An IPv4 client behind an IPv6 socket is the same client.
    #[test]
    fn addresses_match_by_bits_not_by_spelling() {
        let inside = Match::networks(["10.0.0.0/8", "2001:db8::/32", "192.0.2.7"]).unwrap();
        let holds = |condition: &Match, ip: &str| condition.holds(Some(ip.parse::<IpAddr>().unwrap().into()));
        assert!(
            holds(&inside, "10.1.2.3") && holds(&inside, "::ffff:10.1.2.3") && holds(&inside, "2001:db8::1")
        );
        assert!(holds(&inside, "192.0.2.7") && !holds(&inside, "192.0.2.8") && !holds(&inside, "11.0.0.1"));
        assert!(holds(&Match::equals("2001:DB8:0::1"), "2001:db8::1"));
        assert!(!super::tests::holds(&inside, "10.1.2.3"), "text is not an address");
        assert!(!holds(&Match::prefix("10."), "10.1.2.3"));
        assert_eq!(
            Match::networks(["10.0.0/8"]).unwrap_err().to_string(),
            "invalid network `10.0.0/8`: must be a network or an address, for example `10.0.0.0/8` or `2001:db8::/32`"
        );
    }

    /// Reviewers of a configuration ask what a star matches.
    #[test]
    fn globs_follow_their_three_signs() {
        for (pattern, value, expected) in [
            ("*", "", true),
            ("/a*", "/a/b/c", true),
            ("/a?c", "/abc", true),
            ("/a?c", "/ac", false),
            ("*b*b", "abbb", true),
            ("*.php", "/x.php5", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("", "x", false),
            ("x**", "x", true),
        ] {
            assert_eq!(holds(&Match::glob(pattern).unwrap(), value), expected, "{pattern} {value}");
        }
        assert_eq!(
            Match::glob("a\\").unwrap_err().to_string(),
            "invalid pattern `a\\`: ends in an unpaired backslash; write `\\\\` for a backslash"
        );
        assert_eq!(
            Match::glob("a".repeat(300)).unwrap_err().to_string(),
            "invalid pattern: 300 bytes long, must be at most 256; use a shorter one"
        );
    }

    fn naive(pattern: &[u8], value: &[u8]) -> bool {
        match (pattern.split_first(), value.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => (0..=value.len()).any(|at| naive(rest, &value[at..])),
            (Some((b'?', rest)), Some((_, tail))) => naive(rest, tail),
            (Some((b'\\', rest)), Some((byte, tail))) => rest[0] == *byte && naive(&rest[1..], tail),
            (Some((want, rest)), Some((byte, tail))) => want == byte && naive(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn globs_agree_with_their_definition(pattern in r"([ab*?]|\\[ab*]){0,8}", value in "[ab*]{0,10}") {
            let expected = naive(pattern.as_bytes(), value.as_bytes());
            prop_assert_eq!(holds(&Match::glob(pattern).unwrap(), &value), expected);
        }
    }
}
