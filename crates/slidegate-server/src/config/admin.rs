//! `admin:` who may look at the running service, change it, and ask it for decisions.
//!
//! Tokens stand here as their SHA-256. A token is 256 random bits that nobody chose, so there is
//! nothing to guess that a slow hash would have to protect: the digest alone gives it to nobody who
//! reads the file.

use std::fmt;

use slidegate::Secret;

use super::file::{Node, Shown};
use super::section::{Section, text, wrong};
use super::{ConfigErrors, Findings};

/// Where the environment names tokens.
pub(super) const TOKENS_VARIABLE: &str = "SLIDEGATE_ADMIN_TOKENS";
/// Most tokens: each request is compared with all of them.
const MAX_TOKENS: usize = 64;
/// Most host names: each request without one of this machine is compared with all of them.
const MAX_HOSTS: usize = 64;
/// Longest host name, as DNS has it.
const MAX_HOST: usize = 253;
/// Longest name of a token. It stands in the log beside what was done with it.
const MAX_NAME: usize = 64;
const NAME: &str = "give 1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `name: ops`";
const SCOPE: &str = "write `read` to look, `decide` to ask for decisions, `write` for everything, or a list such as \
                     `[read, decide]`";
const DECISIONS: &str = "write `open`, or `token` if every decision needs one";
const HOSTS: &str = "give host names without a port, for example `hosts: [slidegate.internal]`";
/// Every key of `admin`.
pub(super) const KEYS: [&str; 3] = ["tokens", "decisions", "hosts"];
const SHA256: &str = "give the 64 hexadecimal digits that `slidegate token new` prints";

/// One thing that a token permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Right {
    /// To look.
    Read,
    /// To ask for decisions, and to reset, refund and penalize.
    Decide,
    /// Everything: to look, to decide and to change limits.
    Write,
}

impl Right {
    const ALL: [Self; 3] = [Self::Read, Self::Decide, Self::Write];

    /// `read`, `decide` or `write`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Decide => "decide",
            Self::Write => "write",
        }
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|right| right.name() == name)
    }
}

/// All that a token permits: at least one right, each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rights(u8);

impl Rights {
    /// The set of these rights.
    pub(crate) fn of(rights: impl IntoIterator<Item = Right>) -> Self {
        Self(rights.into_iter().fold(0, |set, right| set | 1 << right as u8))
    }

    /// Whether one of them permits what `wanted` does: `write` permits everything.
    pub(crate) fn include(self, wanted: Right) -> bool {
        self.has(wanted) || self.has(Right::Write)
    }

    fn has(self, right: Right) -> bool {
        self.0 & 1 << right as u8 != 0
    }

    fn names(self) -> Vec<&'static str> {
        Right::ALL.into_iter().filter(|right| self.has(*right)).map(Right::name).collect()
    }

    /// As the configuration has them: `write`, or `[read, decide]`.
    pub(crate) fn listed(self) -> String {
        match self.names().as_slice() {
            [one] => (*one).to_owned(),
            several => format!("[{}]", several.join(", ")),
        }
    }

    /// Reads them as the environment has them.
    fn from_text(text: &str) -> Option<Self> {
        text.split('+').map(Right::of).collect::<Option<Vec<_>>>().map(Self::of)
    }
}

/// As the environment and messages have them: `read+decide`.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join("+"))
    }
}

/// Who may do what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AccessRules {
    /// No two have one name.
    pub(crate) tokens: Vec<Token>,
    /// Whether every decision needs a token. There is at least one then.
    pub(crate) decisions_need_token: bool,
    /// Names besides those of this machine by which clients reach a listener on loopback.
    pub(crate) hosts: Vec<String>,
}

/// A token as it is known to the service, which never sees it but in requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Who it is given to, for the log.
    pub(crate) name: String,
    pub(crate) rights: Rights,
    pub(crate) sha256: Secret<[u8; 32]>,
}

/// Whether this can be a token's name.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(allowed)
}

/// Reads `admin:`. `outside` are the tokens of the environment; `has_open_port` says that the RESP
/// port asks for no password.
pub(super) fn rules(
    section: &Section<'_>,
    outside: &[Token],
    has_open_port: bool,
    findings: &mut Findings,
) -> AccessRules {
    let tokens = [tokens(section, findings).as_slice(), outside].concat();
    let decisions_need_token = section.read("decisions", findings, |node| match node.scalar() {
        Some("open") => Ok(false),
        Some("token") => Ok(true),
        _ => Err(wrong("decisions", node, DECISIONS)),
    });
    if decisions_need_token == Some(true) {
        let line = section.line_of("decisions");
        if tokens.is_empty() {
            let message = "decisions is `token` and there is no token; make one with `slidegate token new --scope decide`";
            section.find(line, message, findings);
        }
        if has_open_port {
            let message = "decisions is `token` and the RESP port asks for no password; give it one with `resp.password_file`";
            section.find(line, message, findings);
        }
    }
    let hosts = section.read("hosts", findings, hosts).unwrap_or_default();
    AccessRules { tokens, decisions_need_token: decisions_need_token.unwrap_or_default(), hosts }
}

fn hosts(node: &Node) -> Result<Vec<String>, String> {
    let names = node.one_or_many();
    if names.len() > MAX_HOSTS {
        return Err(format!("hosts has {} names; {MAX_HOSTS} is the most", names.len()));
    }
    let is_host = |name: &&str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        (1..=MAX_HOST).contains(&name.len()) && name.chars().all(allowed)
    };
    let read = |node: &Node| {
        node.scalar().filter(is_host).map(str::to_owned).ok_or_else(|| wrong("hosts", node, HOSTS))
    };
    names.iter().map(read).collect()
}

fn tokens(section: &Section<'_>, findings: &mut Findings) -> Vec<Token> {
    let Some(node) = section.get("tokens") else { return Vec::new() };
    let mut tokens: Vec<Token> = Vec::new();
    for (at, node) in node.one_or_many().iter().enumerate() {
        let place = format!("admin: token {}", at + 1);
        let example = "name: ops, scope: write, sha256: ...";
        let Some(mut section) = Section::of(node, place, example, findings) else { continue };
        section.expect_only(&["name", "scope", "sha256"], findings);
        section.expect("name", NAME, findings);
        section.expect("scope", SCOPE, findings);
        section.expect("sha256", SHA256, findings);
        let name = section.read("name", findings, |node| {
            let name = text("name", node, NAME)?;
            if is_name(name) { Ok(name.to_owned()) } else { Err(wrong("name", node, NAME)) }
        });
        let rights = section.read("scope", findings, rights);
        let sha256 = section.read("sha256", findings, |node| {
            node.scalar().and_then(digest).ok_or_else(|| format!("sha256 is no SHA-256; {SHA256}"))
        });
        if let (Some(name), Some(rights), Some(sha256)) = (name, rights, sha256) {
            if tokens.iter().any(|token| token.name == name) {
                section.find(
                    node.line,
                    format_args!("the name `{name}` stands twice; give each its own"),
                    findings,
                );
            }
            tokens.push(Token { name, rights, sha256 });
        }
    }
    if tokens.len() > MAX_TOKENS {
        section.find(
            node.line,
            format_args!("{} tokens are too many; {MAX_TOKENS} is the most", tokens.len()),
            findings,
        );
    }
    tokens
}

fn rights(node: &Node) -> Result<Rights, String> {
    let read = |node: &Node| node.scalar().and_then(Right::of).ok_or_else(|| wrong("scope", node, SCOPE));
    let rights = node.one_or_many().iter().map(read).collect::<Result<Vec<_>, _>>()?;
    if rights.is_empty() { Err(wrong("scope", node, SCOPE)) } else { Ok(Rights::of(rights)) }
}

/// Reads `NAME:SCOPE:SHA256,...`, as the environment has it.
pub(super) fn from_variable(value: &str) -> Result<Vec<Token>, ConfigErrors> {
    let token = |entry: &str| {
        let mut parts = entry.trim().splitn(3, ':');
        let name = parts.next().filter(|name| is_name(name))?.to_owned();
        Some(Token { name, rights: Rights::from_text(parts.next()?)?, sha256: digest(parts.next()?)? })
    };
    let entries: Vec<&str> = value.split(',').filter(|entry| !entry.trim().is_empty()).collect();
    if entries.len() > MAX_TOKENS {
        let message = format!("{} tokens are too many; {MAX_TOKENS} is the most", entries.len());
        return Err(ConfigErrors::one(TOKENS_VARIABLE, None, &message));
    }
    let read = entries.iter().enumerate().map(|(at, entry)| {
        token(entry).ok_or_else(|| {
            // Not shown in whole: who mistook it for the token itself would have it in the log.
            let name = entry.split(':').next().filter(|name| is_name(name) && name.len() < 32).unwrap_or("?");
            let message = format!(
                "token {} (`{}`) is not NAME:SCOPE:SHA256; give for example `ops:write:` or `web:read+decide:` and {}",
                at + 1,
                Shown(name),
                "the 64 hexadecimal digits that `slidegate token new` prints"
            );
            ConfigErrors::one(TOKENS_VARIABLE, None, &message)
        })
    });
    read.collect()
}

/// 64 hexadecimal digits.
fn digest(digits: &str) -> Option<Secret<[u8; 32]>> {
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(Secret::new(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::tests::errors;

    const POLICY: &str = "\npolicies: [{name: p, quota: 1/1s}]\n";

    /// A token that does not arrive locks its owner out; one with too much of a right lets somebody
    /// in.
    #[test]
    fn tokens_arrive_with_name_and_rights() {
        let hash = "0a".repeat(32);
        let text = format!(
            "admin: {{tokens: [{{name: ops, scope: write, sha256: {hash}}}, {{name: g, scope: [read, decide], sha256: '{}'}}]}}{POLICY}",
            "12".repeat(32)
        );
        let tokens = Config::parse(&text, "slidegate.yaml").unwrap().admin.tokens;
        let write = Rights::of([Right::Write]);
        assert_eq!(tokens[0], Token { name: "ops".into(), rights: write, sha256: Secret::new([10; 32]) });
        let several = Rights::of([Right::Decide, Right::Read]);
        assert_eq!((tokens[1].rights, &tokens[1].sha256), (several, &Secret::new([0x12; 32])));
        assert_eq!((several.to_string(), several.listed()), ("read+decide".into(), "[read, decide]".into()));
        let both = from_variable(&format!("ops:write:{hash}, g:read+decide:{hash},")).unwrap();
        assert_eq!((both.len(), both[1].rights), (2, several));
    }

    /// What was pasted in the wrong place may be the secret itself: it must not be said back.
    #[test]
    fn wrong_tokens_are_refused_and_their_digits_are_not_repeated() {
        let text =
            format!("admin: {{tokens: [{{name: a b, scope: all, sha256: sg_secret}}, {{name: x}}]}}{POLICY}");
        assert_eq!(
            errors(&text),
            [
                "slidegate.yaml:1: admin: token 1: name is `a b`; give 1 to 64 of the characters A-Z a-z 0-9 _ . -, for \
                 example `name: ops`",
                "slidegate.yaml:1: admin: token 1: scope is `all`; write `read` to look, `decide` to ask for decisions, \
                 `write` for everything, or a list such as `[read, decide]`",
                "slidegate.yaml:1: admin: token 1: sha256 is no SHA-256; give the 64 hexadecimal digits that `slidegate token \
                 new` prints",
                "slidegate.yaml:1: admin: token 2: scope is missing; write `read` to look, `decide` to ask for decisions, \
                 `write` for everything, or a list such as `[read, decide]`",
                "slidegate.yaml:1: admin: token 2: sha256 is missing; give the 64 hexadecimal digits that `slidegate token \
                 new` prints",
            ]
        );
        let secret = format!("sg_{}", "5".repeat(64));
        let error = from_variable(&secret).unwrap_err().to_string();
        assert_eq!(
            error,
            "SLIDEGATE_ADMIN_TOKENS: token 1 (`?`) is not NAME:SCOPE:SHA256; give for example `ops:write:` or \
             `web:read+decide:` and the 64 hexadecimal digits that `slidegate token new` prints"
        );
        for scope in ["", "all", "read+", "+read", "read,write"] {
            assert!(from_variable(&format!("a:{scope}:{}", "0a".repeat(32))).is_err(), "{scope}");
        }
    }

    /// A right too many lets somebody in; `write` without `read` would lock out every token that
    /// there is today.
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

    /// A service that demands tokens which nobody has, or leaves one port open beside them, is not
    /// what was meant.
    #[test]
    fn tokens_for_decisions_are_demanded_on_every_port_or_on_none() {
        let token = format!("tokens: {{name: a, scope: decide, sha256: {}}}", "0a".repeat(32));
        let rules = |admin: &str| {
            Config::parse(&format!("admin: {{{admin}}}{POLICY}"), "slidegate.yaml").unwrap().admin
        };
        assert!(rules(&format!("decisions: token, {token}")).decisions_need_token);
        assert!(!rules(&format!("decisions: open, {token}")).decisions_need_token);
        assert_eq!(rules("hosts: slidegate.internal").hosts, ["slidegate.internal"]);
        let at = "slidegate.yaml:1: admin:";
        for (text, said) in [
            (
                "admin: {decisions: token}".to_owned(),
                "decisions is `token` and there is no token; make one with `slidegate token new --scope decide`",
            ),
            (
                format!("resp: {{listen: '127.0.0.1:0'}}\nadmin: {{decisions: token, {token}}}"),
                "decisions is `token` and the RESP port asks for no password; give it one with `resp.password_file`",
            ),
            (
                "admin: {decisions: always}".to_owned(),
                "decisions is `always`; write `open`, or `token` if every decision needs one",
            ),
            (
                "admin: {hosts: ['a:1']}".to_owned(),
                "hosts is `a:1`; give host names without a port, for example `hosts: [slidegate.internal]`",
            ),
        ] {
            let found = errors(&format!("{text}{POLICY}"));
            let at = if text.starts_with("resp") { "slidegate.yaml:2: admin:" } else { at };
            assert_eq!(found, [format!("{at} {said}")], "{text}");
        }
    }
}
