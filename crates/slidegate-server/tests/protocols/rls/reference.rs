//! In the place of envoyproxy/ratelimit: its files, its modes, its variables and its paths.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use slidegate_testkit::TempDir;
use slidegate_testkit::clock::ClockOffset;
use slidegate_testkit::service::Server;
use tonic::Code as GrpcCode;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::client::{
    Client, ask, channel, client, descriptor, limit, seconds, statuses, string, until, user,
};

/// Like envoyproxy/ratelimit's own example. Years, as no test may run across the border of a fixed
/// window.
const BASIC: &str = "
domain: test-domain
descriptors:
  - key: key1
    value: value1
    descriptors:
      - {key: subkey1, rate_limit: {unit: year, requests_per_unit: 5}}
      - {key: subkey1, value: subvalue1, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: key2, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: key2, value: value3}
  - {key: key4, rate_limit: {name: key4_rate_limit, unit: year, requests_per_unit: 1}}
  - {key: key6, rate_limit: {unlimited: true}}
  - {key: tried, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: quota1, quota_mode: true, metadata: {pool: a}, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: quota2, quota_mode: true, metadata: {pool: b, tier: 2}, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: wide, rate_limit: {name: wide, unit: year, requests_per_unit: 1}}
  - {key: narrow, rate_limit: {unit: year, requests_per_unit: 3, replaces: [{name: wide}]}}
";

/// A server that takes the reference's place with these files and variables, its windows fixed.
fn in_place(folder: &TempDir, variables: &[(&str, &str)]) -> Server {
    let (files, file) = (folder.path().join("config"), folder.path().join("config/basic.yaml"));
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(file, BASIC).unwrap();
    let defaults = [
        ("RUNTIME_ROOT", folder.as_str()),
        ("SLIDEGATE_ENVOY_ALGORITHM", "fixed-window"),
        ("DEBUG_HOST", "127.0.0.1"),
        ("DEBUG_PORT", "0"),
    ];
    Server::start_with(&["--grpc", "127.0.0.1:0", "--envoy-env"], &[&defaults, variables].concat())
}

async fn asked(client: &mut Client, descriptors: &[&[(&str, &str)]]) -> RateLimitResponse {
    let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
    let request = RateLimitRequest { domain: "test-domain".into(), descriptors, hits_addend: 0 };
    client.should_rate_limit(request).await.expect("an answer").into_inner()
}

/// Anyone who changes the service keeps the files, and the proxies must not notice: codes, limits,
/// names, order.
#[tokio::test]
async fn the_references_files_decide_as_they_do_there() {
    let folder = TempDir::new("rls-reference");
    let server = in_place(&folder, &[]);
    let mut client = client(&server).await;
    let nested: &[(&str, &str)] = &[("key1", "value1"), ("subkey1", "something")];
    let mixed =
        asked(&mut client, &[&[("key6", "x")], nested, &[("none", "x")], &[("key2", "value3")]]).await;
    assert_eq!(mixed.overall_code(), Code::Ok);
    assert_eq!(statuses(&mixed), [(Code::Ok, u32::MAX), (Code::Ok, 4), (Code::Ok, 0), (Code::Ok, 0)]);
    assert_eq!(limit(&mixed.statuses[1]), (5, Unit::Year, ""));
    assert!(mixed.statuses[0].current_limit.is_none() && mixed.statuses[2].duration_until_reset.is_none());
    for left in (0..4).rev() {
        assert_eq!(statuses(&asked(&mut client, &[nested]).await), [(Code::Ok, left)]);
    }
    let denied = asked(&mut client, &[nested, &[("key2", "a")]]).await;
    assert_eq!(
        (denied.overall_code(), statuses(&denied)),
        (Code::OverLimit, vec![(Code::OverLimit, 0), (Code::Ok, 20)])
    );
    // A fixed window ends when the clock says so, whenever it began to be used.
    assert!((1..=365 * 86_400).contains(&seconds(&denied.statuses[0])));
    let named = asked(&mut client, &[&[("key4", "any")]]).await;
    assert_eq!(limit(&named.statuses[0]), (1, Unit::Year, "key4_rate_limit"));
    // Who has given one key a limit of its own must see that one, not the file's.
    let path = "/v1/keys/test-domain.key4/test-domain~key4%3Dany/override";
    let changed = server.change("POST", path, &[], r#"{"quota":"3/1d","for":"1h"}"#);
    assert_eq!(changed.status, 200, "{}", changed.body);
    let named = asked(&mut client, &[&[("key4", "any")]]).await;
    assert_eq!(limit(&named.statuses[0]), (3, Unit::Day, "key4_rate_limit"));
    // A limit that comes with the request counts apart.
    let own = RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: 10, unit: Unit::Year.into() }),
        ..descriptor(nested)
    };
    let request = RateLimitRequest { domain: "test-domain".into(), descriptors: vec![own], hits_addend: 3 };
    let answer = client.should_rate_limit(request.clone()).await.unwrap().into_inner();
    assert_eq!(statuses(&answer), [(Code::Ok, 7)]);
    let elsewhere = RateLimitRequest { domain: "foo_domain".into(), ..request };
    assert_eq!(statuses(&client.should_rate_limit(elsewhere).await.unwrap().into_inner()), [(Code::Ok, 0)]);
}

/// Billing by the month needs the month of the calendar, in the service as it is started and in what
/// operators read.
#[tokio::test]
async fn a_year_of_the_calendar_ends_at_midnight_in_its_time_zone() {
    const NEW_YEAR_S: u64 = 1_798_758_000; // 2027-01-01T00:00:00+01:00
    let folder = TempDir::new("rls-calendar");
    let clock = ClockOffset::create(folder.path());
    clock.stand((NEW_YEAR_S - 10) * 1_000_000);
    let mut variables =
        vec![("SLIDEGATE_ENVOY_ALGORITHM", "sliding-log"), ("SLIDEGATE_ENVOY_CALENDAR", "Europe/Berlin")];
    variables.extend(clock.variables());
    let server = in_place(&folder, &variables);
    let mut client = client(&server).await;
    let key4: &[_] = &[("key4", "x")];
    let used_up = asked(&mut client, &[key4]).await;
    assert_eq!(limit(&used_up.statuses[0]), (1, Unit::Year, "key4_rate_limit"));
    assert_eq!((statuses(&used_up), seconds(&used_up.statuses[0])), (vec![(Code::Ok, 0)], 10));
    assert_eq!(asked(&mut client, &[key4]).await.overall_code(), Code::OverLimit);
    let limits = server.get("/rlconfig").body;
    assert!(limits.contains("test-domain.key4: unit=YEAR requests_per_unit=1,"), "{limits}");
    clock.stand((NEW_YEAR_S + 1) * 1_000_000);
    until("the year is over", async || asked(&mut client, &[key4]).await.statuses[0].code() == Code::Ok)
        .await;
}

/// What may not deny must not, and what denies only together must not deny alone.
#[tokio::test]
async fn shadow_quota_and_replaced_limits_deny_as_they_do_there() {
    let folder = TempDir::new("rls-modes");
    let server = in_place(&folder, &[]);
    let mut client = client(&server).await;
    let (tried, key4): (&[_], &[_]) = (&[("tried", "x")], &[("key4", "x")]);
    assert_eq!(statuses(&asked(&mut client, &[tried]).await), [(Code::Ok, 0)]);
    let shadow = asked(&mut client, &[tried, key4]).await;
    assert_eq!((shadow.overall_code(), statuses(&shadow)), (Code::Ok, vec![(Code::Ok, 0), (Code::Ok, 0)]));
    assert_eq!(limit(&shadow.statuses[0]), (1, Unit::Year, ""));
    assert_eq!(asked(&mut client, &[tried, key4]).await.overall_code(), Code::OverLimit);

    let (one, two): (&[_], &[_]) = (&[("quota1", "x")], &[("quota2", "x")]);
    assert_eq!(statuses(&asked(&mut client, &[one, two]).await), [(Code::Ok, 0), (Code::Ok, 1)]);
    let half = asked(&mut client, &[one, two]).await;
    assert_eq!((half.overall_code(), statuses(&half)), (Code::Ok, vec![(Code::OverLimit, 0), (Code::Ok, 0)]));
    let none = asked(&mut client, &[one, two, &[("key2", "q")]]).await;
    assert_eq!(none.overall_code(), Code::OverLimit);
    assert_eq!(statuses(&none)[2], (Code::Ok, 20), "what is refused is charged nowhere");
    assert_eq!(asked(&mut client, &[one, &[("key2", "q")]]).await.overall_code(), Code::OverLimit);
    assert_eq!(asked(&mut client, &[&[("quota2", "new")], one]).await.overall_code(), Code::Ok);

    // A limit that denies alone does so whatever those of quota_mode say.
    assert_eq!(asked(&mut client, &[&[("key4", "y")], &[("quota2", "y")]]).await.overall_code(), Code::Ok);
    let alone = asked(&mut client, &[&[("key4", "y")], &[("quota2", "y")]]).await;
    assert_eq!(
        (alone.overall_code(), statuses(&alone)),
        (Code::OverLimit, vec![(Code::OverLimit, 0), (Code::Ok, 1)])
    );

    let (wide, narrow): (&[_], &[_]) = (&[("wide", "x")], &[("narrow", "x")]);
    for left in (0..3).rev() {
        assert_eq!(statuses(&asked(&mut client, &[wide, narrow]).await), [(Code::Ok, 0), (Code::Ok, left)]);
    }
    assert_eq!(statuses(&asked(&mut client, &[wide]).await), [(Code::Ok, 0)], "it was not counted");
    assert_eq!(asked(&mut client, &[wide]).await.overall_code(), Code::OverLimit);
}

/// Dashboards and clients read these names and this shape.
#[tokio::test]
async fn headers_metadata_and_global_shadow_are_as_the_variables_say() {
    let folder = TempDir::new("rls-variables");
    let server = in_place(
        &folder,
        &[
            ("SHADOW_MODE", "true"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            ("LIMIT_RESET_HEADER", "X-Reset"),
            ("RESPONSE_DYNAMIC_METADATA", "true"),
        ],
    );
    let mut client = client(&server).await;
    let (key4, quota): (&[_], &[_]) = (&[("key4", "x")], &[("quota2", "x")]);
    let first = asked(&mut client, &[key4, quota]).await;
    let headers = |answer: &RateLimitResponse| {
        let found = answer.response_headers_to_add.iter();
        found.map(|header| (header.key.clone(), header.value.clone())).collect::<Vec<_>>()
    };
    let [limit, remaining, reset] = &headers(&first)[..] else { panic!("{first:?}") };
    assert_eq!((&*limit.0, &*limit.1), ("RateLimit-Limit", "1"));
    assert_eq!((&*remaining.0, &*remaining.1), ("RateLimit-Remaining", "0"));
    assert_eq!((&*reset.0, reset.1.parse::<i64>().unwrap()), ("X-Reset", seconds(&first.statuses[0])));
    let metadata = first.dynamic_metadata.unwrap();
    assert_eq!(string(&metadata, "domain"), "test-domain");
    let Some(Kind::StructValue(merged)) = &metadata.fields["metadata"].kind else { panic!("{metadata:?}") };
    assert_eq!(string(merged, "pool"), "b");
    assert_eq!(merged.fields["tier"].kind, Some(Kind::NumberValue(2.0)));
    let Some(Kind::ListValue(list)) = &metadata.fields["descriptors"].kind else { panic!("{metadata:?}") };
    let Some(Kind::StructValue(one)) = &list.values[0].kind else { panic!("{list:?}") };
    let Some(Kind::ListValue(entries)) = &one.fields["entries"].kind else { panic!("{one:?}") };
    assert_eq!(entries.values[0].kind, Some(Kind::StringValue("key4=x".into())));

    let over = asked(&mut client, &[key4, quota]).await;
    assert_eq!((over.overall_code(), statuses(&over)), (Code::Ok, vec![(Code::OverLimit, 0), (Code::Ok, 0)]));

    // Of the limits that were passed the first says, and one that was not says nothing.
    let both: [&[_]; 2] = [&[("quota1", "y")], &[("quota2", "y")]];
    for expected in ["a", "b"] {
        let metadata = asked(&mut client, &both).await.dynamic_metadata.unwrap();
        let Some(Kind::StructValue(merged)) = &metadata.fields["metadata"].kind else {
            panic!("{metadata:?}")
        };
        assert_eq!(string(merged, "pool"), expected);
        assert_eq!(merged.fields["tier"].kind, Some(Kind::NumberValue(2.0)));
    }
}

/// Scripts and probes talk to the reference over HTTP: bodies and codes.
#[tokio::test]
async fn json_healthcheck_and_rlconfig_answer_as_the_reference_does() {
    let folder = TempDir::new("rls-json");
    let server = in_place(&folder, &[]);
    for body in
        ["", "}", "{\"domain\":1}", "{\"domain\":\"x\",\"unknown\":1}", "{\"domain\":\"test-domain\"}", "{}"]
    {
        let answer = server.post("/json", body);
        assert_eq!((answer.status, answer.body.as_str()), (400, "Bad Request\n"), "{body}");
    }
    let body = r#"{"domain":"test-domain","descriptors":[{"entries":[{"key":"key4","value":"x"}],"hits_addend":"1"}],"hitsAddend":2}"#;
    let answer = server.post("/json", body);
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let json = answer.json();
    assert_eq!(json["overallCode"], "OK");
    let status = &json["statuses"][0];
    assert_eq!(status["code"], "OK");
    assert_eq!(
        status["currentLimit"],
        serde_json::json!({"name": "key4_rate_limit", "requestsPerUnit": 1, "unit": "YEAR"})
    );
    assert!(
        status["durationUntilReset"].as_str().unwrap().ends_with('s')
            && status.get("limitRemaining").is_none()
    );
    let denied = server.ask("PUT", "/json", Some(body));
    assert_eq!((denied.status, &denied.json()["overallCode"]), (429, &"OVER_LIMIT".into()));
    let unknown = server.post("/json", r#"{"domain":"foo","descriptors":[{"entries":[{"key":"a"}]}]}"#);
    assert_eq!(
        (unknown.status, unknown.body.as_str()),
        (200, r#"{"overallCode":"OK","statuses":[{"code":"OK"}]}"#)
    );
    let own = server.post(
        "/json",
        r#"{"domain":"test-domain","descriptors":[{"entries":[{"key":"a","value":"b"}],"limit":{"requests_per_unit":5,"unit":7}}]}"#,
    );
    assert_eq!(own.json()["statuses"][0]["currentLimit"]["unit"], "WEEK");

    let health = server.get("/healthcheck");
    assert_eq!((health.status, health.body.as_str()), (200, "OK"));
    let config = server.get("/rlconfig").body;
    let line = "test-domain.key2: unit=MINUTE requests_per_unit=20, shadow_mode: false, quota_mode: false\n";
    assert!(config.contains(line), "{config}");
    assert_eq!(
        server.post("/v1/check", r#"{"attributes":{"user":"alice"}}"#).status,
        200,
        "our own paths are there too"
    );
}

/// Without any configuration everything would pass: it must be an error, and be seen by health
/// checks where that is asked.
#[tokio::test]
async fn without_files_calls_fail_until_they_come() {
    let folder = TempDir::new("rls-late");
    let root = folder.as_str().to_owned();
    let variables = [
        ("RUNTIME_ROOT", &*root),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"),
        ("DEBUG_HOST", "127.0.0.1"),
        ("DEBUG_PORT", "0"),
    ];
    let server = Server::start_with(&["--grpc", "127.0.0.1:0", "--envoy-env"], &variables);
    let mut client = client(&server).await;
    let error = ask(&mut client, &[user("a")], 0).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (GrpcCode::Unavailable, "no rate limit configuration loaded")
    );
    let mut health = HealthClient::new(channel(&server).await);
    let mut is_serving = async || {
        let asked = HealthCheckRequest { service: "ratelimit".into() };
        health.check(asked).await.unwrap().into_inner().status() == ServingStatus::Serving
    };
    assert!(!is_serving().await);
    assert_eq!(server.get("/healthcheck").status, 500);
    std::fs::create_dir_all(folder.path().join("config")).unwrap();
    std::fs::write(folder.path().join("config/basic.yaml"), BASIC).unwrap();
    until("health after the files have come", async || is_serving().await).await;
    assert_eq!(statuses(&asked(&mut client, &[&[("key2", "x")]]).await), [(Code::Ok, 19)]);
    // Limits change while calls come, and none of these fails.
    std::fs::write(folder.path().join("config/basic.yaml"), "domain: test-domain\ndescriptors: [{key: key2, rate_limit: {unit: minute, requests_per_unit: 30}}]\n").unwrap();
    until("the new limit", async || {
        asked(&mut client, &[&[("other", "x")], &[("key2", "y")]]).await.statuses[1]
            .current_limit
            .as_ref()
            .unwrap()
            .requests_per_unit
            == 30
    })
    .await;
}
