//! A policy in one line: `100/1m per user using token-bucket named api`, as `--policy` takes it.

use slidegate::{Policy, PolicySet, Quota};

use super::{ConfigErrors, resolve};

/// Reads `QUOTA [per ATTRIBUTE[,ATTRIBUTE...]] [using ALGORITHM] [named NAME]`, the last two in either order.
///
/// A quota may have a ` per ` of its own: what is counted by stands behind the last one that has a whole quota before
/// it. The name is made from the scope if none is given: `per-user-path`, or `everyone` without a scope.
///
/// # Errors
/// When a part is not what it must be; one line that names the text.
pub(crate) fn policy_from_text(text: &str) -> Result<Policy, String> {
    let failed = |message: String| format!("--policy `{text}`: {message}");
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let (mut algorithm, mut name) = (None, None);
    while let [.., keyword, value] = words.as_slice() {
        let place = match *keyword {
            "using" => &mut algorithm,
            "named" => &mut name,
            _ => break,
        };
        if place.replace(*value).is_some() {
            return Err(failed(format!("`{keyword}` stands twice; keep one")));
        }
        words.truncate(words.len() - 2);
    }
    let (quota, scope) = quota_and_scope(&words.join(" ")).map_err(failed)?;
    let quota = match algorithm {
        Some(name) => quota.with_algorithm(resolve::algorithm(name).map_err(failed)?),
        None => quota,
    };
    let name = name.map_or_else(|| default_name(&scope), str::to_owned);
    let policy = Policy::new(name, quota).map_err(|error| failed(error.to_string()))?;
    Ok(policy.scope(scope))
}

fn quota_and_scope(text: &str) -> Result<(Quota, Vec<String>), String> {
    let lower = text.to_ascii_lowercase();
    let split = lower.rmatch_indices(" per ").find_map(|(at, per)| {
        let quota: Quota = text[..at].parse().ok()?;
        Some((quota, &text[at + per.len()..]))
    });
    let Some((quota, attributes)) = split else {
        return text
            .parse()
            .map(|quota| (quota, Vec::new()))
            .map_err(|error: slidegate::Error| error.to_string());
    };
    let mut scope: Vec<String> = Vec::new();
    for attribute in attributes.split(',') {
        let attribute = resolve::attribute_name(attribute.trim())?;
        if scope.contains(&attribute) {
            return Err(format!("`{attribute}` stands twice; keep one"));
        }
        scope.push(attribute);
    }
    Ok((quota, scope))
}

fn default_name(scope: &[String]) -> String {
    if scope.is_empty() { "everyone".to_owned() } else { safe_name(&format!("per-{}", scope.join("-"))) }
}

/// A text made into the name of a policy.
pub(super) fn safe_name(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    text.chars().map(|c| if allowed(c) { c } else { '-' }).take(Policy::MAX_NAME).collect()
}

/// The policies of texts, behind those that there are.
pub(super) fn add(policies: Option<&PolicySet>, texts: &[String]) -> Result<PolicySet, ConfigErrors> {
    let mut all: Vec<Policy> = policies.into_iter().flat_map(PolicySet::iter).cloned().collect();
    let mut errors = Vec::new();
    for text in texts {
        match policy_from_text(text) {
            Ok(policy) if all.iter().any(|other| other.name() == policy.name()) => errors.push(format!(
                "--policy `{text}`: there is a policy `{0}` already; give this one a name, for example `{text} named {0}-2`",
                policy.name()
            )),
            Ok(policy) => all.push(policy),
            Err(message) => errors.push(message),
        }
    }
    if !errors.is_empty() {
        return Err(ConfigErrors::listed(&errors));
    }
    PolicySet::new(all).map_err(|error| ConfigErrors::listed(&[format!("--policy: {error}")]))
}
