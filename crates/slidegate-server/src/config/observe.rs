//! What the service tells of its decisions, and how it shows keys there.
//!
//! Hashes of keys are made with the secret that the store's are, from the environment or the file: the same in all
//! instances, so that a key is found in all their logs under one name.

use std::collections::HashMap;

use slidegate::Secret;

use super::file::{Node, Value};
use super::section::{Section, flag, wrong};
use super::traces::{self, Traces};
use super::{Findings, Outside};

/// Every key of the section.
pub(super) const KEYS: [&str; 5] = ["metrics", "events", "top", "log_denials", "traces"];

/// What is told, all of it unless said otherwise.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Observe {
    /// Counters and histograms.
    pub(crate) metrics: bool,
    /// Denials are remembered and can be listened to.
    pub(crate) events: bool,
    /// The keys that use most and are denied most.
    pub(crate) top: bool,
    /// Denials are in the log, as far as `events` has them.
    pub(crate) log_denials: bool,
    /// By the names of policies; the others show keys as they are.
    pub(crate) keys_shown: HashMap<String, KeysShown>,
    /// What hashes of keys are made with, if that is said: the same in all instances.
    pub(crate) key_secret: Option<Secret<String>>,
    /// Where spans of decisions go, if anywhere.
    pub(crate) traces: Option<Traces>,
}

/// How a policy's keys are shown in logs, events, top keys and pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum KeysShown {
    #[default]
    Plain,
    /// The first one or two characters of each value, and a mark that tells keys apart.
    Masked,
    Hashed,
}

impl Default for Observe {
    fn default() -> Self {
        Self {
            metrics: true,
            events: true,
            top: true,
            log_denials: true,
            keys_shown: HashMap::new(),
            key_secret: None,
            traces: None,
        }
    }
}

impl Observe {
    /// What the section says: neither what policies do, nor the secret, which stands at the store.
    pub(super) fn section(&self) -> Self {
        Self { keys_shown: HashMap::new(), key_secret: None, ..self.clone() }
    }

    /// What is told where no file says anything.
    pub(super) fn without_file(outside: &Outside) -> Self {
        let key_secret = outside.key_secret.clone();
        Self { key_secret, traces: outside.traces.alone(), ..Self::default() }
    }
}

/// Reads the section, which may not be there, and each policy's own word.
pub(super) fn observe(
    section: Option<&Section<'_>>,
    top: &Section<'_>,
    store: Option<&Section<'_>>,
    outside: &Outside,
    findings: &mut Findings,
) -> Observe {
    let mut read = |key: &'static str| {
        section.and_then(|section| section.read(key, findings, |node| flag(key, node))).unwrap_or(true)
    };
    let (metrics, events, tops) = (read("metrics"), read("events"), read("top"));
    let log_denials = read("log_denials");
    let in_file = || store.and_then(|store| store.get("key_secret")?.scalar().map(str::to_owned));
    let key_secret = outside.key_secret.clone().or_else(|| in_file().map(Secret::new));
    let spans = section.and_then(|section| {
        let mut spans = Section::of(section.get("traces")?, "traces".to_owned(), traces::EXAMPLE, findings)?;
        spans.expect_only(&traces::KEYS, findings);
        Some(spans)
    });
    let traces = traces::traces(spans.as_ref(), &outside.traces, findings);
    Observe { metrics, events, top: tops, log_denials, keys_shown: all_shown(top), key_secret, traces }
}

/// What policies say that do not show keys as they are.
fn all_shown(top: &Section<'_>) -> HashMap<String, KeysShown> {
    let Some(Value::List(policies)) = top.get("policies").map(|node| &node.value) else {
        return HashMap::new();
    };
    let of = |policy: &Node| {
        let name = policy.get("name").and_then(Node::scalar)?;
        // What is wrong with it is found where the policy is read.
        let shown = keys_shown(policy.get("keys_shown")?).ok()?;
        Some((name.to_owned(), shown))
    };
    policies.iter().filter_map(of).collect()
}

/// Reads how a policy shows keys.
pub(super) fn keys_shown(node: &Node) -> Result<KeysShown, String> {
    match node.scalar() {
        Some("plain") => Ok(KeysShown::Plain),
        Some("masked") => Ok(KeysShown::Masked),
        Some("hashed") => Ok(KeysShown::Hashed),
        _ => Err(wrong(
            "keys_shown",
            node,
            "write `keys_shown: plain`, `masked` for the first characters only, or `hashed`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::tests::{error, policy_error};

    /// A key that was to be hidden and is not has been told to everybody by the time it is noticed.
    #[test]
    fn every_setting_arrives() {
        let text = "observe: {metrics: false, events: false, top: false, log_denials: false}\n\
                    store: {redis: 'redis://h', key_secret: s}\n\
                    policies: [{name: a, quota: 1/1s, keys_shown: hashed}, {name: b, quota: 1/1s, keys_shown: masked},\n\
                    {name: c, quota: 1/1s, keys_shown: plain}, {name: d, quota: 1/1s}]";
        let observe = Config::parse(text, "f").unwrap().observe;
        let shown = |name: &str| observe.keys_shown.get(name).copied().unwrap_or_default();
        assert_eq!(
            ["a", "b", "c", "d"].map(shown),
            [KeysShown::Hashed, KeysShown::Masked, KeysShown::Plain, KeysShown::Plain]
        );
        assert_eq!(observe.key_secret, Some(Secret::new("s".into())));
        assert!(!format!("{observe:?}").contains("\"s\""), "{observe:?}");
        assert!(!(observe.metrics || observe.events || observe.top || observe.log_denials));
        let silent = Config::parse("policies: [{name: a, quota: 1/1s}]", "f").unwrap().observe;
        assert_eq!(silent, Observe::default());
    }

    /// Whoever mistypes the one word that hides keys must not find out by reading them.
    #[test]
    fn each_wrong_setting_names_its_value_and_the_way_out() {
        assert_eq!(
            policy_error("quota: 1/1s, keys_shown: hash"),
            "keys_shown is `hash`; write `keys_shown: plain`, `masked` for the first characters only, or `hashed`"
        );
        let policies = "\npolicies: [{name: p, quota: 1/1s}]";
        assert_eq!(
            error(&format!("observe: {{top: maybe}}{policies}")),
            "slidegate.yaml:1: observe: top is `maybe`; write `true` or `false`"
        );
        assert_eq!(
            error(&format!("observe: {{evnts: true}}{policies}")),
            "slidegate.yaml:1: observe: unknown key `evnts`; did you mean `events`?"
        );
    }
}
