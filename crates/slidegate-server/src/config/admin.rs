//! The section `admin`: tokens that may read, change and use the running service.
//!
//! The file holds only the SHA-256 of tokens, which does not reveal them. Tokens are 256 random bits,
//! so they need no slow hash.

use std::fmt;

use clap::ValueEnum;
use lined_config::{ConfigErrors, Form, List, Section, only_if};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::{Value as Json, json};
use slidegate::Secret;
use slidegate_config::values::{Parsed, Text, form_of, is_name};

use super::values::parsed;

/// The variable with more tokens.
pub(super) const TOKENS_VARIABLE: &str = "SLIDEGATE_ADMIN_TOKENS";
/// Maximum number of tokens. Each request is compared with all of them.
const MAX_TOKENS: usize = 64;

/// Who may read, change and use the running service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "tokens: [...]"))]
pub(crate) struct AccessRules {
    /// Up to 64. `SLIDEGATE_ADMIN_TOKENS`, `NAME:SCOPE:SHA256,...` with several scopes joined by `+`, adds more.
    /// Default: none: loopback only.
    #[schemars(with = "List<Token>", extend("default" = [], "maxItems" = MAX_TOKENS))]
    pub(crate) tokens: Vec<Token>,
    /// Whether every decision needs a token with the scope `decide` or `write`: on the RESP port the password, on the
    /// gRPC port a token or a client certificate.
    #[serde(rename = "decisions", deserialize_with = "is_token")]
    #[schemars(with = "Decisions", extend("default" = "open"))]
    pub(crate) decisions_need_token: bool,
    /// Names by which programs reach a loopback listener, besides `localhost` and loopback addresses. Others in
    /// `Host` are rejected there without a token.
    #[schemars(with = "List<String>", extend("default" = [], "format" = "host", "maxItems" = 64))]
    pub(crate) hosts: Vec<String>,
}

#[derive(PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Decisions {
    /// Only reset, refund and penalize need one, if tokens are configured or the port is not on loopback.
    Open,
    /// Each needs one.
    Token,
}

fn is_token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Decisions::deserialize(deserializer).map(|decisions| decisions == Decisions::Token)
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "name: ops, scope: write, sha256: ..."))]
pub(crate) struct Token {
    /// For the log.
    #[schemars(extend("format" = "name"))]
    pub(crate) name: String,
    /// What it permits.
    #[serde(rename = "scope")]
    #[schemars(extend("minItems" = 1))]
    pub(crate) rights: Rights,
    /// Its SHA-256.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "String", extend("format" = "sha256"))]
    pub(crate) sha256: TokenHash,
    /// The [only key](day-to-day.md#tokens) that it reads. Only with `scope: read`.
    pub(crate) key: Option<Parsed<OwnKey>>,
}

/// The only key that a token may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnKey {
    pub(crate) policy: String,
    /// As `slidegate key show` takes it.
    pub(crate) key: String,
}

impl Text for OwnKey {
    const FORM: Form = form_of::<Self>(
        "own-key",
        "a policy and a key of it, 1 to 1024 bytes, with a slash between them, for example `per-user/alice`",
    );

    fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').filter(|(policy, _)| is_name(policy));
        let parts = parts.filter(|(_, key)| (1..=1024).contains(&key.len()));
        parts
            .map(|(policy, key)| Self { policy: policy.to_owned(), key: key.to_owned() })
            .ok_or_else(String::new)
    }
}

impl fmt::Display for OwnKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.policy, self.key)
    }
}

/// The SHA-256 of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenHash(pub(crate) Secret<[u8; 32]>);

impl From<[u8; 32]> for TokenHash {
    fn from(sha256: [u8; 32]) -> Self {
        Self(Secret::new(sha256))
    }
}

/// A right of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Right {
    /// Inspect.
    Read,
    /// Decisions, reset, refund and penalize.
    Decide,
    /// Everything.
    Write,
}

impl Right {
    /// `read`, `decide` or `write`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Decide => "decide",
            Self::Write => "write",
        }
    }
}

/// The rights of a token, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(from = "List<Right>")]
pub(crate) struct Rights(u8);

impl From<List<Right>> for Rights {
    fn from(rights: List<Right>) -> Self {
        Self::of(rights.0)
    }
}

impl Rights {
    /// The set of these rights.
    pub(crate) fn of(rights: impl IntoIterator<Item = Right>) -> Self {
        Self(rights.into_iter().fold(0, |set, right| set | 1 << right as u8))
    }

    /// Whether they permit `wanted`. `write` permits everything.
    pub(crate) fn include(self, wanted: Right) -> bool {
        self.has(wanted) || self.has(Right::Write)
    }

    fn has(self, right: Right) -> bool {
        self.0 & 1 << right as u8 != 0
    }

    fn names(self) -> Vec<&'static str> {
        Right::value_variants().iter().filter(|right| self.has(**right)).map(|right| right.name()).collect()
    }

    /// As in the config: `write`, or `[read, decide]`.
    pub(crate) fn listed(self) -> String {
        match self.names().as_slice() {
            [one] => (*one).to_owned(),
            several => format!("[{}]", several.join(", ")),
        }
    }
}

/// As in the environment and in messages: `read+decide`.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join("+"))
    }
}

impl AccessRules {
    /// Reports mistakes. The last `outside` tokens come from the environment. `has_open_port`: the RESP
    /// port has no password.
    pub(super) fn check(&self, section: &Section<'_>, outside: usize, has_open_port: bool) {
        let mut names: Vec<_> = self.tokens.iter().map(|token| &token.name).collect();
        // A token of the environment may have the name of one of the file.
        names.truncate(names.len().saturating_sub(outside));
        while let Some(name) = names.pop() {
            if names.contains(&name) {
                section.invalid("tokens", format_args!("the name `{name}` is used twice; give each its own"));
            }
        }
        let is_wrong = |token: &&Token| token.key.is_some() && token.rights != Rights::of([Right::Read]);
        if let Some(token) = self.tokens.iter().find(is_wrong) {
            let why = format_args!(
                "`{}` has a key and the scope `{}`; a token of one key only reads, so write `scope: read`",
                token.name, token.rights
            );
            section.invalid("tokens", why);
        }
        if self.decisions_need_token {
            let invalid = "invalid decisions `token`:";
            if self.tokens.is_empty() && !section.has_rejected(&["tokens"]) {
                let why = "there is no token; make one with `slidegate token new --scope decide`";
                section.report("decisions", format_args!("{invalid} {why}"));
            }
            if has_open_port {
                let why = "the RESP port has no password; set `resp.password_file`";
                section.report("decisions", format_args!("{invalid} {why}"));
            }
        }
    }
}

/// A host name without a port, as long as DNS allows.
pub(super) const HOST: Form =
    Form::new("host", "a host name without a port, for example `slidegate.internal`", |text, _| {
        let is_host = |text: &str| text.split('.').all(|part| part.is_empty() || is_name(part));
        only_if((1..=253).contains(&text.len()) && is_host(text), text)
    })
    .pattern("^[A-Za-z0-9._-]{1,253}$");

impl Text for TokenHash {
    const FORM: Form =
        form_of::<Self>("sha256", "the 64 hexadecimal digits that `slidegate token new` prints")
            .pattern("^[0-9A-Fa-f]{64}$")
            .secret();

    fn parse(digits: &str) -> Result<Self, String> {
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(String::new());
        }
        let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap_or_default();
        Ok(std::array::from_fn(byte).into())
    }
}

/// Parses `NAME:SCOPE:SHA256,...` of the environment into tokens as in the file.
pub(super) fn from_variable(value: &str) -> Result<Vec<Json>, ConfigErrors> {
    let expected = TokenHash::FORM.expected;
    let token = |entry: &str| {
        let mut parts = entry.trim().splitn(3, ':');
        let name = parts.next().filter(|name| is_name(name))?;
        let scope = parts.next()?.split('+').map(|right| Right::from_str(right, false));
        let scope = scope.collect::<Result<Vec<_>, _>>().ok()?;
        let sha256 = parts.next().filter(|digits| TokenHash::parse(digits).is_ok())?;
        let scope: Vec<_> = scope.into_iter().map(Right::name).collect();
        Some(json!({ "name": name, "scope": scope, "sha256": sha256 }))
    };
    let entries: Vec<&str> = value.split(',').filter(|entry| !entry.trim().is_empty()).collect();
    if entries.len() > MAX_TOKENS {
        let message = format!("invalid tokens: must be at most {MAX_TOKENS}, not {}", entries.len());
        return Err(ConfigErrors::one(TOKENS_VARIABLE, message));
    }
    let read = entries.iter().enumerate().map(|(at, entry)| {
        token(entry).ok_or_else(|| {
            // The entry is not shown: it may be the token itself, by mistake.
            let message = format!(
                "invalid token {}: must be NAME:SCOPE:SHA256, for example `ops:write:` or `web:read+decide:` and \
                 {expected}",
                at + 1,
            );
            ConfigErrors::one(TOKENS_VARIABLE, message)
        })
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{parse, parse_with};

    /// A lost token locks its owner out; one with too many rights lets somebody in.
    #[test]
    fn tokens_arrive_with_name_and_rights() {
        let hash = "0a".repeat(32);
        let text = format!(
            "admin: {{tokens: [{{name: ops, scope: write, sha256: {hash}}}, {{name: g, scope: [read, decide], sha256: '{}'}}]}}",
            "12".repeat(32)
        );
        let tokens = parse(&text).admin.tokens;
        let write = Rights::of([Right::Write]);
        assert_eq!(
            tokens[0],
            Token { name: "ops".into(), rights: write, sha256: [10; 32].into(), key: None }
        );
        let several = Rights::of([Right::Decide, Right::Read]);
        assert_eq!((tokens[1].rights, &tokens[1].sha256), (several, &[0x12; 32].into()));
        assert_eq!((several.to_string(), several.listed()), ("read+decide".into(), "[read, decide]".into()));
        let both = from_variable(&format!("ops:write:{hash}, g:read+decide:{hash},")).unwrap();
        let outside = crate::config::Outside { tokens: both, ..Default::default() };
        let all = parse_with(&text, &outside).admin.tokens;
        assert_eq!(all.iter().map(|token| token.name.as_str()).collect::<Vec<_>>(), ["ops", "g", "ops", "g"]);
        assert_eq!((all[3].rights, &all[3].sha256), (several, &[10; 32].into()));
    }

    /// A wrong right lets somebody in or locks somebody out.
    #[test]
    fn write_permits_everything_and_the_others_only_themselves() {
        for (rights, read, decide, write) in [
            (&[Right::Read][..], true, false, false),
            (&[Right::Decide], false, true, false),
            (&[Right::Read, Right::Decide], true, true, false),
            (&[Right::Write], true, true, true),
        ] {
            let rights = Rights::of(rights.iter().copied());
            let included = [Right::Read, Right::Decide, Right::Write].map(|wanted| rights.include(wanted));
            assert_eq!(included, [read, decide, write], "{rights}");
        }
    }

    /// Requiring tokens that nobody has, or leaving one port open, is a mistake.
    #[test]
    fn tokens_for_decisions_are_demanded_on_every_port_or_on_none() {
        let token = format!("tokens: {{name: a, scope: decide, sha256: {}}}", "0a".repeat(32));
        let rules = |admin: &str| parse(&format!("admin: {{{admin}}}")).admin;
        assert!(rules(&format!("decisions: token, {token}")).decisions_need_token);
        assert!(!rules(&format!("decisions: open, {token}")).decisions_need_token);
        assert_eq!(rules("hosts: slidegate.internal").hosts, ["slidegate.internal"]);
    }
}
