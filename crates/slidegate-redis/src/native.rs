//! Commands of the native module. Servers that have it run them instead of scripts.

use std::collections::HashSet;

use redis::Cmd;

/// A command of the module. Its number is its index in [`NAMES`](Self::NAMES).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NativeCommand {
    /// Checks one key.
    Check1,
    /// Decides any call.
    Decide,
    /// Changes holds.
    Change,
}

impl NativeCommand {
    /// The commands' names on the server.
    pub(crate) const NAMES: &[&str] = &["SLIDEGATE.CHECK1", "SLIDEGATE.DECIDE", "SLIDEGATE.CHANGE"];

    /// The command that replaces a script with these keys and arguments. A check has the script's
    /// arguments, except that the quota is `argument` and follows the deadline. Other calls are one
    /// argument, then their keys: a script gets a key once per part, the module once.
    pub(crate) fn call(self, keys: &[Vec<u8>], args: &[Vec<u8>], argument: Vec<u8>) -> Cmd {
        let mut command = redis::cmd(Self::NAMES[self as usize]);
        if self == Self::Check1 {
            let [latest, _, costs @ ..] = args else { return command };
            command.arg(keys).arg(latest.as_slice()).arg(argument).arg(costs);
        } else {
            command.arg(argument);
            let mut named = HashSet::with_capacity(keys.len());
            for key in keys.iter().filter(|key| named.insert(key.as_slice())) {
                command.arg(key.as_slice());
            }
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use redis::Arg;

    use super::*;

    /// The arguments that the module gets instead of a script with these keys and arguments.
    fn sent(command: NativeCommand, keys: &[&str], args: &[&str], argument: &str) -> Vec<String> {
        let of = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        let sent = command.call(&of(keys), &of(args), argument.as_bytes().to_vec());
        let text = |part| if let Arg::Simple(bytes) = part { bytes } else { panic!("a cursor") };
        sent.args_iter().map(|part| String::from_utf8_lossy(text(part)).into_owned()).collect()
    }

    /// The module reads the bytes that the script does, but for the quota.
    #[test]
    fn the_command_has_the_arguments_of_the_script() {
        let args = ["7", "for the script", "3", "2"];
        let sent = sent(NativeCommand::Check1, &["key"], &args, "for the module");
        assert_eq!(sent, ["SLIDEGATE.CHECK1", "key", "7", "for the module", "3", "2"]);
    }

    /// A server finds the keys of a call behind its first argument.
    #[test]
    fn a_call_is_followed_by_each_key_of_the_script() {
        let sent = sent(NativeCommand::Decide, &["one", "two", "one"], &["7", "apply"], "call");
        assert_eq!(sent, ["SLIDEGATE.DECIDE", "call", "one", "two"]);
    }
}
