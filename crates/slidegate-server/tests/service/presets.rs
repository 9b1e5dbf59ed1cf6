//! `--preset`: what each decides, and the file that `init` writes of it.

use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, run, text};

/// Each preset with requests, how often each is sent, and the policy that denies it after that.
const DECISIONS: [(&str, &str, &str, usize, &str); 8] = [
    ("api", "/v1/check", "user=alice&cost=10", 10, "per-user"),
    ("api", "/v1/check", "user=alice&method=POST&cost=5", 4, "changes-per-user"),
    ("api", "/v1/check", "ip=192.0.2.7&cost=10", 6, "anonymous-per-ip"),
    ("login", "/v1/check", "ip=192.0.2.7&user=alice", 5, "login-per-user-and-ip"),
    ("login", "/v1/check", "ip=192.0.2.7&cost=2", 5, "login-per-ip"),
    ("llm", "/v1/check", "user=alice&cost=50000", 2, "tokens-per-user"),
    ("proxy", "/v1/check", "ip=192.0.2.7&path=/&cost=100", 3, "per-ip"),
    ("proxy", "/v1/check", "ip=192.0.2.7&path=/login&method=POST", 5, "login-per-ip"),
];

/// A preset is somebody's first limit: it must deny what its comments say.
#[test]
fn each_preset_decides_as_its_file_says_and_init_writes_that_file() {
    let folder = TempDir::new("presets");
    for (preset, path, query, allowed, policy) in DECISIONS {
        let server = Server::start(&["--preset", preset]);
        assert!(server.greeting.contains(&format!("preset {preset}; ")), "{}", server.greeting);
        assert!(server.greeting.contains(&format!(" {policy}: ")), "{}", server.greeting);
        for _ in 0..allowed {
            assert_eq!(server.get(&format!("{path}?{query}")).status, 200, "{preset} {query}");
        }
        let denied = server.get(&format!("{path}?{query}"));
        assert_eq!((denied.status, &denied.json()["policy"]), (429, &policy.into()), "{preset} {query}");

        let file = format!("{}/{preset}.yaml", folder.as_str());
        let written = run(&["init", &file, "--preset", preset, "--force"]);
        assert!(written.status.success(), "{}", text(&written.stderr));
        let validated = run(&["validate", &file]);
        assert!(validated.status.success() && validated.stderr.is_empty(), "{}", text(&validated.stderr));
        for line in text(&validated.stdout).lines().filter(|line| line.starts_with("  ")) {
            assert!(server.greeting.contains(line.trim()), "{line} is not in {}", server.greeting);
        }
    }
}

/// Streams end by themselves, and are counted by reservations only.
#[test]
fn the_preset_of_a_language_model_holds_tokens_and_bounds_open_streams() {
    let server = Server::start(&["--preset", "llm"]);
    let reserve = || server.post("/v1/reserve", r#"{"attributes":{"user":"alice"},"cost":4096}"#);
    for _ in 0..5 {
        assert_eq!(reserve().status, 200);
    }
    assert_eq!((reserve().status, reserve().json()["policy"].as_str()), (429, Some("streams-per-user")));
    let peeked = server.post("/v1/peek", r#"{"attributes":{"user":"alice"},"cost":0}"#).json();
    assert_eq!(
        (&peeked["policies"][0]["held"], &peeked["policies"][1]["used"]),
        (&(5 * 4096).into(), &5.into())
    );
}

/// Two sources that both say all policies must not be merged by a guess.
#[test]
fn a_preset_beside_a_config_file_is_refused() {
    let folder = TempDir::new("preset-config");
    let file = folder.file("slidegate.yaml", "policies: [{name: p, quota: 1/1m}]\n");
    let words = ["serve", "--listen", "127.0.0.1:0", "--preset", "api", "--config", &file];
    let refused = run(&words);
    let expected = format!(
        "--preset api and the config file {file} exclude each other, as both say all policies; give one, or copy from \
         what `slidegate init - --preset api` prints into {file}\n"
    );
    assert_eq!((refused.status.code(), text(&refused.stderr)), (Some(2), expected));
}
