//! A connection's own state, and the commands that ordinary clients send before they ask for anything.
//!
//! Clients greet in many ways (`HELLO`, `AUTH`, `CLIENT SETINFO`, `SELECT 0`, `INFO`, `COMMAND DOCS`) and give up where an
//! answer is not what they know, so codes such as `NOAUTH` and `WRONGPASS` are Redis's own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Door;
use super::command::{COMMANDS, Known, Name, Step, Wrong};
use super::reply::{Reply, RespVersion, Shown};
use super::throttle::Prepared;
use super::transaction::Transaction;
use crate::access::Connection;
use crate::access::attempts::AuthFailure;
use crate::app::App;
use crate::caller::Protocol;

/// Longest name of a connection, in bytes.
const MAX_NAME: usize = 128;
/// The version of Redis whose protocol is spoken: clients look at it to know what they may send.
const REDIS_VERSION: &str = "7.0.0";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Wrong passwords of one connection before it is closed: people mistype, and programs do not.
const MAX_FAILURES: u32 = 3;
/// The only user there is.
const USER: &[u8] = b"default";

#[derive(Debug)]
pub(super) struct Session {
    door: Arc<Door>,
    pub(super) protocol: RespVersion,
    authenticated: bool,
    /// Wrong passwords so far, those before a `RESET` included.
    failures: u32,
    /// From 1, in the order of arrival.
    id: u64,
    peer: SocketAddr,
    name: Vec<u8>,
    /// The quota that was told last.
    pub(super) told: Prepared,
    /// Commands queued since `MULTI`. `None`: commands are carried out as they come.
    pub(super) transaction: Option<Box<Transaction>>,
}

/// Commands that need no password.
pub(super) fn before_authentication(name: Name) -> bool {
    matches!(name, Name::Auth | Name::Hello | Name::Quit | Name::ResetConnection)
}

impl Session {
    pub(super) fn new(door: Arc<Door>, peer: SocketAddr) -> Self {
        let id = door.arrivals.fetch_add(1, Ordering::Relaxed) + 1;
        let authenticated = door.password.is_none();
        Self {
            door,
            protocol: RespVersion::default(),
            authenticated,
            failures: 0,
            id,
            peer,
            name: Vec::new(),
            told: Prepared::default(),
            transaction: None,
        }
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// The client as rules of access know it: the password of the port is its credential.
    pub(super) fn connection(&self) -> Connection {
        let is_verified = self.authenticated && self.door.password.is_some();
        Connection { peer: Some(self.peer.ip()), is_local: self.door.is_local, is_verified }
    }

    /// Answers a command that decides nothing.
    pub(super) fn answer<'b>(
        &mut self,
        name: Name,
        given: &[&[u8]],
        app: &App,
        reply: &mut Reply<'_>,
    ) -> Result<Step<'b>, Wrong> {
        match name {
            Name::Ping => match given {
                [message] => reply.bulk(message),
                _ => reply.simple("PONG"),
            },
            Name::Echo => reply.bulk(given[0]),
            Name::Hello => self.hello(given, app, reply)?,
            Name::Auth => {
                let (user, password) = match given {
                    [user, password] => (*user, *password),
                    _ => (USER, given[0]),
                };
                self.authenticate(user, password, app)?;
                reply.ok();
            }
            Name::Client => self.client(given, reply)?,
            Name::Command => commands(given, reply)?,
            Name::Select if given[0] == b"0" => reply.ok(),
            Name::Select => {
                return Err(Wrong::new(format!(
                    "there is no database `{}`; there is one, 0",
                    Shown(given[0])
                )));
            }
            Name::Unwatch => reply.ok(),
            Name::Info => reply.text(&self.info(given, app)),
            Name::ResetConnection => {
                self.protocol = RespVersion::default();
                self.authenticated = self.door.password.is_none();
                self.name.clear();
                self.transaction = None;
                reply.protocol = self.protocol;
                reply.simple("RESET");
            }
            _ => {
                debug_assert_eq!(name, Name::Quit, "every other command is answered elsewhere");
                reply.ok();
                return Ok(Step::Goodbye);
            }
        }
        Ok(Step::Answered)
    }

    /// Answers `MULTI`, `EXEC` and `DISCARD`. The errors are Redis's own words.
    pub(super) fn transact<'b>(&mut self, name: Name, reply: &mut Reply<'_>) -> Step<'b> {
        if name == Name::Multi {
            if self.transaction.is_some() {
                reply.error("ERR MULTI calls can not be nested");
            } else {
                self.transaction = Some(Box::default());
                reply.ok();
            }
            return Step::Answered;
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
        Step::Answered
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8], app: &App) -> Result<(), Wrong> {
        let Some(known) = &self.door.password else {
            return Err(Wrong::new("no password is set; leave AUTH out, or set resp.password"));
        };
        // Both are looked at, so that the time tells neither.
        let is_right = || known.is(password) & (user == USER);
        let attempts = app.access.attempts();
        match attempts.password(Protocol::Resp, self.peer.ip(), is_right) {
            Ok(()) => {
                self.authenticated = true;
                Ok(())
            }
            Err(AuthFailure::Wrong) => {
                self.failures += 1;
                let detail = "invalid username-password pair or user is disabled.";
                if self.failures < MAX_FAILURES {
                    return Err(Wrong::coded("WRONGPASS", detail));
                }
                let detail =
                    format!("{detail} The connection is closed after {MAX_FAILURES} wrong passwords.");
                Err(Wrong::coded("WRONGPASS", detail).closing())
            }
            // By this code clients know that it is about the password, and not about their command.
            Err(too_many @ AuthFailure::TooMany { .. }) => {
                Err(Wrong::coded("WRONGPASS", too_many.to_string()).closing())
            }
        }
    }

    fn hello(&mut self, given: &[&[u8]], app: &App, reply: &mut Reply<'_>) -> Result<(), Wrong> {
        let (version, mut options) = match given {
            [] => (None, given),
            [version, options @ ..] => (Some(*version), options),
        };
        let protocol = match version {
            None => self.protocol,
            Some(b"2") => RespVersion::Resp2,
            Some(b"3") => RespVersion::Resp3,
            Some(other) => {
                let detail = format!("version `{}` of the protocol is not spoken; 2 and 3 are", Shown(other));
                return Err(Wrong::coded("NOPROTO", detail));
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
                [word, given, rest @ ..] if word.eq_ignore_ascii_case(b"SETNAME") => {
                    name = Some(connection_name(given)?);
                    rest
                }
                [other, ..] => {
                    let detail = "is not `AUTH default password` or `SETNAME name`, which may stand here";
                    return Err(Wrong::new(format!("`{}` {detail}", Shown(other))));
                }
            };
        }
        if !self.authenticated {
            let detail = "HELLO needs the password: send for example `HELLO 3 AUTH default PASSWORD`";
            return Err(Wrong::coded("NOAUTH", detail));
        }
        if let Some(name) = name {
            self.name = name;
        }
        self.protocol = protocol;
        reply.protocol = protocol;
        reply.map(7);
        reply.text("server");
        reply.text("slidegate");
        reply.text("version");
        reply.text(VERSION);
        reply.text("proto");
        reply.int(if protocol == RespVersion::Resp3 { 3 } else { 2 });
        reply.text("id");
        reply.int(self.id);
        reply.text("mode");
        reply.text("standalone");
        reply.text("role");
        reply.text("master");
        reply.text("modules");
        reply.array(0);
        Ok(())
    }

    fn client(&mut self, given: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), Wrong> {
        let word = given[0].to_ascii_uppercase();
        match (&*word, &given[1..]) {
            (b"ID", []) => reply.int(self.id),
            (b"INFO", []) => {
                let name = String::from_utf8_lossy(&self.name);
                let protocol = if self.protocol == RespVersion::Resp3 { 3 } else { 2 };
                reply.text(&format!("id={} addr={} name={name} db=0 resp={protocol}\n", self.id, self.peer));
            }
            (b"GETNAME", []) if self.name.is_empty() => reply.null(),
            (b"GETNAME", []) => reply.bulk(&self.name),
            (b"SETNAME", [name]) => {
                self.name = connection_name(name)?;
                reply.ok();
            }
            // What library it is, and what the server must not do to it, changes nothing here.
            (b"SETINFO", [_, _]) | (b"NO-EVICT" | b"NO-TOUCH", [_]) => reply.ok(),
            _ => {
                let syntax = Known::by_word(b"CLIENT").map_or("", |known| known.syntax);
                return Err(Wrong::new(format!(
                    "`{}` is not so known; write one of `{syntax}`",
                    Shown(given[0])
                )));
            }
        }
        Ok(())
    }

    /// Clients wait until `loading` is 0 and look for a `role`.
    fn info(&self, sections: &[&[u8]], app: &App) -> String {
        let stats = app.store().stats();
        let connected = self.door.connected();
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
                format!("connected_clients:{connected}\r\nmaxclients:{}\r\n", self.door.max_connections),
            ),
            ("Persistence", "loading:0\r\n".to_owned()),
            (
                "Stats",
                format!("total_connections_received:{}\r\n", self.door.arrivals.load(Ordering::Relaxed)),
            ),
            ("Replication", "role:master\r\nconnected_slaves:0\r\n".to_owned()),
            (
                "Slidegate",
                format!(
                    "keys:{}\r\nmax_keys:{}\r\ndropped_keys:{}\r\nready:{}\r\n",
                    stats.keys,
                    stats.max_keys,
                    stats.dropped,
                    u8::from(app.readiness.is_ready())
                ),
            ),
        ];
        let is_all = |asked: &&[u8]| {
            [&b"all"[..], b"default", b"everything"].iter().any(|word| asked.eq_ignore_ascii_case(word))
        };
        let wanted = |section: &str| {
            sections.is_empty()
                || sections.iter().any(is_all)
                || sections.iter().any(|asked| asked.eq_ignore_ascii_case(section.as_bytes()))
        };
        let told = all.iter().filter(|(section, _)| wanted(section));
        told.map(|(section, lines)| format!("# {section}\r\n{lines}")).collect::<Vec<_>>().join("\r\n")
    }
}

fn connection_name(name: &[u8]) -> Result<Vec<u8>, Wrong> {
    if name.len() > MAX_NAME || !name.iter().all(u8::is_ascii_graphic) {
        return Err(Wrong::new(format!(
            "the name `{}` is not up to {MAX_NAME} letters, digits and signs without blanks",
            Shown(name)
        )));
    }
    Ok(name.to_vec())
}

/// `COMMAND` and what may follow it.
fn commands(given: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), Wrong> {
    let Some((word, names)) = given.split_first() else {
        reply.array(COMMANDS.len());
        COMMANDS.iter().for_each(|known| describe(known, reply));
        return Ok(());
    };
    match &*word.to_ascii_uppercase() {
        b"COUNT" => reply.int(COMMANDS.len() as u64),
        b"LIST" => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|known| reply.text(&known.word.to_ascii_lowercase()));
        }
        b"INFO" if names.is_empty() => return commands(&[], reply),
        b"INFO" => {
            reply.array(names.len());
            for name in names {
                match Known::by_word(name) {
                    Some(known) => describe(known, reply),
                    None => reply.null(),
                }
            }
        }
        b"DOCS" => {
            let asked = |known: &&Known| {
                names.is_empty() || names.iter().any(|name| name.eq_ignore_ascii_case(known.word.as_bytes()))
            };
            reply.map(COMMANDS.iter().filter(asked).count());
            for known in COMMANDS.iter().filter(asked) {
                reply.text(&known.word.to_ascii_lowercase());
                reply.map(3);
                reply.text("summary");
                reply.text(known.summary);
                reply.text("since");
                reply.text(VERSION);
                reply.text("group");
                reply.text("generic");
            }
        }
        _ => {
            let known = "COUNT, LIST, INFO and DOCS";
            return Err(Wrong::new(format!("`{}` is none of {known}, which may stand here", Shown(word))));
        }
    }
    Ok(())
}

/// The first six members of what Redis tells of a command.
fn describe(known: &Known, reply: &mut Reply<'_>) {
    reply.array(6);
    reply.text(&known.word.to_ascii_lowercase());
    reply.signed(known.arity());
    reply.array(1);
    reply.simple("fast");
    for _ in 0..2 {
        reply.int(u64::from(known.key));
    }
    reply.int(u64::from(known.key > 0));
}
