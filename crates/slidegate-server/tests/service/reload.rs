//! Reloading: the file of a running service changes, is wrong, and is put in place by links.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};

fn policy(limit: u64) -> String {
    format!("policies: [{{name: per-user, scope: [user], quota: {limit}/1h}}]\n")
}

fn limit(server: &Server) -> Value {
    server.get("/v1/policies").json()["policies"][0]["limit"].clone()
}

fn config(server: &Server) -> Value {
    server.get("/v1/status").json()["config"].clone()
}

/// Limits are changed in an incident: usage must stay, and a slip of the pen must not open the
/// gate.
#[test]
fn a_changed_file_is_in_force_at_once_and_a_bad_one_changes_nothing() {
    let folder = TempDir::new("reload-file");
    let file = folder.file("slidegate.yaml", policy(2));
    let server = Server::start(&["--config", &file]);
    let before = config(&server);
    assert_eq!(
        (&before["source"], &before["reloads"], &before["error"]),
        (&json!(file), &json!(0), &Value::Null)
    );
    assert_eq!(before["hash"].as_str().unwrap().len(), 64);
    let alice = json!({ "attributes": { "user": "alice" } }).to_string();
    for status in [200, 200, 429] {
        assert_eq!(server.post("/v1/check", &alice).status, status);
    }
    fs::write(&file, policy(3)).unwrap();
    until_true("the new limit is in force", || limit(&server) == 3);
    assert_eq!(server.post("/v1/peek", &alice).json()["used"], 2);
    until_true("the status shows it", || config(&server)["reloads"] == 1);
    assert_ne!(config(&server)["hash"], before["hash"]);

    fs::write(&file, "policies: [{name: per-user, scope: [user], quota: 9/0s}]\n").unwrap();
    let error = format!(
        "{file}:1: policy `per-user`: invalid quota `9/0s`: invalid window `0s`: must be 1ms to 366d, for example `1m`"
    );
    until_true("the mistake is reported", || config(&server)["error"] == json!(error));
    assert_eq!(limit(&server), 3);
    fs::remove_file(&file).unwrap();
    until_true("the missing file is reported", || {
        config(&server)["error"].as_str().is_some_and(|error| error.contains("cannot be read"))
    });
    assert_eq!(limit(&server), 3);

    let others = "server: {listen: '127.0.0.1:1', shutdown_grace: 7s}\nauth: {preset: nginx}\n";
    fs::write(&file, policy(4) + others).unwrap();
    until_true("the corrected file is in force", || limit(&server) == 4);
    let left = "auth: preset, server: shutdown_grace changed, which cannot be hot-reloaded; restart the service to apply it";
    until_true("the pending restart is reported", || config(&server)["error"] == json!(left));
}

/// Volumes of Kubernetes change so: the file that is named never changes itself.
#[test]
fn a_link_that_leads_elsewhere_is_a_changed_file() {
    let folder = TempDir::new("reload-link");
    let root = Path::new(&folder.file("anchor", "")).parent().unwrap().to_owned();
    for (version, content) in [("v1", policy(1)), ("v2", policy(2))] {
        fs::create_dir(root.join(version)).unwrap();
        fs::write(root.join(version).join("slidegate.yaml"), content).unwrap();
    }
    let link = |to: &str| {
        std::os::unix::fs::symlink(to, root.join("next")).unwrap();
        fs::rename(root.join("next"), root.join("..data")).unwrap();
    };
    link("v1");
    std::os::unix::fs::symlink("..data/slidegate.yaml", root.join("slidegate.yaml")).unwrap();
    let server = Server::start(&["--config", root.join("slidegate.yaml").to_str().unwrap()]);
    assert_eq!(limit(&server), 1);
    link("v2");
    until_true("the other file is in force", || limit(&server) == 2);
}

/// Who changed the file wants to be sure, and a token that leaked wants to be gone.
#[test]
fn sighup_loads_again_and_tokens_are_loaded_with_the_rest() {
    let folder = TempDir::new("reload-signal");
    let file = folder.file("slidegate.yaml", policy(2));
    let server = Server::start(&["--config", &file]);
    server.signal("HUP");
    until_true("it was loaded again", || config(&server)["reloads"] == 1);
    // Stopped, so that it sees the change and the signal at once.
    server.signal("STOP");
    fs::write(&file, policy(3)).unwrap();
    server.signal("HUP");
    server.signal("CONT");
    until_true("the change is loaded", || config(&server)["reloads"] == 2);
    // Three polls later it has not been loaded again.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!((limit(&server), config(&server)["reloads"].as_u64()), (3.into(), Some(2)));
    let token = format!("admin: {{tokens: [{{name: ops, scope: read, sha256: {}}}]}}\n", "0".repeat(64));
    fs::write(&file, policy(2) + &token).unwrap();
    until_true("a token is needed", || server.get("/v1/status").status == 401);
    fs::write(&file, policy(2)).unwrap();
    until_true("none is needed", || server.get("/v1/status").status == 200);
}

/// Who replaces a password that leaked must learn that the old one is still in use.
#[test]
fn a_changed_password_is_reported_by_name() {
    let folder = TempDir::new("reload-secrets");
    let text =
        |password: &str| policy(2) + &format!("resp: {{listen: '127.0.0.1:0', password: {password}}}\n");
    let file = folder.file("slidegate.yaml", text("first"));
    let server = Server::start(&["--config", &file]);
    assert_eq!(config(&server)["error"], Value::Null);
    let left = |setting: &str| {
        json!(format!("{setting} changed, which cannot be hot-reloaded; restart the service to apply it"))
    };
    fs::write(&file, text("second")).unwrap();
    until_true("the password is named", || config(&server)["error"] == left("resp: password"));
    fs::write(&file, text("first")).unwrap();
    until_true("nothing differs any more", || config(&server)["error"] == Value::Null);
}
