//! Passwords of Redis and of Sentinels in every form that people have them in, and users that may do
//! only part of what decisions need.

use std::process::Stdio;

use serde_json::Value;
use slidegate_testkit::redis::{RedisSentinels, RedisServer, acl};
use slidegate_testkit::service::{Server, slidegate, text};
use slidegate_testkit::{TempDir, until};

/// It needs encoding in a URL.
const PASSWORD: &str = "p@ss,wo&rd";
const ENCODED: &str = "p%40ss%2Cwo%26rd";

/// What `slidegate doctor` finds with these variables, by check.
fn doctor(variables: &[(&str, &str)]) -> Value {
    let folder = TempDir::new("passwords");
    folder.file("config/a.yaml", "domain: a\n");
    // The variables replace the URL. Servers whose disk is busy may take seconds: Sentinels write their state to it.
    let store = "store: {redis: 'redis://127.0.0.1:1', deadline: 1m}\n";
    let config = folder.file("slidegate.yaml", format!("{store}policies: [{{name: p, quota: 5/1m}}]\n"));
    let mut command = slidegate();
    command.args(["doctor", "--json", "--config", &config]).stdin(Stdio::null());
    if variables.iter().any(|(name, _)| name.starts_with("REDIS_")) {
        command.arg("--envoy-env").env("RUNTIME_ROOT", folder.path());
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!out.contains("wo&rd") && !err.contains("wo&rd") && !out.contains(ENCODED), "{out}{err}");
    let json: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let checks = json["checks"].as_array().unwrap().iter();
    checks.map(|one| (one["check"].as_str().unwrap().to_owned(), one.clone())).collect()
}

fn shares(variables: &[(&str, &str)]) {
    // Each Sentinel and master has a second to answer who is the master, whatever the deadline.
    let found = until("the servers are reached", || {
        let found = doctor(variables);
        println!("{}", found["reachable"]);
        (found["reachable"]["result"] == "ok").then_some(found)
    });
    for check in ["reachable", "authentication", "decisions"] {
        assert_eq!(found[check]["result"], "ok", "{variables:?}: {found:#}");
    }
}

/// Whoever moves from envoyproxy/ratelimit has the variables of its client, most often a password
/// alone.
#[test]
fn a_password_is_accepted_in_every_form_of_the_reference() {
    let server = RedisServer::start();
    let socket = server.socket().display().to_string();
    server.admin(&["ACL", "SETUSER", "me", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"]);
    server.admin(&["CONFIG", "SET", "requirepass", PASSWORD]);
    let address = server.address();
    let with_user = format!("me:{PASSWORD}");
    let only = format!(":{PASSWORD}");
    for (url, auth) in [
        (socket.clone(), PASSWORD),
        (socket.clone(), &only),
        (socket, &with_user),
        (address.clone(), PASSWORD),
        (address.clone(), &only),
        (address.clone(), &with_user),
        (format!("redis://{address}"), PASSWORD),
        (format!("redis://:{ENCODED}@{address}"), ""),
        (format!("redis://me:{ENCODED}@{address}/0"), ""),
        (format!("redis://:wrong@{address}"), PASSWORD),
        (format!("redis://me:wrong@{address}"), PASSWORD),
        (format!("redis://{address}?username=me&password={ENCODED}"), ""),
    ] {
        shares(&[("REDIS_URL", &url), ("REDIS_AUTH", auth)]);
    }
    for url in [format!("redis://:{ENCODED}@{address}"), format!("redis://me:{ENCODED}@{address}\n")] {
        shares(&[("SLIDEGATE_REDIS", &url)]);
    }
}

/// Sentinels have a password of their own, which is sent to nobody else.
#[test]
fn sentinels_get_their_password_and_servers_theirs() {
    let redis = RedisSentinels::start().without_failover();
    // A Sentinel without it takes the master for one that is down.
    for sentinel in redis.sentinels() {
        sentinel.admin(&["SENTINEL", "SET", "limits", "auth-pass", PASSWORD]);
    }
    for server in redis.servers() {
        server.admin(&["CONFIG", "SET", "masterauth", PASSWORD]);
        server.admin(&["CONFIG", "SET", "requirepass", PASSWORD]);
    }
    let own = format!("{PASSWORD}-own");
    for sentinel in redis.sentinels() {
        sentinel.admin(&["ACL", "SETUSER", "default", "resetpass", &format!(">{own}")]);
    }
    let addresses: Vec<_> = redis.sentinels().iter().map(RedisServer::address).collect();
    let list = format!("limits,{}", addresses.join(","));
    let urls = addresses.iter().map(|address| format!("redis://:{ENCODED}-own@{address}"));
    let urls = format!("limits,{}", urls.collect::<Vec<_>>().join(","));
    let kind = ("REDIS_TYPE", "SENTINEL");
    let auth = ("REDIS_AUTH", PASSWORD);
    shares(&[kind, auth, ("REDIS_URL", &list), ("REDIS_SENTINEL_AUTH", &own)]);
    shares(&[kind, auth, ("REDIS_URL", &list), ("REDIS_SENTINEL_AUTH", &format!(":{own}"))]);
    shares(&[kind, auth, ("REDIS_URL", &urls)]);
    let list = addresses.join(",");
    let url = format!("redis+sentinel://:{ENCODED}@{list}/limits?sentinel_pass={ENCODED}-own");
    shares(&[("SLIDEGATE_REDIS", &url)]);
}

/// Some hosts and users refuse `SCRIPT LOAD` and permit `EVAL`, which decides as well.
#[test]
fn a_user_that_may_not_load_scripts_shares_limits_by_eval() {
    let server = RedisServer::start();
    server.admin(&["ACL", "SETUSER", acl::USER, "-script|load", "+eval"]);
    server.admin(&["SCRIPT", "FLUSH"]);
    let config = format!("store: {{redis: '{}', deadline: 5s}}\n", server.url_as_user());
    let folder = TempDir::new("eval");
    let policies = "policies: [{name: per-user, scope: [user], quota: 2/1h}]\n";
    let config = folder.file("slidegate.yaml", format!("{config}{policies}"));
    let service = Server::start(&["--config", &config]);
    assert!(service.greeting.contains(", shared"), "{}", service.greeting);
    for (status, round) in [(200, 1), (200, 2), (429, 3)] {
        server.admin(&["SCRIPT", "FLUSH"]);
        let answer = service.get("/v1/check?user=alice");
        assert_eq!((answer.status, &answer.json()["source"]), (status, &"store".into()), "{round}");
    }
    let times = |name: &str| server.commandstats(name).calls;
    let before = times("eval");
    assert!(before >= 3, "each time the script was lost: {before}");
    assert_eq!(service.get("/v1/check?user=bob").json()["source"], "store");
    assert_eq!(times("eval"), before, "the server knows the script");
}
