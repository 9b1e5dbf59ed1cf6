//! Whether a node has the native module, whose command decides what the script for one key does.
//!
//! A node is asked in the background: until it has answered, and while it has no module, calls run
//! the script. A node that turns out to have lost the module has executed nothing, so the same call
//! runs the script.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use redis::{Arg, Cmd, ServerError, Value};

/// How often a node without the module is asked, in microseconds. It takes the module's command as
/// soon as it is loaded, within this.
const INTERVAL_US: u64 = 30_000_000;

/// A command of the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NativeCommand {
    /// Does what the script for one key does. The other commands came with later versions.
    Check1,
    /// Decides any call.
    Decide,
    /// Changes holds.
    Change,
}

impl NativeCommand {
    const ALL: [Self; 3] = [Self::Check1, Self::Decide, Self::Change];

    fn name(self) -> &'static str {
        match self {
            Self::Check1 => "SLIDEGATE.CHECK1",
            Self::Decide => "SLIDEGATE.DECIDE",
            Self::Change => "SLIDEGATE.CHANGE",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What is known of a node's module.
#[derive(Debug, Default)]
pub(super) struct ModuleProbe {
    /// The bits of the commands that it has.
    commands: AtomicU8,
    /// The time of the node at which to ask again.
    ask_at_us: AtomicU64,
}

impl ModuleProbe {
    pub(super) fn has(&self, command: NativeCommand) -> bool {
        self.commands.load(Ordering::Relaxed) & command.bit() != 0
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
        let Value::Array(items) = reply else { return self.commands.store(0, Ordering::Relaxed) };
        let is_known = |item: &Value| matches!(item, Value::Array(info) if !info.is_empty());
        let known = NativeCommand::ALL.into_iter().zip(items).filter(|(_, item)| is_known(item));
        let commands = known.fold(0, |bits, (command, _)| bits | command.bit());
        self.commands.store(commands, Ordering::Relaxed);
    }

    /// The node does not execute a command any more.
    pub(super) fn is_lost(&self, command: NativeCommand, now_us: u64) {
        self.commands.fetch_and(!command.bit(), Ordering::Relaxed);
        self.ask_at_us.store(now_us.saturating_add(INTERVAL_US), Ordering::Relaxed);
    }
}

/// Asks a node which of the commands it knows.
pub(super) fn question() -> Cmd {
    let mut question = redis::cmd("COMMAND");
    question.arg("INFO").arg(&NativeCommand::ALL.map(NativeCommand::name));
    question
}

/// The module's command for the `EVALSHA` of a script, with the argument that the module reads.
pub(super) fn command(command: NativeCommand, evalsha: &Cmd, keys: usize, argument: &[u8]) -> Cmd {
    match command {
        NativeCommand::Check1 => check(evalsha, argument),
        NativeCommand::Decide | NativeCommand::Change => call(command, evalsha, keys, argument),
    }
}

/// The call, and then its keys. A script is given a key once for each part, the module once.
fn call(command: NativeCommand, evalsha: &Cmd, keys: usize, packed: &[u8]) -> Cmd {
    let mut command = redis::cmd(command.name());
    command.arg(packed);
    let mut named = HashSet::with_capacity(keys);
    // EVALSHA hash N keys arguments.
    for part in evalsha.args_iter().skip(3).take(keys) {
        if let Arg::Simple(key) = part
            && named.insert(key)
        {
            command.arg(key);
        }
    }
    command
}

/// The same arguments, but for the packed quota.
fn check(evalsha: &Cmd, quota: &[u8]) -> Cmd {
    // EVALSHA hash 1 key latest quota costs.
    let mut command = redis::cmd(NativeCommand::Check1.name());
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
        error.code() == "NOPERM"
            || ["unknown command", "invalid quota or time", "invalid call"].into_iter().any(begins)
    };
    matches!(reply, Value::ServerError(error) if is_refusal(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str) -> Value {
        Value::Array(vec![Value::SimpleString(name.into())])
    }

    /// Each question is a command on a server that is asked by many instances.
    #[test]
    fn a_node_without_the_module_is_asked_once_in_each_interval() {
        let probe = ModuleProbe::default();
        let has = || NativeCommand::ALL.map(|command| probe.has(command));
        assert!(probe.begins(5) && !probe.begins(6));
        probe.answered(&Value::Array(vec![Value::Nil; 3]));
        assert_eq!(has(), [false; 3]);
        assert!(!probe.begins(5 + INTERVAL_US - 1));
        assert!(probe.begins(5 + INTERVAL_US));
        probe.answered(&Value::Array(
            ["slidegate.check1", "slidegate.decide", "slidegate.change"].map(info).into(),
        ));
        assert_eq!(has(), [true; 3]);
        probe.is_lost(NativeCommand::Decide, 2 * INTERVAL_US);
        assert_eq!(has(), [true, false, true]);
        assert!(!probe.begins(3 * INTERVAL_US - 1) && probe.begins(3 * INTERVAL_US));
    }

    /// Nodes of one fleet have different versions of the module while it is upgraded.
    #[test]
    fn a_node_with_the_first_version_has_one_command() {
        let probe = ModuleProbe::default();
        probe.answered(&Value::Array(vec![info("slidegate.check1"), Value::Nil, Value::Nil]));
        assert_eq!(NativeCommand::ALL.map(|command| probe.has(command)), [true, false, false]);
        probe.answered(&Value::Okay);
        assert!(!probe.has(NativeCommand::Check1));
    }

    fn parts(command: &Cmd) -> Vec<Vec<u8>> {
        let simple = |part| if let Arg::Simple(bytes) = part { bytes } else { panic!("a cursor") };
        command.args_iter().map(|part| simple(part).to_vec()).collect()
    }

    /// The module reads the bytes that the script does, but for the quota.
    #[test]
    fn the_command_has_the_arguments_of_the_script() {
        let mut evalsha = redis::cmd("EVALSHA");
        evalsha.arg("hash").arg(1).arg("key").arg(7).arg("for the script").arg(3).arg(2);
        let of_module = command(NativeCommand::Check1, &evalsha, 1, b"for the module");
        let expected: [&[u8]; 6] = [b"SLIDEGATE.CHECK1", b"key", b"7", b"for the module", b"3", b"2"];
        assert_eq!(parts(&of_module), expected);
    }

    /// A server finds the keys of a call behind its first argument.
    #[test]
    fn a_call_is_followed_by_each_key_of_the_script() {
        let mut evalsha = redis::cmd("EVALSHA");
        evalsha.arg("hash").arg(3).arg("one").arg("two").arg("one").arg(7).arg("apply");
        let decide = command(NativeCommand::Decide, &evalsha, 3, b"call");
        assert_eq!(parts(&decide), [&b"SLIDEGATE.DECIDE"[..], b"call", b"one", b"two"]);
    }
}
