//! A policy that comes as JSON while the service runs, with the keys that one of the file has.
//!
//! It is read by what reads the file, so that a policy means the same wherever it stands.

use serde_json::Value as Json;
use slidegate::{Policy, Quota};

use super::file::{Entry, Node, Value};
use super::{Findings, KeysShown, observe, policy, resolve};
use crate::policy_names::is_inline;

/// A policy, and what belongs to it besides.
#[derive(Debug, Clone)]
pub(crate) struct Added {
    pub(crate) policy: Policy,
    pub(crate) candidate: Option<Quota>,
    pub(crate) keys_shown: KeysShown,
}

impl Added {
    /// Reads the keys of a policy of this name. `addresses` are the attributes whose text is an address.
    ///
    /// # Errors
    /// In one line: the first mistake, and how many more there are.
    pub(crate) fn read(
        name: &str,
        keys: &serde_json::Map<String, Json>,
        addresses: &[String],
    ) -> Result<Self, String> {
        let mut entries: Vec<Entry> = keys.iter().map(|(key, value)| entry(key, value)).collect();
        match keys.get("name") {
            None => entries.push(entry("name", &Json::from(name))),
            Some(other) if other == name => {}
            Some(other) => return Err(format!("name is {other} and the path says `{name}`; leave it out")),
        }
        let node = Node::told(Value::Map(entries));
        let mut findings = Findings::default();
        let read = policy::policy(&node, 1, addresses, &mut findings);
        if is_inline(name) {
            findings.add(1, format_args!("policy `{name}`: {}", resolve::TAKEN));
        }
        let mut mistakes = findings.0.into_iter().map(|(_, message)| super::one_line(&message));
        if let Some(first) = mistakes.next() {
            let more = mistakes.count();
            let more = if more > 0 { format!("; {more} more after that") } else { String::new() };
            return Err(format!("{first}{more}"));
        }
        let (policy, candidate) = read.ok_or("a policy needs a name")?;
        let keys_shown = node.get("keys_shown").and_then(|node| observe::keys_shown(node).ok());
        Ok(Self { policy, candidate, keys_shown: keys_shown.unwrap_or_default() })
    }
}

fn entry(key: &str, value: &Json) -> Entry {
    Entry { key: key.to_owned(), line: 1, value: node(value) }
}

/// As deep as the reader of JSON goes.
fn node(value: &Json) -> Node {
    Node::told(match value {
        Json::Null => Value::Nothing,
        Json::Bool(flag) => Value::Flag(*flag, flag.to_string()),
        Json::Number(number) => Value::Number(number.to_string()),
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(list) => Value::List(list.iter().map(node).collect()),
        Json::Object(map) => Value::Map(map.iter().map(|(key, value)| entry(key, value)).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Counted, describe};
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
            "candidate": { "limit": 9 }, "keys_shown": "hashed",
        });
        let added = read(&keys).unwrap();
        // JSON is YAML.
        let mut listed = keys.clone();
        listed["name"] = "p".into();
        let file = Config::parse(&json!({ "policies": [listed] }).to_string(), "f").unwrap();
        let policy = file.policies.by_name("p").unwrap();
        assert_eq!(format!("{:?}", added.policy), format!("{policy:?}"));
        assert_eq!(describe(&added.policy, Counted::Here), describe(policy, Counted::Here));
        assert_eq!(
            (added.candidate, added.keys_shown),
            (file.candidates.get("p").copied(), KeysShown::Hashed)
        );
    }

    /// Whoever sends it sees one line, and has no file to look into.
    #[test]
    fn each_mistake_names_the_policy_its_value_and_the_way_out() {
        for (keys, expected) in [
            (
                json!({ "scope": ["user"], "limit": -5, "window": "1m" }),
                "policy `p`: limit is -5; give a whole number from 0 to 18446744073709551615, for example `limit: 100`",
            ),
            (
                json!({ "scope": ["user"], "quota": "5/1m", "windw": 3, "mode": "off" }),
                "policy `p`: unknown key `windw`; did you mean `window`?; 1 more after that",
            ),
            (
                json!({ "scope": ["user"], "quota": "5/1m", "name": "q" }),
                "name is \"q\" and the path says `p`; leave it out",
            ),
            (
                json!({ "scope": ["user"], "limit": "5", "window": "1m" }),
                "policy `p`: limit is the text `5`; write the number without quotes",
            ),
        ] {
            assert_eq!(read(&keys).unwrap_err(), expected);
        }
        let error =
            Added::read("CL.THROTTLE", json!({ "quota": "1/1s" }).as_object().unwrap(), &[]).unwrap_err();
        assert!(error.starts_with("policy `CL.THROTTLE`: keys of the RESP command of this name"), "{error}");
    }
}
