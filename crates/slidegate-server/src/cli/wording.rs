//! Wording of replay reports: the usual names of policies and reasons, and keys redacted as their
//! policies require.

use std::collections::HashMap;
use std::sync::Arc;

use slidegate::{Policy, PolicyDecision};
use slidegate_config::policy::KeysShown;
use slidegate_replay::Wording;

use crate::config::{Config, Storage, describe};
use crate::engine::explanation;
use crate::record::Redactor;

/// Words for the policies of one or more configurations.
#[derive(Debug)]
pub(super) struct ReportWording {
    redactor: Redactor,
    keys_shown: HashMap<String, KeysShown>,
}

impl ReportWording {
    /// If configurations redact a policy's keys differently, the stricter one applies.
    pub(super) fn of<'a>(configs: impl IntoIterator<Item = &'a Config>) -> Arc<dyn Wording> {
        let mut keys_shown: HashMap<String, KeysShown> = HashMap::new();
        let mut secret = None;
        for config in configs {
            secret = secret.or(config.observe.key_secret.as_ref());
            for (policy, shown) in &config.observe.keys_shown {
                let known = keys_shown.entry(policy.clone()).or_default();
                if hidden(*shown) > hidden(*known) {
                    *known = *shown;
                }
            }
        }
        let redactor = Redactor::new(secret.map(|secret| secret.expose().as_str()));
        Arc::new(Self { redactor, keys_shown })
    }
}

/// How strictly keys are redacted.
fn hidden(shown: KeysShown) -> u8 {
    match shown {
        KeysShown::Plain => 0,
        KeysShown::Masked => 1,
        KeysShown::Hashed => 2,
    }
}

impl Wording for ReportWording {
    fn policy(&self, policy: &Policy) -> String {
        describe(policy, Storage::Memory)
    }

    fn key(&self, decision: &PolicyDecision<'_>) -> String {
        let shown = self.keys_shown.get(decision.policy().name()).copied().unwrap_or_default();
        self.redactor.show(&decision.key().to_string(), shown).into_owned()
    }

    fn why(&self, decision: Option<&PolicyDecision<'_>>) -> String {
        decision.map_or_else(
            || explanation::NOTHING.to_owned(),
            |decision| explanation::of_key(decision, &self.key(decision)),
        )
    }
}
