//! What an operator sets, on every path that decides or charges, in every store.
//!
//! The table says for each control and each path what becomes of a request. A path or a control without
//! a cell fails the test, so that a new one cannot be forgotten.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use serde_json::{Value, json};
use slidegate_testkit::redis::{Connection, RedisServer, Reply};
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};
use tokio::runtime::Runtime;

use crate::rls::client::{ask, client, user};

mod queued;
mod tokens;

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Every key has used 10 of 100, or used 5 and holds 5. Each path then asks for 1 more.
///
/// - `refused`: the control says that it cannot apply there.
/// - `charged`: what was used is recorded, whatever is set.
/// - `repeated`: the first answer, which charged or held what it says. Nothing is added.
/// - `error`, `unknown`: the policy that was named, or all policies of the ticket, are gone.
const TABLE: &str = "
path          | none     | block    | unblock  | override lowered | override raised | override cleared | limit lowered | limit raised | shadow   | removed
check         | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
check by GET  | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
batch         | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
acquire       | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
check waiting | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
auth caddy    | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
auth nginx    | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
RL.CHECK      | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | error
RL.ACQUIRE    | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | error
RL.REQUEST    | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
CL.THROTTLE   | allowed  | denied   | allowed  | refused          | refused         | refused          | refused       | refused      | refused  | allowed
THROTTLE      | allowed  | denied   | allowed  | refused          | refused         | refused          | refused       | refused      | refused  | allowed
Envoy         | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
Envoy's limit | allowed  | denied   | allowed  | allowed          | allowed         | allowed          | allowed       | allowed      | allowed  | allowed
reserve       | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
RL.RESERVE    | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | error
extend        | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | unknown
RL.EXTEND     | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | unknown
extend time   | allowed  | allowed  | allowed  | allowed          | allowed         | allowed          | allowed       | allowed      | allowed  | unknown
settle        | charged  | charged  | charged  | charged          | charged         | charged          | charged       | charged      | charged  | unknown
settle part   | charged  | charged  | charged  | charged          | charged         | charged          | charged       | charged      | charged  | unknown
RL.SETTLE     | charged  | charged  | charged  | charged          | charged         | charged          | charged       | charged      | charged  | unknown
check again   | repeated | denied   | repeated | repeated         | repeated        | repeated         | repeated      | repeated     | repeated | allowed
reserve again | repeated | denied   | repeated | repeated         | repeated        | repeated         | repeated      | repeated     | repeated | allowed
events        | allowed  | denied   | allowed  | denied           | allowed         | allowed          | denied        | allowed      | allowed  | allowed
";

const POLICY: &str = "per-user";
const CONFIG: &str = "
resp: {listen: '127.0.0.1:0'}
grpc: {listen: '127.0.0.1:0'}
auth: {preset: caddy}
";
const POLICIES: &str = "policies: [{name: per-user, scope: [user], quota: 100/1h}]\n";

/// What a control does to a policy and a key of it: methods, paths and bodies.
fn steps(control: &str, policy: &str, key: &str) -> Vec<(&'static str, String, Value)> {
    let of_key = |action: &str, body: Value| ("POST", format!("/v1/keys/{policy}/{key}/{action}"), body);
    let of_policy = |body: Value| ("PUT", format!("/v1/policies/{policy}"), body);
    let overridden = |limit: u64| of_key("override", json!({ "quota": format!("{limit}/1h"), "for": "1h" }));
    let limited = |limit: u64| of_policy(json!({ "limit": limit }));
    let (block, none) = (of_key("block", json!({ "for": "1h" })), json!({}));
    match control {
        "none" | "removed" => vec![],
        "block" => vec![block],
        "unblock" => vec![block, of_key("unblock", none)],
        "override lowered" => vec![overridden(10)],
        "override raised" => vec![limited(10), overridden(100)],
        "override cleared" => vec![overridden(10), of_key("clear-override", none)],
        "limit lowered" => vec![limited(10)],
        "limit raised" => vec![limited(10), limited(100)],
        "shadow" => vec![of_policy(json!({ "limit": 10, "mode": "shadow" }))],
        other => panic!("the table has a control `{other}` that the test does not know"),
    }
}

/// A key that a path is tried with, and what was made of it before the control.
struct Cell<'t> {
    path: &'t str,
    key: String,
    ticket: String,
    events: Option<BufReader<TcpStream>>,
    expected: &'t str,
}

/// An instance, with connections of each protocol.
struct Instance {
    server: Server,
    file: String,
    resp: u16,
}

impl Instance {
    fn start(folder: &TempDir, name: &str, store: &str) -> Self {
        let name = format!("{name}.yaml");
        let file = folder.file(&name, format!("{CONFIG}{store}{POLICIES}"));
        let server = Server::start(&["--config", &file]);
        let resp = server.address_of("resp").rsplit(':').next().unwrap().parse().unwrap();
        Self { server, file, resp }
    }

    /// Puts other policies in force, and waits for it.
    fn reload(&self, store: &str, policies: &str) {
        self.server.reload(&self.file, &format!("{CONFIG}{store}{policies}"), "");
    }

    fn post(&self, path: &str, body: &Value, headers: &str) -> (u16, Value) {
        let answer = self.server.ask_with(headers, "POST", path, Some(&body.to_string()));
        (answer.status, answer.json())
    }

    fn command(&self, line: &str) -> Reply {
        let words: Vec<_> = line.split(' ').collect();
        Connection::tcp(self.resp, PATIENCE).unwrap().call(&words).unwrap()
    }

    /// What a key has used, and what it holds.
    fn usage(&self, key: &str) -> (u64, u64) {
        let view = self.server.get(&format!("/v1/keys/{POLICY}/{key}")).json();
        (view["used"].as_u64().unwrap(), view["held"].as_u64().unwrap())
    }

    /// What every key has before the control.
    fn prepare<'t>(&self, path: &'t str, control: &str, expected: &'t str) -> Cell<'t> {
        let key = format!("{path}-{control}").replace([' ', '\''], "-");
        let mut cell = Cell { path, ticket: String::new(), events: None, expected, key };
        let key = &cell.key;
        let policy = cell.policy();
        if policy != POLICY {
            self.command(&format!("{policy} {key} 99 100 3600 10"));
            return cell;
        }
        let ask = |cost: u64| json!({ "attributes": { "user": key }, "cost": cost });
        let id = format!("idempotency-key: {key}\r\n");
        let reserves =
            ["extend", "RL.EXTEND", "extend time", "settle", "settle part", "RL.SETTLE", "reserve again"];
        let (route, id) = match path {
            _ if reserves.contains(&path) => ("/v1/reserve", if path == "reserve again" { &*id } else { "" }),
            "check again" => ("/v1/check", &*id),
            _ => ("/v1/check", ""),
        };
        for (route, headers) in [("/v1/check", ""), (route, id)] {
            let (status, answer) = self.post(route, &ask(5), headers);
            assert_eq!(status, 200, "{path}, {control}: {answer}");
            cell.ticket = answer["ticket"].as_str().unwrap_or_default().to_owned();
        }
        if path == "events" {
            let mut stream = self.server.connect();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let head = format!(
                "GET /v1/events?policy={POLICY}&key={key} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            let mut stream = BufReader::new(stream);
            let mut status = String::new();
            stream.read_line(&mut status).unwrap();
            assert!(status.contains("200"), "{status}");
            cell.events = Some(stream);
        }
        cell
    }

    /// What becomes of one more on a path.
    fn run(&self, cell: &mut Cell<'_>, runtime: &Runtime) -> String {
        let Cell { path, key, ticket, .. } = cell;
        let one = json!({ "attributes": { "user": key }, "cost": 1 });
        let of_status = |status: u16| match status {
            200 => "allowed",
            429 | 403 => "denied",
            404 => "unknown",
            other => panic!("status {other}"),
        };
        let of_reply = |reply: Reply, allowed: i64| match reply {
            Reply::List(items) => {
                if items[0] == Reply::Integer(allowed) {
                    "allowed"
                } else {
                    "denied"
                }
            }
            Reply::Error(_) => "error",
            other => panic!("{other}"),
        };
        let of_change = |reply: Reply| {
            let Reply::List(items) = reply else { panic!("{reply}") };
            let outcome = items[0].to_string();
            if outcome == "changed" { "allowed".to_owned() } else { outcome }
        };
        let change = |route: &str, body: Value| {
            let (status, answer) = self.post(route, &body, "");
            println!("{key}: {status} {answer}");
            of_status(status)
        };
        let charged = |outcome: &str| match outcome {
            "allowed" => {
                assert_eq!(self.usage(key).0, 12, "all that was used is recorded: {key}");
                "charged".to_owned()
            }
            other => other.to_owned(),
        };
        let get = |path: &str| {
            let fields = "x-original-method: GET\r\nx-original-uri: /\r\nx-forwarded-method: GET\r\nx-forwarded-uri: /\r\n\
                          x-forwarded-host: a.example\r\n";
            of_status(self.server.ask_with(fields, "GET", path, None).status)
        };
        match *path {
            "check" => of_status(self.post("/v1/check", &one, "").0).to_owned(),
            "acquire" => {
                let mut waiting = one.clone();
                waiting["timeout_ms"] = json!(0);
                of_status(self.post("/v1/acquire", &waiting, "").0).to_owned()
            }
            "check waiting" => of_status(self.post("/v1/check", &one, "prefer: wait=0\r\n").0).to_owned(),
            "check by GET" => get(&format!("/v1/check?user={key}")).to_owned(),
            "batch" => {
                let (status, answer) = self.post("/v1/check/batch", &json!({ "requests": [one] }), "");
                assert_eq!(status, 200);
                if answer["decisions"][0]["allowed"] == true { "allowed" } else { "denied" }.to_owned()
            }
            "auth caddy" => get(&format!("/v1/auth/caddy?user={key}")).to_owned(),
            "auth nginx" => get(&format!("/v1/auth/nginx?user={key}")).to_owned(),
            "RL.CHECK" => of_reply(self.command(&format!("RL.CHECK {POLICY} {key}")), 1).to_owned(),
            "RL.ACQUIRE" => {
                of_reply(self.command(&format!("RL.ACQUIRE {POLICY} {key} TIMEOUT 0")), 1).to_owned()
            }
            "RL.REQUEST" => of_reply(self.command(&format!("RL.REQUEST user {key}")), 1).to_owned(),
            "CL.THROTTLE" => of_reply(self.command(&format!("CL.THROTTLE {key} 99 100 3600")), 0).to_owned(),
            "THROTTLE" => of_reply(self.command(&format!("THROTTLE {key} 99 100 3600")), 1).to_owned(),
            "Envoy" | "Envoy's limit" => runtime.block_on(async {
                let own = RateLimitOverride { requests_per_unit: 100, unit: Unit::Hour.into() };
                let limit = (*path == "Envoy's limit").then_some(own);
                let asked = [RateLimitDescriptor { limit, ..user(key) }];
                let answer = ask(&mut client(&self.server).await, &asked, 1).await.unwrap();
                if answer.overall_code() == Code::Ok { "allowed" } else { "denied" }.to_owned()
            }),
            "reserve" => change("/v1/reserve", one).to_owned(),
            "RL.RESERVE" => of_reply(self.command(&format!("RL.RESERVE {POLICY} {key}")), 1).to_owned(),
            "extend" => change("/v1/extend", json!({ "ticket": ticket, "hold": 6 })).to_owned(),
            "RL.EXTEND" => of_change(self.command(&format!("RL.EXTEND {ticket} HOLD 6"))),
            "extend time" => change("/v1/extend", json!({ "ticket": ticket, "ttl": "5m" })).to_owned(),
            "settle" => charged(change("/v1/settle", json!({ "ticket": ticket, "cost": 7 }))),
            "settle part" => {
                charged(change("/v1/settle", json!({ "ticket": ticket, "cost": 7, "final": false })))
            }
            "RL.SETTLE" => charged(&of_change(self.command(&format!("RL.SETTLE {ticket} COST 7")))),
            "check again" | "reserve again" => {
                let route = if *path == "check again" { "/v1/check" } else { "/v1/reserve" };
                let again = json!({ "attributes": { "user": key }, "cost": 5 });
                let (status, answer) = self.post(route, &again, &format!("idempotency-key: {key}\r\n"));
                match of_status(status) {
                    "allowed" if !answer["policies"].as_array().unwrap().is_empty() => {
                        let (used, held) = if *path == "check again" { (10, 0) } else { (5, 5) };
                        assert_eq!(self.usage(key), (used, held), "nothing is added: {key}");
                        "repeated".to_owned()
                    }
                    other => other.to_owned(),
                }
            }
            "events" => {
                let outcome = of_status(self.post("/v1/check", &one, "").0);
                if outcome == "denied" {
                    let mut lines = cell.events.take().unwrap().lines().map_while(Result::ok);
                    let shown = lines.find(|line| line.starts_with("data: ")).unwrap();
                    assert!(shown.contains(&format!("\"key\":\"{key}\"")), "{shown}");
                }
                outcome.to_owned()
            }
            other => panic!("the table has a path `{other}` that the test does not know"),
        }
    }
}

impl Cell<'_> {
    fn policy(&self) -> &str {
        if self.path.ends_with("THROTTLE") { self.path } else { POLICY }
    }
}

/// The columns and the rows of the table.
fn table() -> (Vec<&'static str>, Vec<(&'static str, Vec<&'static str>)>) {
    let cells = |line: &'static str| line.split('|').map(str::trim).collect::<Vec<_>>();
    let mut lines = TABLE.lines().filter(|line| !line.is_empty()).map(cells);
    let controls = lines.next().unwrap().split_off(1);
    let rows = lines.map(|mut row| {
        let path = row.remove(0);
        assert_eq!(row.len(), controls.len(), "`{path}` has a cell for each control");
        assert!(row.iter().all(|cell| !cell.is_empty()), "`{path}` has an empty cell");
        (path, row)
    });
    let rows = rows.collect();
    (controls, rows)
}

/// Tries the table: controls are set by the first instance, and paths are tried on the last one.
fn every_cell_is_as_the_table_says(instances: &[Instance], store: &str) {
    let (first, last) = (&instances[0], instances.last().unwrap());
    let runtime = Runtime::new().unwrap();
    let (controls, rows) = table();
    let mut wrong = Vec::new();
    for (column, control) in controls.into_iter().enumerate() {
        let prepare =
            |(path, row): &(&'static str, Vec<&'static str>)| last.prepare(path, control, row[column]);
        let cells: Vec<_> = rows.iter().map(prepare).collect();
        let mut applied = Vec::new();
        for cell in cells {
            let mut refused = false;
            for (method, path, body) in steps(control, cell.policy(), &cell.key) {
                let answer = first.server.change(method, &path, &[], &body.to_string());
                refused |= answer.status == 409;
                assert!(
                    answer.status == 200 || answer.status == 409,
                    "{control}, {}: {}",
                    cell.path,
                    answer.body
                );
            }
            if refused {
                if cell.expected != "refused" {
                    wrong.push(format!("{}, {control}: refused instead of {}", cell.path, cell.expected));
                }
            } else {
                applied.push(cell);
            }
        }
        if control == "removed" {
            instances.iter().for_each(|one| {
                one.reload(store, "policies: [{name: other, scope: [other], quota: 1/1h}]\n");
            });
        }
        let digest = |one: &Instance| one.server.get("/v1/status").json()["changes"]["digest"].clone();
        until_true("all instances have the changes", || digest(first) == digest(last));
        for mut cell in applied {
            let outcome = last.run(&mut cell, &runtime);
            if outcome != cell.expected {
                wrong.push(format!("{}, {control}: {outcome} instead of {}", cell.path, cell.expected));
            }
        }
        let changed = first.server.get("/v1/policies").json()["policies"][0]["origin"] == "changed";
        if changed {
            assert_eq!(
                first.server.change("DELETE", &format!("/v1/policies/{POLICY}"), &[], "{}").status,
                200
            );
            until_true("all instances have the change", || digest(first) == digest(last));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// An operator who blocks an attacker or lowers a limit must not find that one door was left open.
#[test]
fn controls_hold_on_every_path_in_memory() {
    let folder = TempDir::new("controls-memory");
    every_cell_is_as_the_table_says(&[Instance::start(&folder, "a", "")], "");
}

/// And where another instance was told.
#[test]
fn controls_hold_on_every_path_of_another_instance() {
    let (redis, folder) = (RedisServer::start(), TempDir::new("controls-other"));
    let store = format!("store: {{redis: '{}', deadline: 10s}}\n", redis.url());
    let instances = ["a", "b"].map(|name| Instance::start(&folder, name, &store));
    every_cell_is_as_the_table_says(&instances, &store);
}

/// Commands with a quota of their own have no policy in the file: a reload or a restart must not
/// unblock their keys.
#[test]
fn blocks_of_throttle_commands_survive_reloads_and_restarts() {
    let (redis, folder) = (RedisServer::start(), TempDir::new("controls-throttle"));
    let store = format!("store: {{redis: '{}', deadline: 10s}}\n", redis.url());
    let mut instance = Instance::start(&folder, "a", &store);
    for policy in ["CL.THROTTLE", "THROTTLE"] {
        let blocked =
            instance.server.change("POST", &format!("/v1/keys/{policy}/x/block"), &[], r#"{"for": "1h"}"#);
        assert_eq!(blocked.status, 200, "{}", blocked.body);
        let override_it = format!("/v1/keys/{policy}/x/override");
        let refused = instance.server.change("POST", &override_it, &[], r#"{"quota": "1/1h", "for": "1h"}"#);
        let said = format!(
            "each command of policy `{policy}` brings its own quota, so an override would bind nothing; block the key, or \
             send another quota with the command"
        );
        assert_eq!((refused.status, &refused.json()["detail"]), (409, &json!(said)));
    }
    let first = |instance: &Instance, command: &str| match instance.command(&format!("{command} 9 10 60")) {
        Reply::List(items) => items[0].to_string(),
        other => panic!("{other}"),
    };
    let assert_blocked = |instance: &Instance| {
        assert_eq!(["CL.THROTTLE x", "THROTTLE x"].map(|command| first(instance, command)), ["1", "0"]);
        assert_eq!(["CL.THROTTLE y", "THROTTLE y"].map(|command| first(instance, command)), ["0", "1"]);
    };
    assert_blocked(&instance);
    instance.reload(&store, POLICIES);
    assert_blocked(&instance);
    instance = Instance::start(&folder, "a", &store);
    until_true("the changes are read", || instance.server.get("/v1/status").json()["changes"]["count"] == 2);
    assert_blocked(&instance);
}
