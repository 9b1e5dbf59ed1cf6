//! A policy that is added as JSON while the service runs.
//!
//! It is read like a policy of the file, so that it means the same in both.

use serde_json::{Map, Value as Json};
use slidegate::{Policy, Quota};

use crate::check;
use crate::errors::Findings;
use crate::escalate::Escalation;
use crate::policy::{self, Built, KeysShown, POLICY_FORMS, PolicySpec};
use crate::section::Section;
use crate::yaml::{Excerpt, Node};

/// A policy, with its candidate and how its keys are shown.
#[derive(Debug, Clone)]
pub struct Added {
    /// The policy.
    pub policy: Policy,
    /// The quota that is evaluated on the same requests.
    pub candidate: Option<Quota>,
    /// How its keys are shown.
    pub keys_shown: KeysShown,
    /// Which keys the service blocks.
    pub escalation: Option<Escalation>,
}

impl Added {
    /// Reads the keys of a policy of this name. `addresses` are the attributes whose text is an
    /// address.
    ///
    /// # Errors
    /// In one line: the first mistake, and how many more there are.
    pub fn read(name: &str, keys: &Map<String, Json>, addresses: &[String]) -> Result<Self, String> {
        let mut keys = keys.clone();
        match keys.insert("name".to_owned(), name.into()) {
            Some(other) if other != *name => {
                return Err(format!("invalid name {other}: the path has `{name}`; leave it out"));
            }
            _ => {}
        }
        Self::read_at(format!("policy `{}`", Excerpt(name)), &keys, addresses)
    }

    /// Reads the keys of a policy, which errors name `place`.
    pub(crate) fn read_at(
        place: String,
        keys: &Map<String, Json>,
        addresses: &[String],
    ) -> Result<Self, String> {
        let node = Node::from(&Json::from(keys.clone()));
        let findings = Findings::default();
        let section = Section::new(&node, place, &findings);
        let added = check::read(&section, policy::schema(), &POLICY_FORMS, |_| {}).map(
            |(spec, _): (PolicySpec, _)| {
                let keys_shown = spec.keys_shown.unwrap_or_default();
                let Built { policy, candidate, escalation, .. } = spec.build(&section, addresses);
                Self { policy, candidate, keys_shown, escalation }
            },
        );
        match (findings.messages().as_slice(), added) {
            ([], Some(added)) => Ok(added),
            ([first, more @ ..], _) if !more.is_empty() => Err(format!("{first}; {} more", more.len())),
            (mistakes, _) => Err(mistakes.concat()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Policies;
    use serde_json::json;

    fn read(keys: &Json) -> Result<Added, String> {
        Added::read("p", keys.as_object().unwrap(), &["ip".to_owned()])
    }

    /// What is tried at run time is written into the file afterwards, and must go on as it was.
    #[test]
    fn a_policy_means_the_same_as_json_and_in_the_file() {
        let keys = json!({
            "when": { "path": { "prefix": "/api/" }, "method": ["GET", "PUT"], "zone": { "present": true } },
            "scope": ["ip", "user"], "limit": 100, "window": "1m", "algorithm": "token-bucket", "burst": 7,
            "mode": "shadow", "excess": "charge", "on_store_error": "deny", "ipv6_prefix": 64,
            "overrides": [{ "key": ["192.0.2.7", "zo\u{eb}"], "limit": 5 }],
            "candidate": { "limit": 9 }, "keys_shown": "hashed", "notify": ["80%"],
        });
        let added = read(&keys).unwrap();
        // JSON is YAML.
        let mut listed = keys.clone();
        listed["name"] = "p".into();
        let file = Policies::parse(&json!({ "policies": [listed] }).to_string(), "f").unwrap();
        let policy = file.set.by_name("p").unwrap();
        assert_eq!(format!("{:?}", added.policy), format!("{policy:?}"));
        assert_eq!(file.keys_shown["p"], added.keys_shown);
        assert_eq!(
            (added.candidate, added.keys_shown),
            (file.candidates.get("p").copied(), KeysShown::Hashed)
        );
    }
}
