//! A policy in one line: `100/1m per user using token-bucket named api`.

use lined_config::one_line;
use serde_json::Map;
use slidegate::{Policy, Quota};

use crate::added::Added;
use crate::values::safe_name;

/// Parses `QUOTA [per ATTRIBUTE[,ATTRIBUTE...]] [using ALGORITHM] [named NAME]`, the last two in
/// either order.
///
/// A quota may contain ` per ` itself: the scope begins after the last ` per ` that follows a
/// complete quota. The default name is made from the scope: `per-user-path`, or `everyone` without
/// a scope.
///
/// # Errors
/// A part of the text is invalid. The error is one line that begins with the text in backticks.
pub fn policy_from_text(text: &str) -> Result<Policy, String> {
    let place = format!("`{text}`");
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let mut keys = Map::new();
    while let [.., keyword, value] = words.as_slice() {
        let key = match *keyword {
            "using" => "algorithm",
            "named" => "name",
            _ => break,
        };
        if keys.insert(key.to_owned(), (*value).into()).is_some() {
            return Err(one_line(&format!("{place}: contains `{keyword}` twice; keep one")));
        }
        words.truncate(words.len() - 2);
    }
    let text = words.join(" ");
    let (quota, scope) = quota_and_scope(&text);
    keys.insert("quota".to_owned(), quota.into());
    keys.entry("name").or_insert_with(|| default_name(&scope).into());
    keys.insert("scope".to_owned(), scope.into());
    Added::read_at(place, &keys, &[]).map(|added| added.policy)
}

fn quota_and_scope(text: &str) -> (&str, Vec<&str>) {
    let lower = text.to_ascii_lowercase();
    let split = lower.rmatch_indices(" per ").map(|(at, per)| (&text[..at], &text[at + per.len()..]));
    let split = split.into_iter().find(|(quota, _)| quota.parse::<Quota>().is_ok());
    split.map_or((text, Vec::new()), |(quota, scope)| (quota, scope.split(',').map(str::trim).collect()))
}

fn default_name(scope: &[&str]) -> String {
    if scope.is_empty() { "everyone".to_owned() } else { safe_name(&format!("per-{}", scope.join("-"))) }
}

#[cfg(test)]
mod tests {
    use super::policy_from_text;

    /// Programs keep a limit as one text in their own settings, so errors repeat the text.
    #[test]
    fn a_text_is_a_policy_or_one_line_about_itself() {
        let policy = policy_from_text("100 per minute per user,path using token-bucket named api").unwrap();
        assert_eq!((policy.name(), policy.scope()), ("api", &["user".to_owned(), "path".to_owned()][..]));
        assert_eq!(policy.quota().algorithm().name(), "token-bucket");
        assert_eq!(policy_from_text("10/s").unwrap().name(), "everyone");
        assert_eq!(policy_from_text("10/s per user").unwrap().name(), "per-user");
        for (text, error) in [
            ("5\n/1m x", r"`5\n/1m x`: invalid quota `5 /1m x`: "),
            ("5/1m named a\nnamed b", r"`5/1m named a\nnamed b`: contains `named` twice; keep one"),
        ] {
            let message = policy_from_text(text).unwrap_err();
            assert!(message.starts_with(error) && !message.contains('\n'), "{message}");
        }
    }
}
