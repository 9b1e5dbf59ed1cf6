//! The commands and files of README.md and docs/tasks.md, run as they are written.

use slidegate_testkit::TempDir;
use slidegate_testkit::process::command;
use slidegate_testkit::service::{Server, slidegate, text};

const README: &str = include_str!("../../../../README.md");
const TASKS: &str = include_str!("../../../../docs/tasks.md");

/// The block of a page that begins with this, after its language.
fn block<'p>(page: &'p str, begins: &str) -> &'p str {
    blocks(page).find_map(|block| block.strip_prefix(begins)).unwrap_or_else(|| panic!("no block: {begins}"))
}

/// The blocks of a page, each with its language in the first line.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("\n```").skip(1).step_by(2)
}

/// Where each block of the README is run. A block that is run nowhere does not work for long.
const TESTED: [(&str, &str); 8] = [
    ("sh\ncargo run --release -- serve", "the command of CONTRIBUTING.md"),
    ("sh\ncurl ", "here"),
    ("text\nHTTP/1.1 429", "here"),
    ("rust\n// cargo add slidegate ", "doctests of slidegate-server"),
    ("js\n// $CHECKOUT/bindings/node/build ", "bindings/node/test/docs.test.mjs"),
    ("python\n# $CHECKOUT/bindings/python/build ", "bindings/python/tests/test_docs.py"),
    ("sh\n# nginx", "tests/deploy/proxies/limits.rs"),
    ("sh\n# Envoy", "tests/deploy/envoy.rs"),
];

/// The page that people read first stays short, and so do its blocks.
#[test]
fn each_block_of_the_readme_is_run_by_a_test() {
    for block in blocks(README) {
        assert!(TESTED.iter().any(|(begins, _)| block.starts_with(begins)), "run this in a test: {block}");
        assert!(block.lines().count() <= 11, "{block}");
    }
    assert!(README.lines().count() <= 120);
}

/// The picture is text: what it shows is what the command says, but for the time to wait.
#[test]
fn the_picture_shows_what_the_commands_print() {
    let server = Server::start(&["--policy", "2/1m per user"]);
    let picture = include_str!("../../../../docs/images/terminal.svg");
    let shown: Vec<_> =
        picture.lines().filter_map(|line| line.split('>').nth(1)?.strip_suffix("</text")).collect();
    assert_eq!(shown[0], "$ slidegate serve --policy '2/1m per user' &amp;");
    for pair in shown[1..].chunks(2) {
        let words = pair[0].strip_prefix("$ slidegate ").unwrap().split(' ');
        let output = slidegate().args(words).args(["--url", &server.url]).output().unwrap();
        let said = text(&output.stdout);
        assert_eq!(said.trim_end().split("fits in").next(), pair[1].split("fits in").next());
    }
    assert_eq!(shown.len(), 7);
}

/// The first thing that a new user copies must not be the first thing that fails.
#[test]
fn the_second_curl_is_denied_as_shown() {
    let server = Server::start(&[]);
    let curl = format!("curl {}", block(README, "sh\ncurl ")).replace("http://127.0.0.1:7979", &server.url);
    let answers = text(&command("sh").args(["-c", &curl]).output().expect("a shell is there").stdout);
    assert!(answers.starts_with("HTTP/1.1 200 OK"), "{answers}");
    let (_, answer) = answers.split_at(answers.rfind("HTTP/1.1 ").unwrap());
    for line in block(README, "text\n").lines().filter(|line| !line.is_empty()) {
        let line = line.split(" ...").next().unwrap();
        // The wait is shorter by what the second curl took to start.
        let line = line.strip_suffix(";t=60").or(line.strip_suffix(" 60")).unwrap_or(line);
        assert!(answer.contains(line), "{line}\nis not in\n{answer}");
    }
}

/// The tour of the commands, with the file above it.
#[test]
fn the_commands_work_on_the_file_shown() {
    let folder = TempDir::new("readme");
    let yaml = block(TASKS, "yaml\n");
    let config = folder.file("slidegate.yaml", yaml);
    let log = folder
        .file("access.log", "192.0.2.7 - bob [20/Nov/2026:10:00:00 +0000] \"GET /login HTTP/1.1\" 200 5\n");
    let server = Server::start(&["--config", &config]);
    let commands = block(TASKS, "sh\n");
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
        let command = block(TASKS, "sh\nslidegate serve");
        let words: Vec<_> = command.split(" #").next().unwrap().split_whitespace().collect();
        assert_eq!(words, ["--redis", "redis://127.0.0.1:6379"]);
        let redis = slidegate_testkit::redis::RedisServer::start();
        // With the usual deadline, an instance on a busy machine decides by itself.
        let folder = TempDir::new("readme-redis");
        let patient = "store: {deadline: 10s}\npolicies: [{name: api, scope: user, quota: 100/1m}]\n";
        let config = folder.file("slidegate.yaml", patient);
        let servers = [0; 2].map(|_| Server::start(&["--redis", &redis.url(), "--config", &config]));
        let remaining =
            servers.each_ref().map(|server| server.get("/v1/check?user=alice").json()["remaining"].clone());
        assert_eq!(remaining, [99, 98]);
    }
}
