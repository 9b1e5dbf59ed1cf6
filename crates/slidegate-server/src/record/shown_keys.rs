//! Redacted keys of the observer's policies.

use slidegate::clock::Clock;

use super::fullest::{FullKey, fullest_first};
use super::observer::Observer;
use super::redaction::Redactor;
use super::top::{By, Ranking};

impl Observer {
    pub(crate) fn policies(&self) -> Vec<String> {
        self.registry.load().in_force().iter().map(|policy| policy.name.clone()).collect()
    }

    /// An active policy's keys with the most usage or denials, redacted as it configures. Empty if not
    /// recorded.
    pub(crate) fn ranking(&self, policy: &str, by: By) -> Ranking {
        let registry = self.registry.load();
        let Some(policy) = registry.by_name(policy).filter(|_| self.options.top) else {
            return Ranking::default();
        };
        let mut ranking = self.top.ranking(policy.number, by);
        ranking.in_millionths = by == By::Used && policy.counts_millionths();
        for one in &mut ranking.keys {
            one.key = self.redactor.show(&one.key, policy.keys_shown).into();
        }
        ranking
    }

    /// An active policy's fullest keys, the fullest first, redacted as it configures.
    pub(crate) fn fullest(&self, policy: &str) -> Vec<FullKey> {
        let registry = self.registry.load();
        let Some(policy) = registry.by_name(policy) else { return Vec::new() };
        let shown = policy
            .fullest()
            .map(|one| FullKey { key: self.redactor.show(&one.key, policy.keys_shown).into(), ..one });
        fullest_first(shown, self.wall_time(self.clock.now()))
    }

    /// A policy's unredacted keys that are shown as this text, from the top keys of both periods, the fullest
    /// keys and the recorded denials. `None` if the text is itself unredacted.
    pub(crate) fn keys_shown_as(&self, policy: &str, text: &str) -> Option<Vec<Box<str>>> {
        let registry = self.registry.load();
        let policy_counters =
            registry.by_name(policy).filter(|known| Redactor::is_shown(text, known.keys_shown))?;
        let mut keys = self.events.keys_shown_as(policy, text);
        let top = [By::Used, By::Denied].map(|by| self.top.ranking(policy_counters.number, by).keys);
        let known = top.into_iter().flatten().map(|one| one.key);
        let known = known.chain(policy_counters.fullest().map(|one| one.key)).filter(|key| {
            !Redactor::is_cut(key) && self.redactor.show(key, policy_counters.keys_shown) == text
        });
        keys.extend(known.map(|key| Box::from(&*key)));
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }

    pub(crate) fn shown(&self, policy: &str, key: &str) -> String {
        let keys_shown =
            self.registry.load().by_name(policy).map(|known| known.keys_shown).unwrap_or_default();
        self.redactor.show(key, keys_shown).into_owned()
    }
}
