//! The argument `--policy`: a policy in one line.

use lined_config::ConfigErrors;
use slidegate::{Policy, PolicySet};
use slidegate_config::text::policy_from_text;

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
            Err(message) => errors.push(format!("--policy {message}")),
        }
    }
    if !errors.is_empty() {
        return Err(ConfigErrors::new(&errors));
    }
    PolicySet::new(all).map_err(|error| ConfigErrors::one("--policy", error))
}

#[cfg(test)]
mod tests {
    use slidegate_testkit::TempDir;

    use crate::config::{Config, Outside};

    /// The command line adds policies to the file.
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
