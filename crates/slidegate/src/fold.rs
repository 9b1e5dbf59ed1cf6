//! Folding: spellings of a value that count as one value.
//!
//! Lower case is that of Unicode, character by character, as systems that compare names do: the
//! Kelvin sign is a `k` for them, so it must not be another key here.

use std::fmt;

use crate::request::Value;
use crate::request_path::resolved;

/// Which spellings of an attribute's value are one value under a policy.
///
/// ```
/// use slidegate::{Fold, Gate, Match, Policy, PolicySet, Quota, Request};
///
/// let login = Policy::new("login", Quota::per_minute(1))?
///     .with_condition("path", Match::equals("/login"))
///     .with_scope(["email"])
///     .with_fold("path", Fold::CASE.and(Fold::SLASH))
///     .with_fold("email", Fold::CASE);
/// let gate = Gate::new(PolicySet::new([login])?);
/// let is_allowed =
///     |path, email| gate.check(&Request::new().with("path", path).with("email", email)).is_allowed();
/// assert!(is_allowed("/login", "zoe@example.org"));
/// assert!(!is_allowed("/Login;a=1/", "Zoe@Example.org"));
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fold {
    case: bool,
    slash: bool,
}

impl Fold {
    /// Each value is itself only.
    pub const NONE: Self = Self { case: false, slash: false };
    /// Upper and lower case are one, by the lower case of Unicode. Bytes that are not UTF-8 are kept.
    pub const CASE: Self = Self { case: true, slash: false };
    /// The value is a path, `/login/` is `/login`, and parameters as in `/login;a=1` are left out. What
    /// is left is resolved again: `/a/..;/login` is `/login` for servers that read parameters.
    pub const SLASH: Self = Self { case: false, slash: true };

    /// Both of two.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { case: self.case || other.case, slash: self.slash || other.slash }
    }

    /// The one of this name, as configurations write it: `case` or `slash`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "case" => Some(Self::CASE),
            "slash" => Some(Self::SLASH),
            _ => None,
        }
    }

    /// Whether a final slash does not count.
    pub fn folds_slash(self) -> bool {
        self.slash
    }

    /// The value that stands for all spellings of this one. Addresses have one already.
    pub fn of(self, value: Value<'_>) -> Folded<'_> {
        let Value::Bytes(bytes) = value else { return Folded::Same(value) };
        let path = (self.slash && !is_folded_path(bytes)).then(|| folded_path(bytes));
        let lower = self.case.then(|| lower_case(path.as_deref().unwrap_or(bytes))).flatten();
        lower.or(path).map_or(Folded::Same(value), Folded::Changed)
    }

    /// Folds a text.
    pub fn of_text(self, text: &str) -> String {
        match self.of(text.into()) {
            Folded::Changed(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Folded::Same(_) => text.to_owned(),
        }
    }

    /// Folds the start of a text, or a pattern: keeps its slashes.
    pub fn of_pattern(self, pattern: &str) -> String {
        Self { slash: false, ..self }.of_text(pattern)
    }
}

/// Written as in configurations: "case", "case and slash".
impl fmt::Display for Fold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.case, self.slash) {
            (true, true) => "case and slash",
            (true, false) => "case",
            (false, true) => "slash",
            (false, false) => "nothing",
        })
    }
}

/// A folded value.
#[derive(Debug, Clone)]
pub enum Folded<'v> {
    /// The value itself.
    Same(Value<'v>),
    /// Other bytes than those of the request.
    Changed(Vec<u8>),
}

impl PartialEq for Folded<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}

impl Folded<'_> {
    /// The folded value.
    pub fn value(&self) -> Value<'_> {
        match self {
            Self::Same(value) => *value,
            Self::Changed(bytes) => Value::Bytes(bytes),
        }
    }
}

/// The text in lower case, if it is another.
fn lower_case(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.is_ascii() {
        return bytes.iter().any(u8::is_ascii_uppercase).then(|| bytes.to_ascii_lowercase());
    }
    let mut lower = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        let chars = chunk.valid().chars().flat_map(char::to_lowercase);
        chars.for_each(|c| lower.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()));
        lower.extend_from_slice(chunk.invalid());
    }
    (lower != bytes).then_some(lower)
}

/// Whether folding leaves a path as it is. May be wrong about one that begins like `/a/.b`.
fn is_folded_path(path: &[u8]) -> bool {
    let is_plain = |pair: &[u8]| pair[0] != b'/' || !matches!(pair[1], b'/' | b'.');
    let ends_well = path.len() == 1 || path.last() != Some(&b'/');
    path.first() == Some(&b'/') && ends_well && !path.contains(&b';') && path.windows(2).all(is_plain)
}

fn folded_path(path: &[u8]) -> Vec<u8> {
    let without_parameters =
        |segment: &'_ [u8]| segment.iter().position(|byte| *byte == b';').unwrap_or(segment.len());
    let segments = path.split(|byte| *byte == b'/').map(|segment| &segment[..without_parameters(segment)]);
    let (path, _) = resolved(segments);
    if path.is_empty() { b"/".to_vec() } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(fold: Fold, value: &[u8]) -> Vec<u8> {
        let once = match fold.of(value.into()) {
            Folded::Changed(bytes) => bytes,
            Folded::Same(_) => value.to_vec(),
        };
        assert!(matches!(fold.of(once.as_slice().into()), Folded::Same(_) | Folded::Changed(_)));
        if let Folded::Changed(twice) = fold.of(once.as_slice().into()) {
            assert_eq!(twice, once, "folding twice is folding once");
        }
        once
    }

    /// Whoever finds another spelling that servers take for the same has a limit of their own.
    #[test]
    fn spellings_of_one_value_fold_to_it() {
        let both = Fold::CASE.and(Fold::SLASH);
        for (fold, value, one) in [
            (Fold::CASE, "Zoe@Example.ORG", "zoe@example.org"),
            (Fold::CASE, "ZOË", "zoë"),
            (Fold::CASE, "\u{212a}elvin", "kelvin"),
            (Fold::CASE, "/Login/", "/login/"),
            (Fold::SLASH, "/login", "/login"),
            (Fold::SLASH, "/login/", "/login"),
            (Fold::SLASH, "/login//", "/login"),
            (Fold::SLASH, "/login;a=1", "/login"),
            (Fold::SLASH, "/login;a=1/", "/login"),
            (Fold::SLASH, "/login/;a", "/login"),
            (Fold::SLASH, "/a;b/c;d", "/a/c"),
            (Fold::SLASH, "/a/..;/login", "/login"),
            (Fold::SLASH, "/a/.b", "/a/.b"),
            (Fold::SLASH, "/", "/"),
            (Fold::SLASH, "/;x", "/"),
            (Fold::SLASH, "", "/"),
            (Fold::SLASH, "login/", "/login"),
            (Fold::SLASH, "/LOGIN", "/LOGIN"),
            (both, "/LOGIN;X=1/", "/login"),
            (Fold::NONE, "/LOGIN/", "/LOGIN/"),
        ] {
            assert_eq!(folded(fold, value.as_bytes()), one.as_bytes(), "{fold} of {value}");
        }
        assert_eq!(folded(both, b"/A\xff/\xfeB/"), b"/a\xff/\xfeb");
    }
}
