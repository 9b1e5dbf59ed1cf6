//! Scripts, script calls, and the module commands that replace them.

use redis::Cmd;

/// A script in two forms: with the `#!lua` header, and without it for older servers.
#[derive(Debug, Clone)]
pub struct Script {
    checked: ScriptText,
    plain: ScriptText,
}

/// A script's text and its SHA-1: forty lower-case hexadecimal digits.
#[derive(Debug, Clone)]
pub(crate) struct ScriptText {
    pub(crate) text: String,
    pub(crate) hash: String,
}

/// Script header. With it, Redis 7 and later reject a script that may write before it runs if memory is
/// exhausted, replicas are missing or writes are forbidden. Without it a script could stop halfway.
const CHECKED: &str = "#!lua\n";

impl Script {
    /// A script with this text.
    #[must_use]
    pub fn new(text: String) -> Self {
        let source =
            |text: String| ScriptText { hash: redis::Script::new(&text).get_hash().to_owned(), text };
        Self { checked: source(format!("{CHECKED}{text}")), plain: source(text) }
    }

    /// The script's original text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.plain.text
    }

    /// The form with the header, or the plain form for an older server.
    pub(crate) fn source(&self, plain: bool) -> &ScriptText {
        if plain { &self.plain } else { &self.checked }
    }
}

/// A script call.
#[derive(Debug)]
pub struct Call<'c> {
    /// The script.
    pub script: &'c Script,
    /// Its `KEYS`, all in one slot.
    pub keys: &'c [Vec<u8>],
    /// Its `ARGV`.
    pub args: &'c [Vec<u8>],
    /// The native command for nodes with the module; `None` if only the script can do it.
    pub native: Option<Native<'c>>,
}

impl Call<'_> {
    pub(crate) fn evalsha(&self, source: &ScriptText) -> Cmd {
        self.evaluation("EVALSHA", &source.hash)
    }

    /// `EVAL` with the script's text, which the server then keeps.
    pub(crate) fn eval(&self, source: &ScriptText) -> Cmd {
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
}

/// A command of the caller's module instead of a script. If a node rejects it, it executes the script: the
/// command is unknown, not allowed, or its error begins with `ERR invalid call`.
#[derive(Clone, Copy)]
pub struct Native<'c> {
    /// Its index in [`Application::native`](crate::Application::native).
    pub command: usize,
    /// Builds the command, if the node has it.
    pub build: &'c (dyn Fn() -> Cmd + Sync),
}

impl std::fmt::Debug for Native<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native").field("command", &self.command).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a hash other than the server's, every call would reload its script.
    #[test]
    fn a_script_is_known_by_the_sha1_of_its_text() {
        let script = Script::new("return 1".to_owned());
        assert_eq!(script.source(true).hash, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(script.source(true).text, "return 1");
        assert_eq!(script.source(false).text, "#!lua\nreturn 1");
    }
}
