//! A policy added as JSON while the service runs.
//!
//! It is read like a policy of the file, so that both mean the same.

use lined_config::{Excerpt, Findings, Node, Section};
use serde_json::{Map, Value as Json};

pub use crate::policy::Added;
use crate::policy::{self, PolicySpec};

impl Added {
    /// Reads the keys of a policy of this name. `addresses` are the attributes that are addresses.
    ///
    /// # Errors
    /// The first mistake and the number of others, in one line.
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

    /// Reads the keys of a policy. `place` begins errors.
    pub(crate) fn read_at(
        place: String,
        keys: &Map<String, Json>,
        addresses: &[String],
    ) -> Result<Self, String> {
        let node = Node::from(&Json::from(keys.clone()));
        let findings = Findings::default();
        let section = Section::new(&node, place, &findings);
        let read = section.read(policy::schema(), |_| {});
        let added = read.map(|(spec, _): (PolicySpec, _)| spec.build(&section, addresses).0);
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
    use crate::policy::KeysShown;
    use serde_json::json;

    fn read(keys: &Json) -> Result<Added, String> {
        Added::read("p", keys.as_object().unwrap(), &["ip".to_owned()])
    }

    /// Policies that were tried at run time move to the file and must stay the same.
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
