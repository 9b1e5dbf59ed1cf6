//! What is counted: the reference's statistics in the forms that it has, and denials by looks in
//! our own metrics.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::Value;
use slidegate_testkit::http::{self, Response};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};

use super::client::{Client, ask, client, descriptor, hitting, user};

/// Years, as no test may run across the border of a window; fifteen hits, of which four fifths are
/// twelve.
const COUNTED: &str = "
domain: web
descriptors:
  - {key: hits, rate_limit: {unit: year, requests_per_unit: 15}}
  - {key: tried, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: by_value, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
  - key: a
    value: b
    descriptors:
      - key: c
        descriptors:
          - {key: d, rate_limit: {unit: year, requests_per_unit: 9}}
          - {key: e, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: pool1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: pool2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 7}}
";

/// A server that takes the reference's place, with its debug and its Prometheus port.
fn in_place(folder: &TempDir, variables: &[(&str, &str)]) -> Server {
    let files = folder.path().join("config");
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join("counted.yaml"), COUNTED).unwrap();
    let defaults = [
        ("RUNTIME_ROOT", folder.as_str()),
        ("DEBUG_HOST", "127.0.0.1"),
        ("DEBUG_PORT", "0"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "127.0.0.1:0"),
    ];
    Server::start_with(&["--grpc", "127.0.0.1:0", "--envoy-env"], &[&defaults, variables].concat())
}

/// The answer of another listener of the server, named by a line of its greeting.
fn get(server: &Server, listener: &str, path: &str) -> Response {
    let line = server.greeting.lines().find(|line| line.starts_with(listener)).expect("it is listed");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    http::send("GET", &format!("http://{address}{path}"), "", "")
}

/// The lines of `/stats` that are not 0 and begin so, without that.
fn stats(server: &Server, beginning: &str) -> Vec<String> {
    let page = get(server, "debug", "/stats").body;
    let lines = page.lines().filter_map(|line| line.strip_prefix(beginning));
    lines.filter(|line| !line.ends_with(": 0")).map(str::to_owned).collect()
}

async fn hit(client: &mut Client, hits: u64, entries: &[(&str, &str)]) -> Code {
    ask(client, &[hitting(hits, descriptor(entries))], 0).await.unwrap().overall_code()
}

/// Who changes the service keeps the dashboards: names, labels and numbers.
#[tokio::test]
async fn hits_are_counted_under_the_references_names() {
    let folder = TempDir::new("rls-statistics");
    let server = in_place(&folder, &[]);
    let mut client = client(&server).await;
    let hits: &[_] = &[("hits", "x")];
    for (asked, code, found) in [
        (11, Code::Ok, &["total_hits: 11", "within_limit: 11"][..]),
        (2, Code::Ok, &["near_limit: 1", "total_hits: 13", "within_limit: 13"]),
        (1, Code::Ok, &["near_limit: 2", "total_hits: 14", "within_limit: 14"]),
        (0, Code::Ok, &["near_limit: 2", "total_hits: 14", "within_limit: 14"]),
        (3, Code::OverLimit, &["near_limit: 3", "over_limit: 2", "total_hits: 17", "within_limit: 14"]),
        (1, Code::Ok, &["near_limit: 4", "over_limit: 2", "total_hits: 18", "within_limit: 15"]),
        (4, Code::OverLimit, &["near_limit: 4", "over_limit: 6", "total_hits: 22", "within_limit: 15"]),
    ] {
        assert_eq!(hit(&mut client, asked, hits).await, code, "{asked}");
        assert_eq!(stats(&server, "ratelimit.service.rate_limit.web.hits."), found, "{asked}");
    }
    for _ in 0..2 {
        hit(&mut client, 1, &[("tried", "x")]).await;
    }
    let tried = ["near_limit: 1", "over_limit: 1", "shadow_mode: 1", "total_hits: 2", "within_limit: 1"];
    assert_eq!(stats(&server, "ratelimit.service.rate_limit.web.tried."), tried);
    hit(&mut client, 2, &[("by_value", "10.0.0.1")]).await;
    let valued = ["total_hits: 2", "within_limit: 2"];
    assert_eq!(stats(&server, "ratelimit.service.rate_limit.web.by_value_10_0_0_1."), valued);
    for deep in ["d", "e"] {
        hit(&mut client, 1, &[("a", "b"), ("c", "x"), (deep, "x")]).await;
    }
    assert_eq!(stats(&server, "ratelimit.service.rate_limit.web.a_b.c.d.total_hits"), [": 1"]);
    let elsewhere =
        RateLimitRequest { domain: "else\nwhere".into(), descriptors: vec![user("a")], hits_addend: 0 };
    client.should_rate_limit(elsewhere.clone()).await.unwrap();
    client.should_rate_limit(RateLimitRequest { domain: String::new(), ..elsewhere }).await.unwrap_err();
    assert_eq!(stats(&server, "ratelimit.service.rate_limit.else"), ["_where.domain_not_found: 1"]);
    assert_eq!(stats(&server, "ratelimit.service.call"), [".should_rate_limit.service_error: 1"]);
    assert_eq!(stats(&server, "ratelimit.service.config_load"), ["_success: 1"]);
    assert_eq!(stats(&server, "ratelimit_server"), [".ShouldRateLimit.total_requests: 14"]);

    let metrics = get(&server, "metrics", "/metrics");
    // Both are one page, but for what passes between two looks at it.
    let lasting = |page: &str| -> Vec<String> {
        let passes = |line: &&str| line.contains("_connections") || line.contains("_open_fds");
        page.lines().filter(|line| !passes(line)).map(str::to_owned).collect()
    };
    assert_eq!(lasting(&metrics.body), lasting(&server.get("/metrics").body));
    for line in [
        "ratelimit_service_rate_limit_total_hits{domain=\"web\",key1=\"hits\"} 22",
        "ratelimit_service_rate_limit_over_limit{domain=\"web\",key1=\"hits\"} 6",
        "ratelimit_service_rate_limit_near_limit{domain=\"web\",key1=\"hits\"} 4",
        "ratelimit_service_rate_limit_within_limit{domain=\"web\",key1=\"hits\"} 15",
        "ratelimit_service_rate_limit_over_limit_with_local_cache{domain=\"web\",key1=\"hits\"} 0",
        "ratelimit_service_rate_limit_shadow_mode{domain=\"web\",key1=\"tried\"} 1",
        "ratelimit_service_rate_limit_total_hits{domain=\"web\",key1=\"by_value_10_0_0_1\"} 2",
        // The reference's third level has no label of its own.
        "ratelimit_service_rate_limit_total_hits{domain=\"web\",key1=\"a_b\",key2=\"c\"} 2",
        "ratelimit_service_rate_limit_domain_not_found{domain=\"else\\nwhere\"} 1",
        "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 14",
        "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"} 1",
        "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"} 0",
        "ratelimit_service_config_load_success 1",
        "ratelimit_service_config_load_error 0",
        "ratelimit_service_global_shadow_mode 0",
    ] {
        assert!(metrics.body.lines().any(|found| found == line), "{line} is not in {}", metrics.body);
    }
    // The reference's names are kept: nothing is appended to them in either text format.
    assert!(metrics.body.contains("# TYPE ratelimit_service_total_requests untyped\n"), "{}", metrics.body);
    assert!(!metrics.body.contains("key1=\"pool1\""), "what was never hit has no series");
}

/// The debug port is where people look first: what is there must be said, and the numbers must
/// survive a reload.
#[tokio::test]
async fn the_debug_port_lists_what_it_has_and_counters_survive_a_reload() {
    let folder = TempDir::new("rls-debug");
    let server = in_place(&folder, &[("NEAR_LIMIT_RATIO", "0.1"), ("SHADOW_MODE", "true")]);
    let index =
        "/rlconfig: print out the currently loaded configuration for debugging\n/stats: print out stats\n";
    assert_eq!(get(&server, "debug", "/").body, index);
    assert_eq!(get(&server, "debug", "/none").body, index);
    let line = "web.hits: unit=YEAR requests_per_unit=15, shadow_mode: false, quota_mode: false\n";
    assert!(get(&server, "debug", "/rlconfig").body.starts_with(line));
    assert_eq!(server.get("/stats").status, 404, "it may hold values of requests");
    let mut client = client(&server).await;
    for _ in 0..2 {
        assert_eq!(hit(&mut client, 8, &[("hits", "x")]).await, Code::Ok);
    }
    let found = ["near_limit: 14", "over_limit: 1", "total_hits: 16", "within_limit: 8"];
    assert_eq!(stats(&server, "ratelimit.service.rate_limit.web.hits."), found);
    assert_eq!(stats(&server, "ratelimit.service.global_shadow_mode"), [": 1"]);
    let file = folder.path().join("config/counted.yaml");
    std::fs::write(&file, COUNTED.replace("requests_per_unit: 15", "requests_per_unit: 16")).unwrap();
    let loads = || stats(&server, "ratelimit.service.config_load_success");
    until_true("the new limit is in force", || loads() == [": 2"]);
    assert_eq!(hit(&mut client, 8, &[("hits", "x")]).await, Code::Ok);
    let found = ["near_limit: 22", "over_limit: 1", "total_hits: 24", "within_limit: 16"];
    assert_eq!(stats(&server, "ratelimit.service.rate_limit.web.hits."), found);
    std::fs::write(&file, "domain: ''\n").unwrap();
    until_true("the bad file is counted", || {
        stats(&server, "ratelimit.service.config_load_error") == [": 1"]
    });
}

/// A denial that needs no call of the store is what the reference has its local cache for, under
/// shadow as well.
#[tokio::test(flavor = "multi_thread")]
async fn cached_denials_are_counted_as_those_of_the_local_cache_and_fallbacks_as_errors() {
    let folder = TempDir::new("rls-cached-denials");
    let redis = RedisServer::start();
    let url = redis.address();
    // As long as a machine that is busy with everything else needs.
    let server =
        in_place(&folder, &[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &url), ("REDIS_TIMEOUT", "20s")]);
    let mut client = client(&server).await;
    let (hits, tried): (&[_], &[_]) = (&[("hits", "x")], &[("tried", "x")]);
    assert_eq!(hit(&mut client, 15, hits).await, Code::Ok);
    let cached = |limit: &str| {
        let counters = stats(&server, &format!("ratelimit.service.rate_limit.web.{limit}."));
        counters.iter().any(|line| line.starts_with("over_limit_with_local_cache: "))
    };
    // Denials are cached once the gate receives invalidations.
    super::client::until("a denial is cached", async || {
        assert_eq!(hit(&mut client, 1, hits).await, Code::OverLimit);
        cached("hits")
    })
    .await;
    let counters = stats(&server, "ratelimit.service.rate_limit.web.hits.");
    let of = |name: &str| -> u64 {
        let line = counters.iter().find_map(|line| line.strip_prefix(name)).unwrap_or(": 0");
        line.trim_start_matches(": ").parse().unwrap()
    };
    assert_eq!((of("within_limit"), of("over_limit_with_local_cache")), (15, 1));
    assert_eq!(of("over_limit"), of("total_hits") - 15);

    for _ in 0..3 {
        assert_eq!(hit(&mut client, 1, tried).await, Code::Ok);
    }
    let counters = stats(&server, "ratelimit.service.rate_limit.web.tried.");
    assert!(
        counters.contains(&"shadow_mode: 2".to_owned()) && counters.contains(&"over_limit: 2".to_owned()),
        "{counters:?}"
    );

    drop(redis);
    assert_eq!(hit(&mut client, 1, &[("hits", "new")]).await, Code::Ok);
    assert_eq!(stats(&server, "ratelimit.service.call.should_rate_limit.redis_error"), [": 1"]);
}

/// Costs that are known afterwards are denied by looks alone: metrics that count no look would say
/// that nobody was refused.
#[tokio::test]
async fn looks_that_refuse_a_call_are_counted_as_the_denials_they_are() {
    let folder = TempDir::new("rls-looks");
    let server = in_place(&folder, &[]);
    let mut client = client(&server).await;
    let decisions = |policy: &str, verdict: &str| {
        let page = server.get("/metrics").body;
        let name = format!(
            "slidegate_decisions_total{{policy=\"web.{policy}\",verdict=\"{verdict}\",source=\"store\"}} "
        );
        let line = page.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("0");
        line.parse::<u64>().unwrap()
    };
    let events = |policy: &str| -> Vec<Value> {
        let found = server.get(&format!("/v1/events?policy=web.{policy}")).json();
        found["events"].as_array().unwrap().clone()
    };
    let tokens = |hits| hitting(hits, descriptor(&[("tokens", "x")]));
    let hits = || descriptor(&[("hits", "x")]);
    let mut call = async |descriptors: &[RateLimitDescriptor]| {
        ask(&mut client, descriptors, 0).await.unwrap().overall_code()
    };
    assert_eq!(call(&[tokens(0), hits()]).await, Code::Ok);
    assert_eq!((decisions("tokens", "allow"), decisions("tokens", "deny")), (0, 0), "a look is no decision");
    assert_eq!(call(&[tokens(6)]).await, Code::Ok);
    assert_eq!(call(&[tokens(3)]).await, Code::OverLimit, "the charge at the end of the stream");
    assert_eq!((decisions("tokens", "allow"), decisions("tokens", "deny")), (1, 1));
    assert_eq!(call(&[tokens(0), hits()]).await, Code::OverLimit);
    assert_eq!((decisions("tokens", "allow"), decisions("tokens", "deny")), (1, 2));
    assert_eq!(decisions("hits", "allow"), 2, "admitted descriptors are counted as usual");
    let found = ["near_limit: 2", "over_limit: 2", "total_hits: 9", "within_limit: 6"];
    assert_eq!(
        stats(&server, "ratelimit.service.rate_limit.web.tokens."),
        found,
        "as the reference counts them"
    );
    let [event, _charge] = &events("tokens")[..] else { panic!("each denial is one event") };
    assert_eq!(
        (&event["mode"], &event["used"], &event["protocol"]),
        (&"enforce".into(), &9.into(), &"grpc".into())
    );
    assert!(event["retry_after_ms"].as_u64().unwrap() > 1000, "{event}");
    let page = server.get("/metrics").body;
    let denied = "slidegate_requests_total{protocol=\"grpc\",verb=\"check\",verdict=\"deny\"} 2";
    assert!(page.lines().any(|line| line == denied), "{page}");

    // Of two pools the first is empty, then both.
    let (one, two) = (|| descriptor(&[("pool1", "x")]), || descriptor(&[("pool2", "x")]));
    assert_eq!(call(&[one(), two()]).await, Code::Ok);
    assert_eq!(call(&[one(), two()]).await, Code::Ok);
    assert_eq!((decisions("pool1", "shadow_deny"), decisions("pool1", "deny")), (1, 0));
    assert_eq!(events("pool1")[0]["mode"], "shadow", "it denied nothing");
    assert_eq!(call(&[one(), two(), hits()]).await, Code::OverLimit);
    assert_eq!((decisions("pool1", "deny"), decisions("pool2", "deny")), (1, 1));
    assert_eq!((decisions("pool1", "allow"), decisions("pool2", "allow")), (1, 2));
    assert_eq!(decisions("hits", "allow"), 3);
    assert_eq!(
        stats(&server, "ratelimit.service.rate_limit.web.pool2."),
        ["near_limit: 1", "over_limit: 1", "total_hits: 3", "within_limit: 2",]
    );
    // A shadow beside a look that denies is decided and charges nothing.
    let tried = || descriptor(&[("tried", "x")]);
    assert_eq!(call(&[tried()]).await, Code::Ok);
    assert_eq!(call(&[tokens(0), tried()]).await, Code::OverLimit);
    assert_eq!((decisions("tried", "allow"), decisions("tried", "shadow_deny")), (1, 1));
    let shadows = server.get("/v1/shadow").json();
    assert!(shadows.to_string().contains("web.tried"), "{shadows}");
}
