//! The section `observe`: what the service reports about its decisions.
//!
//! Keys are hashed with the store's key secret, so that all instances log the same hash of a key.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::Secret;
use slidegate_config::policy::KeysShown;

use super::traces::Traces;
use super::webhook::WebhookSettings;

/// What the service reports about its decisions.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "top: true"))]
pub(crate) struct Observe {
    /// Counters and histograms, at `/metrics`. The rates of `/v1/live` need them.
    #[schemars(extend("default" = true))]
    pub(crate) metrics: bool,
    /// Denial events, at `/v1/events`.
    #[schemars(extend("default" = true))]
    pub(crate) events: bool,
    /// The keys that use most and are denied most, at `/v1/top`.
    #[schemars(extend("default" = true))]
    pub(crate) top: bool,
    /// Also log events: each key at most once per minute, and at most 20 lines per second.
    #[schemars(extend("default" = true))]
    pub(crate) log_denials: bool,
    /// The OTLP collector for [spans of decisions](observability.md#traces). Disabled without it.
    pub(crate) traces: Option<Traces>,
    /// Where notifications are sent.
    #[serde(skip)]
    pub(crate) webhook: Option<WebhookSettings>,
    /// How keys are shown, by the names of policies. The default is [`KeysShown::Plain`].
    #[serde(skip)]
    pub(crate) keys_shown: HashMap<String, KeysShown>,
    /// The secret for hashes of keys.
    #[serde(skip)]
    pub(crate) key_secret: Option<Secret<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// A key that should be hidden is exposed before anyone notices.
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
        assert!(silent.metrics && silent.events && silent.top && silent.log_denials);
        assert_eq!((silent.traces, silent.key_secret, silent.keys_shown.len()), (None, None, 0));
    }
}
