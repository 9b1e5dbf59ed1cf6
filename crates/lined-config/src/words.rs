//! Names and lists within errors, and suggestions for misspelt keys.

use crate::text::Excerpt;
use crate::yaml::Node;

pub(crate) fn join(place: &str, rest: &str) -> String {
    if place.is_empty() || rest.is_empty() { format!("{place}{rest}") } else { format!("{place}: {rest}") }
}

/// A map in a list, by its name or its number: "policy `per-user`", "override 2".
#[must_use]
pub fn element(list: &str, node: &Node, position: usize) -> String {
    let one = match list.strip_suffix("ies") {
        Some(stem) => format!("{stem}y"),
        None => list.strip_suffix('s').unwrap_or(list).to_owned(),
    };
    match node.get("name").and_then(Node::scalar).filter(|name| !name.is_empty()) {
        Some(name) => format!("{one} `{}`", Excerpt(name)),
        None => format!("{one} {}", position + 1),
    }
}

/// The known key that was most likely meant: one or two letters away, more in long keys. Known keys
/// are in lower case.
#[must_use]
pub fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let key = plain(key);
    let distance = |known: &str| strsim::damerau_levenshtein(&key, known);
    let nearest = known.iter().copied().min_by_key(|known| distance(known));
    nearest.filter(|known| distance(known) <= 1 + known.len() / 5)
}

/// A word in lower case with underscores, for comparing spellings.
#[must_use]
pub fn plain(word: &str) -> String {
    word.to_lowercase().replace(['-', ' '], "_")
}

/// A sentence without its capital and full stop, for use within another one.
pub(crate) fn uncapitalized(sentence: &str) -> String {
    let mut chars = sentence.trim_end_matches('.').chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// "`a`, `b` or `c`"
pub(crate) fn any_of(names: &[&str]) -> String {
    one_of(&names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>())
}

/// "a, b or c"
pub(crate) fn one_of(names: &[String]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    /// A far-fetched suggestion is worse than the list of keys.
    #[test]
    fn a_key_is_taken_for_a_known_one_only_if_it_is_near() {
        let known = ["name", "when", "scope", "limit", "window", "algorithm", "overrides", "ipv6_prefix"];
        for (key, meant) in [
            ("windw", Some("window")),
            ("Window", Some("window")),
            ("scpoe", Some("scope")),
            ("overide", Some("overrides")),
            ("ipv6-prefix", Some("ipv6_prefix")),
            ("algoritm", Some("algorithm")),
            ("limits", Some("limit")),
            ("colour", None),
            ("x", None),
        ] {
            assert_eq!(nearest(key, &known), meant, "{key}");
        }
    }
}
