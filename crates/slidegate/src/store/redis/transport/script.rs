//! Scripts, their calls, and the commands of the native module that do the same.

use std::collections::HashSet;

use redis::Cmd;

/// A script in two forms, for servers that know the `#!lua` header and for older ones.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    checked: ScriptText,
    plain: ScriptText,
}

/// A script's text and its SHA-1: forty lower-case hexadecimal digits.
#[derive(Debug, Clone)]
pub(crate) struct ScriptText {
    pub(crate) text: String,
    pub(crate) hash: String,
}

/// Script header. With it, Redis 7 and later reject a script that may write before it runs if
/// memory is exhausted, replicas are missing or writes are forbidden. Without it a script could
/// stop half-way.
const CHECKED: &str = "#!lua\n";

impl Script {
    pub(crate) fn new(text: String) -> Self {
        let source =
            |text: String| ScriptText { hash: redis::Script::new(&text).get_hash().to_owned(), text };
        Self { checked: source(format!("{CHECKED}{text}")), plain: source(text) }
    }

    /// The form with the header, or the plain form for an older server.
    pub(crate) fn source(&self, plain: bool) -> &ScriptText {
        if plain { &self.plain } else { &self.checked }
    }
}

/// The call of a script.
pub(crate) struct Call<'c> {
    pub(crate) script: &'c Script,
    pub(crate) keys: &'c [Vec<u8>],
    pub(crate) args: &'c [Vec<u8>],
    /// What a node with the module does instead; `None` if only the script can.
    pub(crate) native: Option<Native<'c>>,
}

impl Call<'_> {
    pub(super) fn evalsha(&self, source: &ScriptText) -> Cmd {
        self.evaluation("EVALSHA", &source.hash)
    }

    /// The same with the text of the script, which the server then keeps.
    pub(super) fn eval(&self, source: &ScriptText) -> Cmd {
        self.evaluation("EVAL", &source.text)
    }

    fn evaluation(&self, name: &str, script: &str) -> Cmd {
        let parts = || self.keys.iter().chain(self.args);
        let bytes = parts().map(Vec::len).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + parts().count(), 64 + script.len() + bytes);
        command.arg(name).arg(script).arg(self.keys.len());
        for part in parts() {
            command.arg(part.as_slice());
        }
        command
    }

    /// The command of the module instead. The arguments of a check are those of the script, but for
    /// the quota, which follows the deadline. Other calls are one argument, and then their keys: a
    /// script is given a key once for each part, the module once.
    pub(super) fn of_module(&self, native: &Native<'_>) -> Cmd {
        let mut command = redis::cmd(native.command.name());
        let argument = (native.argument)();
        if native.command == NativeCommand::Check1 {
            let [latest, _, costs @ ..] = self.args else { return command };
            command.arg(self.keys).arg(latest.as_slice()).arg(argument).arg(costs);
        } else {
            command.arg(argument);
            let mut named = HashSet::with_capacity(self.keys.len());
            for key in self.keys.iter().filter(|key| named.insert(key.as_slice())) {
                command.arg(key.as_slice());
            }
        }
        command
    }
}

/// A command of the module instead of a script.
#[derive(Clone, Copy)]
pub(crate) struct Native<'c> {
    pub(crate) command: NativeCommand,
    /// Makes the argument that the module reads: the quota, or the call. Most nodes need it not.
    pub(crate) argument: &'c (dyn Fn() -> Vec<u8> + Sync),
}

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
    pub(super) const ALL: [Self; 3] = [Self::Check1, Self::Decide, Self::Change];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Check1 => "SLIDEGATE.CHECK1",
            Self::Decide => "SLIDEGATE.DECIDE",
            Self::Change => "SLIDEGATE.CHANGE",
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::Arg;

    use super::*;

    /// With another hash than the server's, every call would reload its script.
    #[test]
    fn a_script_is_known_by_the_sha1_of_its_text() {
        let script = Script::new("return 1".to_owned());
        assert_eq!(script.source(true).hash, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(script.source(true).text, "return 1");
        assert_eq!(script.source(false).text, "#!lua\nreturn 1");
    }

    /// What the module is sent instead of a script with these keys and arguments.
    fn of_module(command: NativeCommand, keys: &[&str], args: &[&str], argument: &str) -> Vec<String> {
        let of = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        let (script, keys, args) = (Script::new("return 1".to_owned()), of(keys), of(args));
        let argument = || argument.as_bytes().to_vec();
        let native = Native { command, argument: &argument };
        let call = Call { script: &script, keys: &keys, args: &args, native: Some(native) };
        let sent = call.of_module(&native);
        let text = |part| if let Arg::Simple(bytes) = part { bytes } else { panic!("a cursor") };
        sent.args_iter().map(|part| String::from_utf8_lossy(text(part)).into_owned()).collect()
    }

    /// The module reads the bytes that the script does, but for the quota.
    #[test]
    fn the_command_has_the_arguments_of_the_script() {
        let args = ["7", "for the script", "3", "2"];
        let sent = of_module(NativeCommand::Check1, &["key"], &args, "for the module");
        assert_eq!(sent, ["SLIDEGATE.CHECK1", "key", "7", "for the module", "3", "2"]);
    }

    /// A server finds the keys of a call behind its first argument.
    #[test]
    fn a_call_is_followed_by_each_key_of_the_script() {
        let sent = of_module(NativeCommand::Decide, &["one", "two", "one"], &["7", "apply"], "call");
        assert_eq!(sent, ["SLIDEGATE.DECIDE", "call", "one", "two"]);
    }
}
