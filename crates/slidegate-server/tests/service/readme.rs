//! The README's commands and files, run as they are written.

use slidegate_testkit::TempDir;
use slidegate_testkit::process::command;
use slidegate_testkit::service::{Server, slidegate, text};

fn readme() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    std::fs::read_to_string(path).expect("the README is there")
}

/// The code blocks of one language.
fn blocks(language: &str) -> Vec<String> {
    let readme = readme();
    let fence = format!("```{language}\n");
    let blocks = readme.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap_or("").to_owned());
    blocks.collect()
}

/// The first thing that a new user copies must not be the first thing that fails.
#[test]
fn the_first_curl_answers_as_shown() {
    let server = Server::start(&[]);
    let curl = blocks("sh").into_iter().find(|block| block.starts_with("curl ")).unwrap();
    let curl = curl.replace("http://127.0.0.1:7979", &server.url);
    let answer = text(&command("sh").args(["-c", &curl]).output().expect("a shell is there").stdout);
    let shown = blocks("text").into_iter().find(|block| block.starts_with("HTTP/1.1 200 OK")).unwrap();
    for line in shown.lines().filter(|line| !line.is_empty()) {
        let line = line.split(",...").next().unwrap();
        assert!(answer.contains(line), "{line}\nis not in\n{answer}");
    }
}

/// The tour of the commands, with the file above it.
#[test]
fn the_commands_work_on_the_file_shown() {
    let folder = TempDir::new("readme");
    let yaml = blocks("yaml").into_iter().find(|block| block.starts_with("# slidegate.yaml")).unwrap();
    let config = folder.file("slidegate.yaml", yaml);
    let log = folder
        .file("access.log", "192.0.2.7 - bob [20/Nov/2026:10:00:00 +0000] \"GET /login HTTP/1.1\" 200 5\n");
    let server = Server::start(&["--config", &config]);
    let commands = blocks("sh").into_iter().find(|block| block.starts_with("slidegate validate")).unwrap();
    let mut ran = 0;
    for line in commands.lines() {
        let line = line.split(" #").next().unwrap();
        let words: Vec<_> = line.split_whitespace().skip(1).collect();
        if words[0] == "serve" {
            continue;
        }
        let words = words.iter().map(|word| match *word {
            "slidegate.yaml" => config.as_str(),
            "access.log" => log.as_str(),
            word => word,
        });
        let mut command = slidegate();
        command.args(words);
        if line.contains(" check ") {
            command.args(["--url", &server.url]);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        ran += 1;
    }
    assert_eq!(ran, 3, "validate, replay and check");
}

/// Over Redis servers of the tests. `scripts/test --fast` leaves them out.
mod on_redis {
    use super::*;

    /// The line that makes many instances of one limit, with a Redis of the test's own.
    #[test]
    fn instances_share_a_limit_as_shown() {
        let shown = blocks("sh").into_iter().find(|block| block.contains("--redis")).unwrap();
        let command = shown.lines().find(|line| line.contains("--redis")).unwrap();
        let words: Vec<_> = command.split(" #").next().unwrap().split_whitespace().collect();
        assert_eq!(words, ["slidegate", "serve", "--redis", "redis://127.0.0.1:6379"]);
        let redis = slidegate_testkit::redis::RedisServer::start();
        let servers = [0; 2].map(|_| Server::start(&["--redis", &redis.url()]));
        // The first call of an instance connects and loads the scripts, and may miss the usual
        // deadline.
        for server in &servers {
            slidegate_testkit::until_true("the store decides", || {
                server.post("/v1/peek", r#"{"attributes":{"user":"alice"}}"#).json()["source"] == "store"
            });
        }
        let remaining =
            servers.each_ref().map(|server| server.get("/v1/check?user=alice").json()["remaining"].clone());
        assert_eq!(remaining, [99, 98]);
    }
}
