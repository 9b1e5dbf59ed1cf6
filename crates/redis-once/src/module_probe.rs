//! Detects which commands of the caller's module a node has.
//!
//! A node is asked in the background. Until it answers, and while it has no module, calls run the
//! script. A node that has lost the module executed nothing, so the same call runs the script.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use redis::{Cmd, ServerError, Value};

/// Interval at which a node without the module is asked, in microseconds: the module is used at the
/// latest this long after it is loaded.
const INTERVAL_US: u64 = 30_000_000;

/// The state of a node's module.
#[derive(Debug, Default)]
pub(crate) struct ModuleProbe {
    /// A bit per available command.
    commands: AtomicU8,
    /// When to ask again, in the node's time.
    ask_at_us: AtomicU64,
}

impl ModuleProbe {
    pub(crate) fn has(&self, command: usize) -> bool {
        self.commands.load(Ordering::Relaxed) & bit(command) != 0
    }

    /// Whether to ask now. True once per interval.
    pub(crate) fn begins(&self, now_us: u64) -> bool {
        let at = self.ask_at_us.load(Ordering::Relaxed);
        let next = now_us.saturating_add(INTERVAL_US);
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        now_us >= at && self.ask_at_us.compare_exchange(at, next, success, failure).is_ok()
    }

    /// Reads the reply to [`question`].
    pub(crate) fn answered(&self, reply: &Value) {
        let Value::Array(items) = reply else { return self.commands.store(0, Ordering::Relaxed) };
        let is_known = |item: &Value| matches!(item, Value::Array(info) if !info.is_empty());
        let known = items.iter().enumerate().filter(|(_, item)| is_known(item));
        let commands = known.fold(0, |bits, (command, _)| bits | bit(command));
        self.commands.store(commands, Ordering::Relaxed);
    }

    /// Records that the node no longer executes a command.
    pub(crate) fn is_lost(&self, command: usize, now_us: u64) {
        self.commands.fetch_and(!bit(command), Ordering::Relaxed);
        self.ask_at_us.store(now_us.saturating_add(INTERVAL_US), Ordering::Relaxed);
    }
}

/// 0 for commands beyond the number of bits.
fn bit(command: usize) -> u8 {
    u32::try_from(command).ok().and_then(|command| 1u8.checked_shl(command)).unwrap_or(0)
}

/// Asks a node which of these commands it knows.
pub(crate) fn question(commands: &[&str]) -> Cmd {
    let mut question = redis::cmd("COMMAND");
    question.arg("INFO").arg(commands);
    question
}

/// Whether a node rejected the command before executing anything: it is unknown, not allowed to the
/// user, or of another release.
pub(crate) fn is_refused(reply: &Value) -> bool {
    let is_refusal = |error: &ServerError| {
        let begins = |words: &str| error.details().is_some_and(|details| details.starts_with(words));
        error.code() == "NOPERM" || ["unknown command", "invalid call"].into_iter().any(begins)
    };
    matches!(reply, Value::ServerError(error) if is_refusal(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str) -> Value {
        Value::Array(vec![Value::SimpleString(name.into())])
    }

    /// Each question is a command on a server, which many instances ask.
    #[test]
    fn a_node_without_the_module_is_asked_once_in_each_interval() {
        let probe = ModuleProbe::default();
        let has = || [0, 1, 2].map(|command| probe.has(command));
        assert!(probe.begins(5) && !probe.begins(6));
        probe.answered(&Value::Array(vec![Value::Nil; 3]));
        assert_eq!(has(), [false; 3]);
        assert!(!probe.begins(5 + INTERVAL_US - 1));
        assert!(probe.begins(5 + INTERVAL_US));
        probe.answered(&Value::Array(["app.one", "app.two", "app.three"].map(info).into()));
        assert_eq!(has(), [true; 3]);
        probe.is_lost(1, 2 * INTERVAL_US);
        assert_eq!(has(), [true, false, true]);
        assert!(!probe.begins(3 * INTERVAL_US - 1) && probe.begins(3 * INTERVAL_US));
    }

    /// During an upgrade, the nodes of a fleet have different module versions.
    #[test]
    fn a_node_with_the_first_version_has_one_command() {
        let probe = ModuleProbe::default();
        probe.answered(&Value::Array(vec![info("app.one"), Value::Nil, Value::Nil]));
        assert_eq!([0, 1, 2].map(|command| probe.has(command)), [true, false, false]);
        probe.answered(&Value::Okay);
        assert!(!probe.has(0));
    }
}
