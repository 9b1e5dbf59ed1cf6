//! A managed Redis offering: a real server behind a proxy that enforces the offering's restrictions.
//!
//! The proxy refuses commands by name. The server enforces restrictions on scripts: before each command, the
//! proxy's user gets the permissions that the rules leave for it. Messages are not forwarded, so nobody can
//! subscribe, and clients of the proxy cache no denial.

use std::time::Duration;

use super::acl;
use super::fake::{FakeRedis, FakeReply, greet};
use super::resp::{Command, Connection, Reply};
use super::server::RedisServer;

/// Timeout of a reply on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// The restrictions of an offering.
#[derive(Debug, Clone, Copy)]
pub struct OfferRules {
    /// Commands not offered, in upper case: `CONFIG`, or one subcommand: `CLIENT KILL`.
    pub refused: &'static [&'static str],
    /// Whether scripts may call `TIME`. Clients always may.
    pub time_in_scripts: bool,
    /// Whether scripts may use undeclared keys and be called without a key.
    pub undeclared_keys: bool,
}

/// A running proxy. Ends when dropped.
pub struct Offer(FakeRedis);

impl Offer {
    /// A proxy in front of this server. Nobody else may use the server's user of [`acl::MINIMUM`], which gets
    /// all other permissions.
    pub fn before(server: &RedisServer, rules: OfferRules) -> Self {
        server.admin(&["ACL", "SETUSER", acl::USER, "+@all", "~*", "allchannels"]);
        let mut admin = Connection::unix(&server.socket(), PATIENCE).unwrap();
        let mut user = server.connect();
        assert!(!matches!(user.call(&["AUTH", acl::USER, acl::PASSWORD]).unwrap(), Reply::Error(_)));
        Self(FakeRedis::start(move |command| {
            if let Some(refusal) = rules.refusal(command) {
                return FakeReply::from(format!("-ERR {refusal}\r\n").as_str());
            }
            if let Some(greeting) = greet(command) {
                return greeting;
            }
            let set = admin.call(&rules.rights(command)).unwrap();
            assert_eq!(set, Reply::Bytes(b"OK".into()));
            user.relay(command).unwrap().into()
        }))
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// All commands so far.
    pub fn heard(&self) -> Vec<Command> {
        self.0.heard()
    }
}

impl OfferRules {
    /// Why the proxy refuses a command.
    fn refusal(&self, command: &Command) -> Option<String> {
        let word = |at: usize| command.get(at).map(|word| String::from_utf8_lossy(word).to_ascii_uppercase());
        let name = word(0)?;
        let with_subcommand = format!("{name} {}", word(1).unwrap_or_default());
        if name == "SUBSCRIBE"
            || self.refused.iter().any(|refused| [&name, &with_subcommand].contains(&&(*refused).to_owned()))
        {
            return Some(format!("unknown command `{}`", name.to_lowercase()));
        }
        let is_keyless = !self.undeclared_keys && declared_keys(command).is_some_and(<[_]>::is_empty);
        is_keyless.then(|| "a script must declare a key".to_owned())
    }

    /// The command that sets the user's permissions for this command.
    fn rights(&self, command: &Command) -> Command {
        let keys = declared_keys(command);
        let time: &[u8] = if keys.is_none() || self.time_in_scripts { b"+time" } else { b"-time" };
        let mut rights: Command = [b"ACL", b"SETUSER" as &[u8], acl::USER.as_bytes(), time, b"resetkeys"]
            .map(<[u8]>::to_vec)
            .into();
        match keys {
            Some(keys) if !self.undeclared_keys => rights.extend(keys.iter().map(|key| pattern(key))),
            _ => rights.push(b"~*".into()),
        }
        rights
    }
}

/// The keys declared by a script call. `None` for other commands.
fn declared_keys(command: &Command) -> Option<&[Vec<u8>]> {
    let [name, _, count, keys @ ..] = command.as_slice() else { return None };
    let is_call = [&b"EVAL"[..], b"EVALSHA"].iter().any(|one| name.eq_ignore_ascii_case(one));
    let count: usize = str::from_utf8(count).ok()?.parse().ok()?;
    is_call.then(|| &keys[..count])
}

/// The pattern that matches only this key.
fn pattern(key: &[u8]) -> Vec<u8> {
    let escaped = key.iter().flat_map(|byte| match byte {
        b'*' | b'?' | b'[' | b']' | b'\\' => vec![b'\\', *byte],
        _ => vec![*byte],
    });
    std::iter::once(b'~').chain(escaped).collect()
}
