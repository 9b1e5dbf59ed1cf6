//! Session state of a connection, and the commands that clients send when they connect.
//!
//! Clients differ in their handshake (`HELLO`, `AUTH`, `CLIENT SETINFO`, `SELECT 0`, `INFO`,
//! `COMMAND DOCS`) and disconnect at an unknown reply. Error codes such as `NOAUTH` and `WRONGPASS`
//! are therefore Redis's own.

use std::net::SocketAddr;
use std::sync::Arc;

use super::batch::Step;
use super::commands::{COMMANDS, CommandSpec, Name};
use super::error::CommandError;
use super::reply::{Escaped, Reply, RespVersion};
use super::shared::ListenerState;
use super::throttle::QuotaCache;
use super::transaction::Transaction;
use crate::access::attempts::{AuthFailure, Guesser};
use crate::caller::Protocol;
use crate::engine::App;
use crate::listener::Connection;

/// Maximum bytes of a connection name.
const MAX_NAME: usize = 128;
/// The Redis version reported to clients, which select their commands by it.
const REDIS_VERSION: &str = "7.0.0";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Maximum wrong passwords before the connection is closed.
const MAX_FAILURES: u32 = 3;
/// The only user.
const USER: &[u8] = b"default";

#[derive(Debug)]
pub(super) struct Session {
    listener: Arc<ListenerState>,
    pub(super) version: RespVersion,
    authenticated: bool,
    /// Wrong passwords so far. `RESET` does not clear it.
    failures: u32,
    /// From 1, in order of acceptance.
    id: u64,
    /// `None` on a Unix socket.
    peer: Option<SocketAddr>,
    /// The client before authentication.
    connection: Connection,
    name: Vec<u8>,
    /// The last inline quota.
    pub(super) quota_cache: QuotaCache,
    /// Commands queued since `MULTI`. `None` outside a transaction.
    pub(super) transaction: Option<Box<Transaction>>,
}

/// Whether a command is allowed before authentication.
pub(super) fn before_authentication(name: Name) -> bool {
    matches!(name, Name::Auth | Name::Hello | Name::Quit | Name::ResetConnection)
}

impl Session {
    pub(super) fn new(
        listener: Arc<ListenerState>,
        peer: Option<SocketAddr>,
        connection: Connection,
    ) -> Self {
        let id = listener.next_id();
        let authenticated = listener.password.is_none();
        Self {
            listener,
            version: RespVersion::default(),
            authenticated,
            failures: 0,
            id,
            peer,
            connection,
            name: Vec::new(),
            quota_cache: QuotaCache::default(),
            transaction: None,
        }
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// The client for access control. Its credential is a certificate or the port's password.
    pub(super) fn connection(&self) -> Connection {
        let has_password = self.authenticated && self.listener.password.is_some();
        Connection { is_verified: self.connection.is_verified || has_password, ..self.connection }
    }

    /// Executes a command that makes no decision.
    pub(super) fn execute<'b>(
        &mut self,
        name: Name,
        args: &[&[u8]],
        app: &App,
        reply: &mut Reply<'_>,
    ) -> Result<Step<'b>, CommandError> {
        match name {
            Name::Ping => match args {
                [message] => reply.bulk(message),
                _ => reply.simple("PONG"),
            },
            Name::Echo => reply.bulk(args[0]),
            Name::Hello => self.hello(args, app, reply)?,
            Name::Auth => {
                let (user, password) = match args {
                    [user, password] => (*user, *password),
                    _ => (USER, args[0]),
                };
                self.authenticate(user, password, app)?;
                reply.ok();
            }
            Name::Client => self.client(args, reply)?,
            Name::Command => commands(args, reply)?,
            Name::Select if args[0] == b"0" => reply.ok(),
            Name::Select => {
                return Err(CommandError::new(format!(
                    "invalid database `{}`: the only database is 0",
                    Escaped(args[0])
                )));
            }
            Name::Unwatch => reply.ok(),
            Name::Info => reply.text(&self.info(args, app)),
            Name::ResetConnection => {
                self.version = RespVersion::default();
                self.authenticated = self.listener.password.is_none();
                self.name.clear();
                self.transaction = None;
                reply.version = self.version;
                reply.simple("RESET");
            }
            _ => {
                debug_assert_eq!(name, Name::Quit, "every other command is executed elsewhere");
                reply.ok();
                return Ok(Step::Close);
            }
        }
        Ok(Step::Replied)
    }

    /// Executes `MULTI`, `EXEC` and `DISCARD`. The error texts are Redis's own.
    pub(super) fn transact<'b>(&mut self, name: Name, reply: &mut Reply<'_>) -> Step<'b> {
        if name == Name::Multi {
            if self.transaction.is_some() {
                reply.error("ERR MULTI calls can not be nested");
            } else {
                self.transaction = Some(Box::default());
                reply.ok();
            }
            return Step::Replied;
        }
        match (self.transaction.take(), name) {
            (None, Name::Exec) => reply.error("ERR EXEC without MULTI"),
            (None, _) => reply.error("ERR DISCARD without MULTI"),
            (Some(transaction), Name::Exec) if !transaction.has_failed() => {
                return Step::Execute(transaction);
            }
            (Some(_), Name::Exec) => {
                reply.error("EXECABORT Transaction discarded because of previous errors.");
            }
            (Some(_), _) => reply.ok(),
        }
        Step::Replied
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8], app: &App) -> Result<(), CommandError> {
        let Some(expected) = &self.listener.password else {
            return Err(CommandError::new("no password is configured; omit AUTH, or set resp.password"));
        };
        // Both are always compared, so that the time taken reveals neither.
        let is_right = || expected.is(password) & (user == USER);
        let attempts = app.access.attempts();
        let guesser = self.connection.peer.map_or(Guesser::User(self.connection.user), Guesser::Address);
        match attempts.password(Protocol::Resp, guesser, is_right) {
            Ok(()) => {
                self.authenticated = true;
                Ok(())
            }
            Err(AuthFailure::Wrong) => {
                self.failures += 1;
                let detail = "invalid username-password pair or user is disabled.";
                if self.failures < MAX_FAILURES {
                    return Err(CommandError::coded("WRONGPASS", detail));
                }
                let detail =
                    format!("{detail} The connection is closed after {MAX_FAILURES} wrong passwords.");
                Err(CommandError::coded("WRONGPASS", detail).closing())
            }
            // With this code, clients report an authentication failure, not a failed command.
            Err(too_many @ AuthFailure::TooMany { .. }) => {
                Err(CommandError::coded("WRONGPASS", too_many.to_string()).closing())
            }
        }
    }

    fn hello(&mut self, args: &[&[u8]], app: &App, reply: &mut Reply<'_>) -> Result<(), CommandError> {
        let (requested, mut options) = match args {
            [] => (None, args),
            [requested, options @ ..] => (Some(*requested), options),
        };
        let version = match requested {
            None => self.version,
            Some(b"2") => RespVersion::Resp2,
            Some(b"3") => RespVersion::Resp3,
            Some(other) => {
                let detail = format!("unsupported protocol version `{}`; use 2 or 3", Escaped(other));
                return Err(CommandError::coded("NOPROTO", detail));
            }
        };
        let mut name = None;
        loop {
            options = match options {
                [] => break,
                [word, user, password, rest @ ..] if word.eq_ignore_ascii_case(b"AUTH") => {
                    self.authenticate(user, password, app)?;
                    rest
                }
                [word, args, rest @ ..] if word.eq_ignore_ascii_case(b"SETNAME") => {
                    name = Some(connection_name(args)?);
                    rest
                }
                [other, ..] => {
                    let expected = "`AUTH default password` or `SETNAME name`";
                    return Err(CommandError::new(format!(
                        "unexpected argument `{}`; expected {expected}",
                        Escaped(other)
                    )));
                }
            };
        }
        if !self.authenticated {
            let detail = "HELLO requires authentication; send for example `HELLO 3 AUTH default PASSWORD`";
            return Err(CommandError::coded("NOAUTH", detail));
        }
        if let Some(name) = name {
            self.name = name;
        }
        self.version = version;
        self.introduce(reply);
        Ok(())
    }

    /// The reply to `HELLO`, in the chosen version.
    fn introduce(&self, reply: &mut Reply<'_>) {
        reply.version = self.version;
        reply.map(7);
        reply.key("server").text("slidegate");
        reply.key("version").text(VERSION);
        reply.key("proto").int(self.version_number());
        reply.key("id").int(self.id);
        reply.key("mode").text("standalone");
        reply.key("role").text("master");
        reply.key("modules").array(0);
    }

    fn version_number(&self) -> u64 {
        if self.version == RespVersion::Resp3 { 3 } else { 2 }
    }

    fn client(&mut self, args: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), CommandError> {
        let word = args[0].to_ascii_uppercase();
        match (&*word, &args[1..]) {
            (b"ID", []) => reply.int(self.id),
            (b"INFO", []) => {
                let name = String::from_utf8_lossy(&self.name);
                let version = self.version_number();
                let peer = self.peer.map_or_else(|| "unix:0".to_owned(), |peer| peer.to_string());
                reply.text(&format!("id={} addr={peer} name={name} db=0 resp={version}\n", self.id));
            }
            (b"GETNAME", []) if self.name.is_empty() => reply.null(),
            (b"GETNAME", []) => reply.bulk(&self.name),
            (b"SETNAME", [name]) => {
                self.name = connection_name(name)?;
                reply.ok();
            }
            // Accepted and ignored: they have no effect here.
            (b"SETINFO", [_, _]) | (b"NO-EVICT" | b"NO-TOUCH", [_]) => reply.ok(),
            _ => {
                let syntax = CommandSpec::by_word(b"CLIENT").map_or("", |spec| spec.syntax);
                return Err(CommandError::new(format!(
                    "unknown subcommand `{}`; write one of `{syntax}`",
                    Escaped(args[0])
                )));
            }
        }
        Ok(())
    }

    /// Clients wait until `loading` is 0, and read `role`.
    fn info(&self, sections: &[&[u8]], app: &App) -> String {
        let stats = app.store().stats();
        let connected = self.listener.connections.open();
        let all = [
            (
                "Server",
                format!(
                    "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nslidegate_version:{VERSION}\r\nprocess_id:{}\r\n",
                    std::process::id()
                ),
            ),
            (
                "Clients",
                format!("connected_clients:{connected}\r\nmaxclients:{}\r\n", self.listener.max_connections),
            ),
            ("Persistence", "loading:0\r\n".to_owned()),
            ("Stats", format!("total_connections_received:{}\r\n", self.listener.connections.accepted())),
            ("Replication", "role:master\r\nconnected_slaves:0\r\n".to_owned()),
            (
                "Slidegate",
                format!(
                    "keys:{}\r\nmax_keys:{}\r\ndropped_keys:{}\r\nmemory_bytes:{}\r\nmax_memory_bytes:{}\r\nready:{}\r\n",
                    stats.keys,
                    stats.max_keys,
                    stats.dropped,
                    stats.bytes,
                    stats.max_bytes.unwrap_or(0),
                    u8::from(app.readiness.is_ready())
                ),
            ),
        ];
        let is_all = |section: &&[u8]| {
            [&b"all"[..], b"default", b"everything"].iter().any(|word| section.eq_ignore_ascii_case(word))
        };
        let wanted = |section: &str| {
            sections.is_empty()
                || sections.iter().any(is_all)
                || sections.iter().any(|name| name.eq_ignore_ascii_case(section.as_bytes()))
        };
        let wanted = all.iter().filter(|(section, _)| wanted(section));
        wanted.map(|(section, lines)| format!("# {section}\r\n{lines}")).collect::<Vec<_>>().join("\r\n")
    }
}

fn connection_name(name: &[u8]) -> Result<Vec<u8>, CommandError> {
    if name.len() > MAX_NAME || !name.iter().all(u8::is_ascii_graphic) {
        return Err(CommandError::new(format!(
            "invalid connection name `{}`: must be at most {MAX_NAME} printable ASCII characters without spaces",
            Escaped(name)
        )));
    }
    Ok(name.to_vec())
}

/// `COMMAND` and its subcommands.
fn commands(args: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), CommandError> {
    let Some((word, names)) = args.split_first() else {
        reply.array(COMMANDS.len());
        COMMANDS.iter().for_each(|spec| describe(spec, reply));
        return Ok(());
    };
    match &*word.to_ascii_uppercase() {
        b"COUNT" => reply.int(COMMANDS.len() as u64),
        b"LIST" => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|spec| reply.text(&spec.word.to_ascii_lowercase()));
        }
        b"INFO" if names.is_empty() => return commands(&[], reply),
        b"INFO" => {
            reply.array(names.len());
            for name in names {
                match CommandSpec::by_word(name) {
                    Some(spec) => describe(spec, reply),
                    None => reply.null(),
                }
            }
        }
        b"DOCS" => {
            let is_named = |spec: &&CommandSpec| {
                names.is_empty() || names.iter().any(|name| name.eq_ignore_ascii_case(spec.word.as_bytes()))
            };
            reply.map(COMMANDS.iter().filter(is_named).count());
            for spec in COMMANDS.iter().filter(is_named) {
                reply.text(&spec.word.to_ascii_lowercase());
                reply.map(3);
                reply.key("summary").text(spec.summary);
                reply.key("since").text(VERSION);
                reply.key("group").text("generic");
            }
        }
        _ => {
            return Err(CommandError::new(format!(
                "unknown subcommand `{}`; use COUNT, LIST, INFO or DOCS",
                Escaped(word)
            )));
        }
    }
    Ok(())
}

/// The first six elements of Redis's command description.
fn describe(spec: &CommandSpec, reply: &mut Reply<'_>) {
    reply.array(6);
    reply.text(&spec.word.to_ascii_lowercase());
    reply.signed(spec.arity());
    reply.array(1);
    reply.simple("fast");
    for _ in 0..2 {
        reply.int(u64::from(spec.key));
    }
    reply.int(u64::from(spec.key > 0));
}
