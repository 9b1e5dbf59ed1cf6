//! A policy in one line: `100/1m per user using token-bucket named api`, as `--policy` takes it.

use slidegate::{Policy, PolicySet, Quota};

use super::{ConfigErrors, resolve};
use crate::policy_names::is_inline;

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
            Ok(policy) if is_inline(policy.name()) => {
                errors.push(format!("--policy `{text}`: {}", resolve::TAKEN));
            }
            Ok(policy) => all.push(policy),
            Err(message) => errors.push(message),
        }
    }
    if !errors.is_empty() {
        return Err(ConfigErrors::listed(&errors));
    }
    PolicySet::new(all).map_err(|error| ConfigErrors::listed(&[format!("--policy: {error}")]))
}

#[cfg(test)]
mod tests {
    use super::policy_from_text;
    use crate::config::{Config, Outside};

    fn added(texts: &[&str]) -> Result<Config, String> {
        let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
        Config::from_sources(None, &texts, &Outside::default()).map_err(|errors| errors.to_string())
    }

    /// ` per ` stands for two things in one line, and both must be read as everyone reads them.
    #[test]
    fn a_text_says_quota_scope_algorithm_and_name() {
        for (text, name, quota, scope, algorithm) in [
            ("100/1m per user", "per-user", "100/1m", &["user"][..], "sliding-log"),
            ("100/1m", "everyone", "100/1m", &[], "sliding-log"),
            ("5 per 30s", "everyone", "5/30s", &[], "sliding-log"),
            ("5 per 30s per ip", "per-ip", "5/30s", &["ip"], "sliding-log"),
            ("5 PER minute PER ip", "per-ip", "5/1m", &["ip"], "sliding-log"),
            ("1 per 3 hours per user, path", "per-user-path", "1/3h", &["user", "path"], "sliding-log"),
            ("10/s  per token using token-bucket named api", "api", "10/1s", &["token"], "token-bucket"),
            ("10/s named api using fixed-window", "api", "10/1s", &[], "fixed-window"),
            ("10/s per x:y", "per-x-y", "10/1s", &["x:y"], "sliding-log"),
        ] {
            let policy = policy_from_text(text).unwrap();
            assert_eq!((policy.name(), policy.quota().to_string().as_str()), (name, quota), "{text}");
            assert_eq!(
                (policy.scope_attributes().join(","), policy.quota().algorithm().name()),
                (scope.join(","), algorithm)
            );
        }
    }

    /// A flag has no line number; the text itself has to do.
    #[test]
    fn a_wrong_text_is_repeated_with_the_way_out() {
        let units = "use ms, s, m, h, d or w, for example `30s`";
        let no_attribute = "is not the name of an attribute: 1 to 128 bytes without spaces, commas and brackets; write \
                            several as a list, for example `[user, path]`";
        for (text, expected) in [
            ("", "invalid quota ``: no window; write `limit/window`, for example `100/1m`".to_owned()),
            ("per user", "invalid quota `per user`: no window; write `limit/window`, for example `100/1m`".into()),
            ("100 per user", format!("invalid window `user`: unknown unit `user`; {units}")),
            ("100/1m per", format!("invalid window `1m per`: unknown unit `per`; {units}")),
            ("100/1m per a,,b", format!("`` {no_attribute}")),
            ("100/1m per a, a", "`a` stands twice; keep one".into()),
            ("100/1m using gcra", "algorithm is `gcra`; here it is `token-bucket`".into()),
            ("100/1m named a named b", "`named` stands twice; keep one".into()),
            (
                "100/1m named a!",
                "invalid policy name `a!`: must be 1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `per-user`".into(),
            ),
        ] {
            assert_eq!(policy_from_text(text).unwrap_err(), format!("--policy `{text}`: {expected}"));
        }
    }

    /// Two limits on one scope are common, and usage is kept by name.
    #[test]
    fn two_policies_of_one_name_ask_for_another() {
        assert_eq!(
            added(&["10/s per ip", "100/1h per ip", "x"]).unwrap_err(),
            "--policy `100/1h per ip`: there is a policy `per-ip` already; give this one a name, for example `100/1h per ip \
             named per-ip-2`\n--policy `x`: invalid quota `x`: no window; write `limit/window`, for example `100/1m`"
        );
        let config = added(&["10/s per ip", "100/1h per ip named per-ip-2"]).unwrap();
        let names: Vec<_> = config.policies.iter().map(slidegate::Policy::name).collect();
        assert_eq!(names, ["per-ip", "per-ip-2"], "the default policy has gone");
    }

    /// What is on the command line comes on top of the file.
    #[test]
    fn policies_of_texts_follow_those_of_the_file() {
        let path = std::env::temp_dir().join(format!("slidegate-flag-{}.yaml", std::process::id()));
        std::fs::write(&path, "server: {listen: '127.0.0.1:80'}\npolicies: [{name: per-ip, quota: 1/1s}]\n")
            .unwrap();
        let both =
            Config::from_sources(Some(&path), &["5/1m per user".to_owned()], &Outside::default()).unwrap();
        let same =
            Config::from_sources(Some(&path), &["5/1m per ip".to_owned()], &Outside::default()).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(both.listen.port(), 80);
        assert_eq!(both.policies.iter().len(), 2);
        assert_eq!(
            same.to_string(),
            "--policy `5/1m per ip`: there is a policy `per-ip` already; give this one a name, for example `5/1m per ip \
             named per-ip-2`"
        );
    }
}
