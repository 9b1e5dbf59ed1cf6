//! One limit on one Redis, used by three processes at once: one in Rust, one in Node and one in Python.
//!
//! What was allowed is judged by this file alone, which knows no algorithm: by the times at which programs asked
//! and were answered. Needs the packages that `bindings/node/check` and `bindings/python/check` install.

#![expect(
    clippy::disallowed_methods,
    reason = "it judges by the system's clock, as the programs that it starts do"
)]

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slidegate::verb::Verb;
use slidegate_bindings::{Call, Engine, EngineOptions, SharedOptions};
use slidegate_config::policies::Policies;
use slidegate_testkit::redis::RedisServer;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LIMIT: usize = 300;
const WINDOW_US: u64 = 1_000_000;
const SECONDS: u64 = 5;

/// When a request that was allowed was asked and answered, in microseconds since 1970: it was charged between.
type Span = (u64, u64);

fn now_us() -> Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?)
}

/// The process in Rust: this one.
fn ask(url: &str, policies: &str) -> Result<Vec<Span>> {
    let policies = Policies::parse(policies, "policies").map_err(|e| e.to_string())?;
    let shared = SharedOptions { deadline: Some(Duration::from_secs(5)), ..SharedOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let engine =
            Engine::shared(url, policies, &EngineOptions::default(), shared).map_err(|e| e.message)?;
        let call = Call { attributes: vec![("user".to_owned(), b"alice".to_vec())], ..Call::default() };
        let until = now_us()? + SECONDS * 1_000_000;
        let mut spans = Vec::new();
        loop {
            let asked = now_us()?;
            if asked >= until {
                return Ok(spans);
            }
            let answer = engine.decide(Verb::Check, &call).await.map_err(|e| e.message)?;
            if let Some(failure) = answer.store_failure {
                return Err(failure.into());
            }
            if answer.allowed {
                spans.push((asked, now_us()?));
            } else {
                // Most denials are cached: leave time to the others.
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        }
    })
}

fn start(program: &PathBuf, script: PathBuf, arguments: [&str; 2]) -> Result<Child> {
    let mut command = Command::new(program);
    command.arg(script).args(arguments).arg(SECONDS.to_string());
    let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    Ok(started.map_err(|error| {
        format!("{}: {error}: run bindings/node/check and bindings/python/check", program.display())
    })?)
}

fn spans_of(name: &str, output: &Output) -> Result<Vec<Span>> {
    if !output.status.success() {
        return Err(format!("{name} failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let text = String::from_utf8(output.stdout.clone())?;
    let span = |line: &str| -> Result<Span> {
        let (asked, answered) = line.split_once(' ').ok_or_else(|| format!("{name} printed `{line}`"))?;
        Ok((asked.parse()?, answered.parse()?))
    };
    text.lines().map(span).collect()
}

/// What three processes were allowed at the same time, each under the policies of its language.
fn allowed(policies: impl Fn(&str) -> String) -> Result<[Vec<Span>; 3]> {
    let redis = RedisServer::start();
    let bindings = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| bindings.join("target"), PathBuf::from);
    // Beside its packages.
    let node = bindings.join("../target/node-project/test/shared-limit.mjs");
    let node = start(&"node".into(), node, [&redis.url(), &policies("node")])?;
    let python = bindings.join("python/tests/shared_limit.py");
    let python = start(&target.join("python/venv/bin/python"), python, [&redis.url(), &policies("python")])?;
    let rust = ask(&redis.url(), &policies("rust"));
    let (node, python) = (node.wait_with_output()?, python.wait_with_output()?);
    Ok([rust?, spans_of("Node", &node)?, spans_of("Python", &python)?])
}

/// The most that was certainly charged within one window: asked after its start and answered before its end.
fn most_in_a_window(spans: &[Span]) -> usize {
    let within = |start: u64| {
        spans.iter().filter(|(asked, answered)| start <= *asked && *answered < start + WINDOW_US).count()
    };
    spans.iter().map(|(asked, _)| within(*asked)).max().unwrap_or(0)
}

fn policies(name: &str) -> String {
    format!(r#"{{"policies": [{{"name": "{name}", "scope": ["user"], "quota": "{LIMIT}/1s"}}]}}"#)
}

#[test]
fn three_languages_share_one_limit() -> Result<()> {
    let spans = allowed(|_| policies("all"))?;
    let counts = spans.each_ref().map(Vec::len);
    assert!(counts.iter().all(|count| *count > 0), "each is allowed something: {counts:?}");
    let all = spans.concat();
    let most = most_in_a_window(&all);
    assert!(most <= LIMIT, "{most} within one window, of {counts:?}");
    // They ask more than the limit all the time, so it is used: the first window, and each that ended since.
    let least = LIMIT * usize::try_from(SECONDS - 1)?;
    assert!(all.len() >= least, "{counts:?} in {SECONDS} s, less than {least} in all");
    Ok(())
}

/// The same judge finds three limits that are not one.
#[test]
fn limits_with_names_of_their_own_are_found() -> Result<()> {
    let most = most_in_a_window(&allowed(policies)?.concat());
    assert!(most > 2 * LIMIT, "{most} within one window");
    Ok(())
}
