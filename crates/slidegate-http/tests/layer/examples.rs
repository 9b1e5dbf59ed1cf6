//! The examples, built, started on free ports and called by real clients.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use slidegate_testkit::process::cargo_build;
use slidegate_testkit::redis::RedisServer;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

/// A running example. Dropping it ends the process.
struct Example {
    process: Child,
    /// `127.0.0.1:PORT`
    address: String,
}

impl Example {
    /// Starts the example on a free port and returns once it listens.
    fn start(name: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(folder().join(name));
        command.env("LISTEN", "127.0.0.1:0").envs(environment.iter().copied());
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let example = Self { process, address: line.trim().replace("listening on ", "") };
        assert!(example.address.starts_with("127.0.0.1:"), "`{name}` said: {line:?}");
        example
    }

    /// Connects a gRPC client.
    async fn health(&self) -> HealthClient<Channel> {
        let endpoint = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        HealthClient::new(endpoint.connect().await.unwrap())
    }

    /// Sends a request and returns the status, the header fields in one line and the body.
    fn get(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let request = ureq::get(format!("http://{}{path}", self.address));
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        Answer::of(request.config().proxy(None).http_status_as_error(false).build().call())
    }

    fn post(&self, path: &str, fields: &[(&str, &str)], form: &str) -> Answer {
        let request = ureq::post(format!("http://{}{path}", self.address));
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.content_type("application/x-www-form-urlencoded");
        Answer::of(request.config().proxy(None).http_status_as_error(false).build().send(form))
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // The process may already have exited, which the test has noticed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Answer {
    status: u16,
    body: String,
    retry_after: Option<u64>,
    remaining: Option<u64>,
}

impl Answer {
    fn of(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Self {
        let mut answer = answer.unwrap();
        let number = |name: &str| answer.headers().get(name)?.to_str().ok()?.parse().ok();
        let (retry_after, remaining) = (number("retry-after"), number("x-ratelimit-remaining"));
        let body = answer.body_mut().read_to_string().unwrap();
        Self { status: answer.status().as_u16(), body, retry_after, remaining }
    }

    /// The policies that a denial names.
    fn violated(&self) -> Vec<String> {
        assert_eq!(self.status, 429, "{}", self.body);
        let problem: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        let names = problem["violated-policies"].as_array().unwrap();
        names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    }
}

/// The directory of the examples. Builds them first, because running only this test would start
/// outdated binaries, or none.
fn folder() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // target/debug/deps/layer-0123456789abcdef
        let this = std::env::current_exe().unwrap();
        let target = this.ancestors().nth(3).unwrap();
        let mut build = cargo_build();
        build.args(["--workspace", "--all-features", "--examples", "--target-dir"]).arg(target);
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(build.status().unwrap().success(), "the examples do not build: {build:?}");
        target.join("debug/examples")
    })
}

/// The page shows what is left of each limit.
#[test]
fn api_key_limits_each_key_and_refunds_what_is_broken() {
    let example = Example::start("api_key", &[]);
    let key = [("x-api-key", "k1")];
    for left in (0..5).rev() {
        let broken = example.get("/broken", &key);
        assert_eq!(broken.status, 500);
        let answer = example.get("/", &key);
        assert_eq!((answer.status, answer.body), (200, format!("{left} more under per-key\n")));
        assert_eq!(answer.remaining, Some(left));
    }
    let denied = example.get("/", &key);
    assert_eq!(denied.violated(), ["per-key"]);
    assert!((1..=60).contains(&denied.retry_after.unwrap()));
    assert_eq!(example.get("/", &[("x-api-key", "k2")]).status, 200);
    // Without a key, or with an empty one, the address counts.
    assert_eq!(example.get("/", &[]).body, "4 more under per-key\n");
    assert_eq!(example.get("/", &[("x-api-key", "")]).body, "3 more under per-key\n");
}

/// Password guessing is stopped whichever of the other limits it avoids.
#[test]
fn login_limits_by_address_by_user_and_by_both() {
    let example = Example::start("login", &[]);
    let log_in = |client: &str, user: &str, password: &str| {
        let form = format!("user={user}&password={password}");
        example.post("/login", &[("x-forwarded-for", client)], &form)
    };
    // Correct passwords cost nothing.
    for _ in 0..8 {
        assert_eq!(log_in("203.0.113.1", "alice", "open+sesame").body, "welcome\n");
    }
    for user in ["alice", "Alice", "%20alice"] {
        assert_eq!(log_in("203.0.113.1", user, "wrong").status, 401);
    }
    let denied = log_in("203.0.113.1", "alice", "open+sesame");
    assert_eq!(denied.violated(), ["login-per-address-and-user"]);
    assert!((1..=60).contains(&denied.retry_after.unwrap()));
    // The user can still log in from her own address.
    assert_eq!(log_in("203.0.113.2", "alice", "open+sesame").status, 200);
    // One address that tries many users; three attempts are already used.
    for user in 0..7 {
        assert_eq!(log_in("203.0.113.1", &format!("user-{user}"), "wrong").status, 401);
    }
    assert_eq!(log_in("203.0.113.1", "user-9", "wrong").violated(), ["login-per-address"]);
    // Many addresses that try one user; three attempts are already used.
    for client in 0..17 {
        assert_eq!(log_in(&format!("198.51.100.{client}"), "alice", "wrong").status, 401);
    }
    assert_eq!(log_in("198.51.100.99", "alice", "open+sesame").violated(), ["login-per-user"]);
}

/// Each customer gets the limits of their plan.
#[test]
fn plans_have_their_limits_and_one_customer_his_own() {
    let example = Example::start("plans", &[]);
    let ask = |token: &str, path: &str| example.get(path, &[("authorization", &format!("Bearer {token}"))]);
    for (token, limit) in [("free-1", 3), ("pro-1", 10), ("pro-2", 12)] {
        for left in (0..limit).rev() {
            assert_eq!((ask(token, "/").remaining, token), (Some(left), token));
        }
        let plan = if token == "free-1" { "free" } else { "pro" };
        assert_eq!(ask(token, "/").violated(), [plan]);
    }
    assert_eq!(ask("nobody", "/").status, 401);

    let example = Example::start("plans", &[]);
    let report = example.get("/reports", &[("authorization", "Bearer free-1")]);
    assert_eq!((report.status, report.remaining), (200, Some(1)));
    // A report costs 2, and only 1 is left.
    assert_eq!(example.get("/reports", &[("authorization", "Bearer free-1")]).violated(), ["free"]);
    assert_eq!(example.get("/", &[("authorization", "Bearer free-1")]).remaining, Some(0));
}

/// Two instances share one limit, and each enforces half of it while Redis is down.
#[test]
fn shared_counts_over_instances_and_goes_on_without_redis() {
    let redis = RedisServer::start();
    let url = redis.url();
    let instances = [(); 2].map(|()| Example::start("shared", &[("REDIS_URL", &url)]));
    // On a busy machine the store may exceed its deadline, and the fallback then decides.
    slidegate_testkit::until_true("both instances hear from the store", || {
        instances.iter().all(|instance| instance.get("/", &[]).body.ends_with("store\n"))
            && redis.admin(&["FLUSHALL"]) == "OK"
    });
    let mut counted = 0;
    for turn in 0..20 {
        let answer = instances[turn % 2].get("/", &[]);
        if answer.status == 200 && answer.body.ends_with("store\n") {
            counted += 1;
        }
    }
    assert!((1..=10).contains(&counted), "{counted} of a limit of ten");

    let nowhere = Example::start("shared", &[("REDIS_URL", "redis://127.0.0.1:1")]);
    for left in (0..5).rev() {
        assert_eq!(nowhere.get("/", &[]).body, format!("{left} more, says local\n"));
    }
    assert_eq!(nowhere.get("/", &[]).violated(), ["per-ip"]);
}

/// gRPC clients only know gRPC statuses and back off by `RetryInfo`.
#[test]
fn grpc_denials_are_resource_exhausted_and_say_when_to_retry() {
    let example = Example::start("grpc", &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = example.health().await;
        let whole = || HealthCheckRequest { service: String::new() };
        for left in (0..5).rev() {
            let answer = client.check(whole()).await.unwrap();
            assert_eq!(answer.metadata().get("x-ratelimit-remaining").unwrap(), &left.to_string());
        }
        let denied = client.check(whole()).await.unwrap_err();
        assert_eq!(denied.code(), Code::ResourceExhausted);
        assert!(
            denied
                .message()
                .starts_with("Policy `per-ip` (5/1m) would be exceeded: key `127.0.0.1` has used 5 of 5."),
            "{denied}"
        );
        let wait = denied.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert!(Duration::ZERO < wait && wait <= Duration::from_secs(60), "{wait:?}");
        assert_eq!(denied.metadata().get("x-ratelimit-remaining").unwrap(), "0");
    });

    let example = Example::start("grpc", &[]);
    runtime.block_on(async {
        let mut client = example.health().await;
        let watch = || HealthCheckRequest { service: String::new() };
        assert!(client.watch(watch()).await.unwrap().into_inner().message().await.unwrap().is_some());
        assert_eq!(client.watch(watch()).await.unwrap_err().code(), Code::ResourceExhausted);
        assert!(client.check(watch()).await.is_ok());
    });
}

/// A client of the gateway that reads its stream event by event.
fn stream(example: &Example, user: &str, max_tokens: u64) -> Result<impl BufRead + use<>, Answer> {
    let asked = serde_json::json!({"prompt": "hello", "max_tokens": max_tokens}).to_string();
    let request = ureq::post(format!("http://{}/v1/complete", example.address)).header("x-user", user);
    let answer = request.config().proxy(None).http_status_as_error(false).build().send(asked).unwrap();
    if answer.status() == 200 {
        return Ok(BufReader::new(answer.into_body().into_reader()));
    }
    Err(Answer::of(Ok(answer)))
}

/// Tokens that were charged and that are held, and open streams.
fn usage(example: &Example, user: &str) -> [u64; 3] {
    let usage: serde_json::Value =
        serde_json::from_str(&example.get("/usage", &[("x-user", user)]).body).unwrap();
    ["tokens", "held", "streams"].map(|name| usage[name].as_u64().unwrap())
}

/// Users see their limit filled by what they use and not by what they might have used, while no
/// more streams run than may.
#[test]
fn llm_gateway_reserves_the_most_and_settles_what_flows() {
    let example = Example::start("llm_gateway", &[]);
    // Two tokens of the prompt, and ten of the answer.
    let events = stream(&example, "alice", 10).ok().unwrap().lines().map_while(Result::ok);
    assert_eq!(events.filter(|line| line.starts_with("data: ")).count(), 10);
    slidegate_testkit::until_true("it is settled", || usage(&example, "alice") == [12, 0, 0]);

    // More than a minute's tokens at once never fits.
    assert_eq!(stream(&example, "alice", 3000).err().unwrap().violated(), ["tokens"]);
    let [mut one, two] = [(); 2].map(|()| stream(&example, "alice", 900).ok().unwrap());
    let third = stream(&example, "alice", 10).err().unwrap();
    assert_eq!(third.violated(), ["streams"]);
    assert!(stream(&example, "bob", 1).is_ok());
    // What has flowed is settled while both go on.
    slidegate_testkit::until_true("parts are settled", || {
        let [tokens, held, streams] = usage(&example, "alice");
        assert_eq!((tokens + held, streams), (12 + 2 * 902, 2));
        tokens > 12
    });
    let mut line = String::new();
    one.read_line(&mut line).unwrap();
    assert!(line.contains("word1 "), "{line}");
    drop((one, two));
    slidegate_testkit::until_true("the clients are gone", || {
        let [_, held, streams] = usage(&example, "alice");
        (held, streams) == (0, 0)
    });
    let [tokens, ..] = usage(&example, "alice");
    assert!((13..12 + 2 * 902).contains(&tokens), "{tokens}");
}
