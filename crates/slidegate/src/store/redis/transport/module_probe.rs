//! Whether a node has the native module, whose command decides what the script for one key does.
//!
//! A node is asked in the background: until it has answered, and while it has no module, calls run
//! the script. A node that turns out to have lost the module has executed nothing, so the same call
//! runs the script.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis::{Arg, Cmd, ServerError, Value};

/// How often a node without the module is asked, in microseconds. It takes the module's command as
/// soon as it is loaded, within this.
const INTERVAL_US: u64 = 30_000_000;

/// The module's command that does what the script for one key does.
const COMMAND: &str = "SLIDEGATE.CHECK1";

/// What is known of a node's module.
#[derive(Debug, Default)]
pub(super) struct ModuleProbe {
    is_present: AtomicBool,
    /// The time of the node at which to ask again.
    ask_at_us: AtomicU64,
}

impl ModuleProbe {
    pub(super) fn is_present(&self) -> bool {
        self.is_present.load(Ordering::Relaxed)
    }

    /// Whether to ask now. True once in each interval.
    pub(super) fn begins(&self, now_us: u64) -> bool {
        let at = self.ask_at_us.load(Ordering::Relaxed);
        let next = now_us.saturating_add(INTERVAL_US);
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        now_us >= at && self.ask_at_us.compare_exchange(at, next, success, failure).is_ok()
    }

    /// Reads the reply to [`question`].
    pub(super) fn answered(&self, reply: &Value) {
        let is_known = matches!(reply, Value::Array(items) if matches!(items.as_slice(), [Value::Array(info)] if !info.is_empty()));
        self.is_present.store(is_known, Ordering::Relaxed);
    }

    /// The node does not execute the command any more.
    pub(super) fn is_lost(&self, now_us: u64) {
        self.is_present.store(false, Ordering::Relaxed);
        self.ask_at_us.store(now_us.saturating_add(INTERVAL_US), Ordering::Relaxed);
    }
}

/// Asks a node whether it knows the command.
pub(super) fn question() -> Cmd {
    let mut question = redis::cmd("COMMAND");
    question.arg("INFO").arg(COMMAND);
    question
}

/// The module's command for the `EVALSHA` of a script for one key: the same arguments, but for the
/// packed quota.
pub(super) fn command(evalsha: &Cmd, quota: &[u8]) -> Cmd {
    // EVALSHA hash 1 key latest quota costs.
    let mut command = redis::cmd(COMMAND);
    for (at, part) in evalsha.args_iter().enumerate().skip(3) {
        match part {
            Arg::Simple(_) if at == 5 => command.arg(quota),
            Arg::Simple(bytes) => command.arg(bytes),
            _ => &mut command,
        };
    }
    command
}

/// Whether a node refuses the command before it executes anything: it is unknown there, not allowed
/// to the user, or of another release.
pub(super) fn is_refused(reply: &Value) -> bool {
    let is_refusal = |error: &ServerError| {
        let begins = |words: &str| error.details().is_some_and(|details| details.starts_with(words));
        error.code() == "NOPERM" || begins("unknown command") || begins("invalid quota or time")
    };
    matches!(reply, Value::ServerError(error) if is_refusal(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each question is a command on a server that is asked by many instances.
    #[test]
    fn a_node_without_the_module_is_asked_once_in_each_interval() {
        let probe = ModuleProbe::default();
        assert!(probe.begins(5) && !probe.begins(6));
        probe.answered(&Value::Array(vec![Value::Nil]));
        assert!(!probe.is_present());
        assert!(!probe.begins(5 + INTERVAL_US - 1));
        assert!(probe.begins(5 + INTERVAL_US));
        probe.answered(&Value::Array(vec![Value::Array(vec![Value::SimpleString(
            "slidegate.check1".into(),
        )])]));
        assert!(probe.is_present());
        probe.is_lost(2 * INTERVAL_US);
        assert!(!probe.is_present() && !probe.begins(3 * INTERVAL_US - 1));
        assert!(probe.begins(3 * INTERVAL_US));
    }

    /// The module reads the bytes that the script does, but for the quota.
    #[test]
    fn the_command_has_the_arguments_of_the_script() {
        let mut evalsha = redis::cmd("EVALSHA");
        evalsha.arg("hash").arg(1).arg("key").arg(7).arg("for the script").arg(3).arg(2);
        let of_module = command(&evalsha, b"for the module");
        let parts: Vec<_> = of_module
            .args_iter()
            .map(|part| if let Arg::Simple(bytes) = part { bytes.to_vec() } else { panic!("a cursor") })
            .collect();
        let expected: [&[u8]; 6] = [b"SLIDEGATE.CHECK1", b"key", b"7", b"for the module", b"3", b"2"];
        assert_eq!(parts, expected);
    }
}
