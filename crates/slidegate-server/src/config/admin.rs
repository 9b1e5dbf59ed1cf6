//! `admin:` who may look at the running service and change it.
//!
//! Tokens stand here as their SHA-256. A token is 256 random bits that nobody chose, so there is nothing to guess that a
//! slow hash would have to protect: the digest alone gives it to nobody who reads the file.

use slidegate::Secret;

use super::file::{Node, Shown};
use super::section::{Section, text, wrong};
use super::{ConfigErrors, Findings};

/// Where the environment names tokens.
pub(super) const TOKENS_VARIABLE: &str = "SLIDEGATE_ADMIN_TOKENS";
/// Most tokens: each request is compared with all of them.
const MAX_TOKENS: usize = 64;
/// Longest name of a token. It stands in the log beside what was done with it.
const MAX_NAME: usize = 64;
const NAME: &str = "give 1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `name: ops`";
const SHA256: &str = "give the 64 hexadecimal digits that `slidegate token new` prints";

/// What a token permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Right {
    /// To look.
    Read,
    /// To look and to change.
    Write,
}

impl Right {
    /// `read` or `write`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Read, Self::Write].into_iter().find(|right| right.name() == name)
    }
}

/// A token as it is known to the service, which never sees it but in requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Who it is given to, for the log.
    pub(crate) name: String,
    pub(crate) right: Right,
    pub(crate) sha256: Secret<[u8; 32]>,
}

/// Whether this can be a token's name.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(allowed)
}

/// Reads `admin:`.
pub(super) fn tokens(section: &Section<'_>, findings: &mut Findings) -> Vec<Token> {
    let Some(node) = section.get("tokens") else { return Vec::new() };
    let mut tokens: Vec<Token> = Vec::new();
    for (at, node) in node.one_or_many().iter().enumerate() {
        let place = format!("admin: token {}", at + 1);
        let example = "name: ops, scope: write, sha256: ...";
        let Some(mut section) = Section::of(node, place, example, findings) else { continue };
        section.expect_only(&["name", "scope", "sha256"], findings);
        section.expect("name", NAME, findings);
        section.expect("scope", "write `scope: read` or `scope: write`", findings);
        section.expect("sha256", SHA256, findings);
        let name = section.read("name", findings, |node| {
            let name = text("name", node, NAME)?;
            if is_name(name) { Ok(name.to_owned()) } else { Err(wrong("name", node, NAME)) }
        });
        let right = section.read("scope", findings, right);
        let sha256 = section.read("sha256", findings, |node| {
            node.scalar().and_then(digest).ok_or_else(|| format!("sha256 is no SHA-256; {SHA256}"))
        });
        if let (Some(name), Some(right), Some(sha256)) = (name, right, sha256) {
            if tokens.iter().any(|token| token.name == name) {
                section.find(
                    node.line,
                    format_args!("the name `{name}` stands twice; give each its own"),
                    findings,
                );
            }
            tokens.push(Token { name, right, sha256 });
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

fn right(node: &Node) -> Result<Right, String> {
    let right = node.scalar().and_then(Right::of);
    right.ok_or_else(|| {
        wrong("scope", node, "write `scope: read` to look, or `scope: write` to change as well")
    })
}

/// Reads `NAME:SCOPE:SHA256,...`, as the environment has it.
pub(super) fn from_variable(value: &str) -> Result<Vec<Token>, ConfigErrors> {
    let token = |entry: &str| {
        let mut parts = entry.trim().splitn(3, ':');
        let name = parts.next().filter(|name| is_name(name))?.to_owned();
        Some(Token { name, right: Right::of(parts.next()?)?, sha256: digest(parts.next()?)? })
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
                "token {} (`{}`) is not NAME:SCOPE:SHA256; give for example `ops:write:` and {}",
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

    /// A token that does not arrive locks its owner out; one with too much of a right lets somebody in.
    #[test]
    fn tokens_arrive_with_name_and_right() {
        let hash = "0a".repeat(32);
        let text = format!(
            "admin: {{tokens: [{{name: ops, scope: write, sha256: {hash}}}, {{name: g, scope: read, sha256: '{}'}}]}}{POLICY}",
            "12".repeat(32)
        );
        let tokens = Config::parse(&text, "slidegate.yaml").unwrap().admin;
        assert_eq!(
            tokens[0],
            Token { name: "ops".into(), right: Right::Write, sha256: Secret::new([10; 32]) }
        );
        assert_eq!((tokens[1].right, &tokens[1].sha256), (Right::Read, &Secret::new([0x12; 32])));
        let both = from_variable(&format!("ops:write:{hash}, g:read:{hash},")).unwrap();
        assert_eq!((both.len(), both[1].right), (2, Right::Read));
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
                "slidegate.yaml:1: admin: token 1: scope is `all`; write `scope: read` to look, or `scope: write` to change \
                 as well",
                "slidegate.yaml:1: admin: token 1: sha256 is no SHA-256; give the 64 hexadecimal digits that `slidegate token \
                 new` prints",
                "slidegate.yaml:1: admin: token 2: scope is missing; write `scope: read` or `scope: write`",
                "slidegate.yaml:1: admin: token 2: sha256 is missing; give the 64 hexadecimal digits that `slidegate token \
                 new` prints",
            ]
        );
        let secret = format!("sg_{}", "5".repeat(64));
        let error = from_variable(&secret).unwrap_err().to_string();
        assert_eq!(
            error,
            "SLIDEGATE_ADMIN_TOKENS: token 1 (`?`) is not NAME:SCOPE:SHA256; give for example `ops:write:` and the 64 \
             hexadecimal digits that `slidegate token new` prints"
        );
    }
}
