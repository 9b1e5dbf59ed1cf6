//! The command table: finds commands, checks argument counts, and provides the reply to `COMMAND`.

use super::frame::MAX_ARGUMENTS;

/// Command names, grouped by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Check,
    Acquire,
    Request,
    Refund,
    Reset,
    Reserve,
    Settle,
    Extend,
    Cancel,
    Policies,
    CellThrottle,
    CrabThrottle,
    Ping,
    Echo,
    Hello,
    Auth,
    Client,
    Command,
    Select,
    Info,
    Multi,
    Exec,
    Discard,
    Unwatch,
    ResetConnection,
    Quit,
}

/// An entry of the command table.
pub(super) struct CommandSpec {
    pub(super) name: Name,
    pub(super) word: &'static str,
    /// The arguments after the name.
    pub(super) syntax: &'static str,
    pub(super) summary: &'static str,
    /// Minimum number of arguments, including the name.
    pub(super) min: usize,
    /// Maximum number of arguments.
    pub(super) max: usize,
    /// Position of the argument that clients treat as the key, as Redis counts it; 0 if none.
    pub(super) key: u8,
}

const ANY: usize = MAX_ARGUMENTS;

#[rustfmt::skip]
pub(super) const COMMANDS: [CommandSpec; 26] = [
    CommandSpec { name: Name::Check, word: "RL.CHECK", syntax: "policy key [key ...] [COST n] [PEEK]", min: 2, max: ANY, key: 2,
        summary: "Checks one policy; takes one key per attribute of its scope." },
    CommandSpec { name: Name::Acquire, word: "RL.ACQUIRE", syntax: "policy key [key ...] [COST n] [TIMEOUT ms]", min: 2, max: ANY, key: 2,
        summary: "Checks one policy, and waits for its turn instead of being denied at once." },
    CommandSpec { name: Name::Request, word: "RL.REQUEST", syntax: "attribute value [attribute value ...] [COST n] [PEEK]",
        min: 1, max: ANY, key: 0, summary: "Checks all policies that apply; charges all of them or none." },
    CommandSpec { name: Name::Refund, word: "RL.REFUND", syntax: "policy key [key ...] [COST n]", min: 2, max: ANY, key: 2,
        summary: "Refunds cost." },
    CommandSpec { name: Name::Reset, word: "RL.RESET", syntax: "policy key [key ...]", min: 2, max: ANY, key: 2,
        summary: "Clears the usage of a key." },
    CommandSpec { name: Name::Reserve, word: "RL.RESERVE", syntax: "policy key [key ...] [COST n] [TTL ms] [ID id] [TIMEOUT ms]", min: 2, max: ANY, key: 2,
        summary: "Checks one policy and holds the cost until it is settled; returns a ticket." },
    CommandSpec { name: Name::Settle, word: "RL.SETTLE", syntax: "ticket COST n [MORE]", min: 4, max: 5, key: 0,
        summary: "Charges what a reserved request cost so far; without MORE, ends the reservation." },
    CommandSpec { name: Name::Extend, word: "RL.EXTEND", syntax: "ticket [HOLD n] [TTL ms]", min: 2, max: 6, key: 0,
        summary: "Keeps a reservation for its time from now on, or holds more." },
    CommandSpec { name: Name::Cancel, word: "RL.CANCEL", syntax: "ticket", min: 2, max: 2, key: 0,
        summary: "Gives back everything of a reservation." },
    CommandSpec { name: Name::Policies, word: "RL.POLICIES", syntax: "", min: 1, max: 1, key: 0,
        summary: "Lists the policies." },
    CommandSpec { name: Name::CellThrottle, word: "CL.THROTTLE", syntax: "key max_burst count period [quantity]", min: 5, max: 6,
        key: 1, summary: "Checks an inline quota, as redis-cell does." },
    CommandSpec { name: Name::CrabThrottle, word: "THROTTLE", syntax: "key max_burst count period [quantity]", min: 5, max: 6,
        key: 1, summary: "Checks an inline quota, as throttlecrab does." },
    CommandSpec { name: Name::Ping, word: "PING", syntax: "[message]", min: 1, max: 2, key: 0, summary: "Returns PONG or the message." },
    CommandSpec { name: Name::Echo, word: "ECHO", syntax: "message", min: 2, max: 2, key: 0, summary: "Returns the message." },
    CommandSpec { name: Name::Hello, word: "HELLO", syntax: "[2|3 [AUTH default password] [SETNAME name]]", min: 1, max: 7, key: 0,
        summary: "Selects the protocol version." },
    CommandSpec { name: Name::Auth, word: "AUTH", syntax: "[default] password", min: 2, max: 3, key: 0, summary: "Authenticates." },
    CommandSpec { name: Name::Client, word: "CLIENT",
        syntax: "ID|INFO|GETNAME|SETNAME name|SETINFO attribute value|NO-EVICT on|off|NO-TOUCH on|off", min: 2, max: 4,
        key: 0, summary: "Names or describes this connection." },
    CommandSpec { name: Name::Command, word: "COMMAND", syntax: "[COUNT|LIST|INFO [name ...]|DOCS [name ...]]", min: 1, max: ANY,
        key: 0, summary: "Describes the commands." },
    CommandSpec { name: Name::Select, word: "SELECT", syntax: "0", min: 2, max: 2, key: 0, summary: "Does nothing: the only database is 0." },
    CommandSpec { name: Name::Info, word: "INFO", syntax: "[section ...]", min: 1, max: ANY, key: 0, summary: "Describes the server." },
    CommandSpec { name: Name::Multi, word: "MULTI", syntax: "", min: 1, max: 1, key: 0,
        summary: "Queues the following commands until EXEC." },
    CommandSpec { name: Name::Exec, word: "EXEC", syntax: "", min: 1, max: 1, key: 0,
        summary: "Executes the queued commands in order." },
    CommandSpec { name: Name::Discard, word: "DISCARD", syntax: "", min: 1, max: 1, key: 0, summary: "Discards the queued commands." },
    CommandSpec { name: Name::Unwatch, word: "UNWATCH", syntax: "", min: 1, max: 1, key: 0,
        summary: "Does nothing: no key can be watched." },
    CommandSpec { name: Name::ResetConnection, word: "RESET", syntax: "", min: 1, max: 1, key: 0,
        summary: "Resets the connection to its initial state." },
    CommandSpec { name: Name::Quit, word: "QUIT", syntax: "", min: 1, max: ANY, key: 0, summary: "Closes the connection." },
];

impl CommandSpec {
    /// Finds a command by name, ignoring case.
    pub(super) fn by_word(word: &[u8]) -> Option<&'static Self> {
        COMMANDS.iter().find(|spec| spec.word.as_bytes().eq_ignore_ascii_case(word))
    }

    /// The name and its arguments.
    pub(super) fn usage(&self) -> String {
        format!("{} {}", self.word, self.syntax).trim_end().to_owned()
    }

    /// Redis's arity: the number of arguments including the name; negative if that is a minimum.
    pub(super) fn arity(&self) -> i64 {
        #[allow(clippy::cast_possible_wrap)] // at most 80
        let min = self.min as i64;
        if self.min == self.max { min } else { -min }
    }
}
