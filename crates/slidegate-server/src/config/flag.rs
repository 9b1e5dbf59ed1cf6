//! A policy in one line, for `--policy`: `100/1m per user using token-bucket named api`.

use super::yaml::one_line;
use serde_json::Map;
use slidegate::{Policy, PolicySet, Quota};

use super::added::Added;
use super::errors::ConfigErrors;
use super::values::safe_name;

/// Parses `QUOTA [per ATTRIBUTE[,ATTRIBUTE...]] [using ALGORITHM] [named NAME]`, the last two in
/// either order.
///
/// A quota may contain ` per ` itself: the scope begins after the last ` per ` that follows a
/// complete quota. The default name is made from the scope: `per-user-path`, or `everyone` without
/// a scope.
///
/// # Errors
/// A part of the text is invalid. The error is one line with the text.
pub(crate) fn policy_from_text(text: &str) -> Result<Policy, String> {
    let place = format!("--policy `{text}`");
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let mut keys = Map::new();
    while let [.., keyword, value] = words.as_slice() {
        let key = match *keyword {
            "using" => "algorithm",
            "named" => "name",
            _ => break,
        };
        if keys.insert(key.to_owned(), (*value).into()).is_some() {
            return Err(format!("{place}: contains `{keyword}` twice; keep one"));
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

/// Adds the policies of these texts.
pub(super) fn add(policies: &PolicySet, texts: &[String]) -> Result<PolicySet, ConfigErrors> {
    let mut all: Vec<Policy> = policies.iter().cloned().collect();
    let mut errors = Vec::new();
    for text in texts {
        match policy_from_text(text) {
            Ok(policy) if all.iter().any(|other| other.name() == policy.name()) => errors.push(format!(
                "--policy `{text}`: the name `{0}` is used by another policy; choose another, for example `{text} named {0}-2`",
                policy.name()
            )),
            Ok(policy) => all.push(policy),
            Err(message) => errors.push(message),
        }
    }
    if !errors.is_empty() {
        return Err(ConfigErrors(errors.iter().map(|error| one_line(error)).collect()));
    }
    PolicySet::new(all).map_err(|error| ConfigErrors::one("--policy", error))
}

#[cfg(test)]
mod tests {
    use slidegate_testkit::TempDir;

    use crate::config::{Config, Outside};

    /// What is on the command line comes on top of the file.
    #[test]
    fn policies_of_texts_follow_those_of_the_file() {
        let folder = TempDir::new("flag");
        let text = "server: {listen: '127.0.0.1:80'}\npolicies: [{name: per-ip, quota: 1/1s}]\n";
        let path = folder.file("slidegate.yaml", text);
        let texts = ["5/1m per user".to_owned()];
        let both = Config::from_sources(Some(path.as_ref()), &texts, &Outside::default()).unwrap();
        assert_eq!(both.listen.port(), 80);
        assert_eq!(both.policies.iter().len(), 2);
        let alone = Config::from_sources(None, &["10/s".to_owned()], &Outside::default()).unwrap();
        let names: Vec<_> = alone.policies.iter().map(slidegate::Policy::name).collect();
        assert_eq!(names, ["everyone"], "without the default policy");
    }
}
