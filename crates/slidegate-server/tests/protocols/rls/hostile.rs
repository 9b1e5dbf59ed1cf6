//! What clients of a proxy choose in its calls: all of it is decided, and others beside it are limited.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::Server;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::client::{channel, start};

/// A call whose keys and values are bytes, as a proxy sends them.
#[derive(Clone, PartialEq, prost::Message)]
struct Call {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<Limit>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<Hits>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Limit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Hits {
    #[prost(uint64, tag = "1")]
    value: u64,
}

fn of(entries: &[(&[u8], &[u8])]) -> Descriptor {
    let entry = |(key, value): &(&[u8], &[u8])| Entry { key: key.to_vec(), value: value.to_vec() };
    Descriptor { entries: entries.iter().map(entry).collect(), ..Descriptor::default() }
}

async fn send(
    channel: &Channel,
    descriptors: Vec<Descriptor>,
    metadata: &[(&'static str, String)],
) -> Result<RateLimitResponse, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut request = Request::new(Call { domain: "web".into(), descriptors, hits_addend: 0 });
    for (name, value) in metadata {
        request.metadata_mut().append(*name, value.parse().unwrap());
    }
    let path = PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let codec = ProstCodec::<Call, RateLimitResponse>::default();
    client.unary(request, path, codec).await.map(tonic::Response::into_inner)
}

/// Values that a client can give an entry.
fn values() -> Vec<(&'static str, Vec<u8>)> {
    let long = |length: usize| vec![b'u'; length];
    vec![
        ("plain", b"alice".to_vec()),
        ("empty", Vec::new()),
        ("not UTF-8", b"\xff".to_vec()),
        ("another byte", b"\xfe".to_vec()),
        ("Latin-1", b"J\xfcrgen".to_vec()),
        ("cut in a character", "ü".as_bytes()[..1].to_vec()),
        ("a surrogate", b"\xed\xa0\x80".to_vec()),
        ("overlong", b"\xc0\xaf".to_vec()),
        ("all bytes", (0..=255).collect()),
        ("NUL", b"a\0b".to_vec()),
        ("lines", b"a\r\nb".to_vec()),
        ("controls", b"\x01\x1b[31m\x7f".to_vec()),
        ("escapes", b"a~b=c\\d\\xFF,%2C*".to_vec()),
        ("replacement", "\u{fffd}".as_bytes().to_vec()),
        ("private use", "\u{10ffff}".as_bytes().to_vec()),
        ("wildcard", b"*".to_vec()),
        ("1 kB", long(1024)),
        ("8192 bytes", long(8192)),
        ("8193 bytes", long(8193)),
        ("9000 bytes", long(9000)),
        ("9001 bytes", long(9001)),
        ("60 kB", long(60_000)),
        ("60 kB that are not UTF-8", vec![0xff; 60_000]),
        ("200 kB", long(200_000)),
    ]
}

/// Everything that is sent, by name. Each is one more than its limit when it is sent a third time.
fn hostile() -> Vec<(String, Descriptor)> {
    let mut all: Vec<_> = values()
        .into_iter()
        .map(|(name, value)| (format!("user {name}"), of(&[(b"user", &value)])))
        .collect();
    for address in ["nowhere", "", "192.0.2.7:80", "192.0.2.007", "[::1]", "::1%eth0", "1.2.3", "999.1.1.1"] {
        all.push((format!("ip {address}"), of(&[(b"ip", address.as_bytes())])));
    }
    all.push(("ip bytes".into(), of(&[(b"ip", b"\xff\0")])));
    all.push(("ip long".into(), of(&[(b"ip", &vec![b'1'; 9000])])));
    let twin: &[u8] = b"twin";
    all.push(("key twice".into(), of(&[(b"user", twin), (b"user", b"other")])));
    all.push(("key twice, long".into(), of(&[(b"user", b"twin-2"), (b"user", &vec![b'x'; 9000])])));
    let hitting = |user: &[u8], hits: u64| Descriptor {
        hits_addend: Some(Hits { value: hits }),
        ..of(&[(b"user", user)])
    };
    for hits in [3, u64::from(u32::MAX) + 1, 1 << 53, u64::MAX - 1, u64::MAX] {
        all.push((format!("{hits} hits"), hitting(format!("hits-{hits}").as_bytes(), hits)));
    }
    let limit = |user: &[u8], unit| Descriptor {
        limit: Some(Limit { requests_per_unit: 2, unit }),
        ..of(&[(b"user", user)])
    };
    all.push(("a limit of no unit".into(), limit(b"unit-0", 0)));
    all.push(("a limit of an unknown unit".into(), limit(b"unit-99", 99)));
    all
}

/// Parts of a call that no policy can name, which must not change what is decided about the others.
fn odd_entries() -> Vec<(&'static str, Vec<Entry>)> {
    let entry = |key: &[u8], value: &[u8]| Entry { key: key.to_vec(), value: value.to_vec() };
    vec![
        ("an empty key", vec![entry(b"", b"x")]),
        ("a key that is not UTF-8", vec![entry(b"\xff", b"x")]),
        ("a long key", vec![entry(&[b'k'; 9000], b"x")]),
        ("NUL in a key", vec![entry(b"a\0", b"x")]),
        ("the domain again", vec![entry(b"domain", b"other")]),
        ("100 keys", (0..100_u8).map(|at| entry(&[b'k', at], b"x")).collect()),
        ("a key 1000 times", vec![entry(b"k", b"x"); 1000]),
    ]
}

fn policies(folder: &TempDir) -> Server {
    let config = folder.file(
        "slidegate.yaml",
        "policies:\n  - {name: user, when: {domain: web}, scope: [user], quota: 2/1h}\n  - {name: ip, scope: [ip], quota: 2/1h}\n",
    );
    start(&["--config", &config])
}

fn files(folder: &TempDir) -> Server {
    let limit = "rate_limit: {unit: hour, requests_per_unit: 2}";
    let rules = folder.path().join("rules");
    std::fs::create_dir(&rules).unwrap();
    let text = format!(
        "domain: web\ndescriptors:\n  - {{key: user, {limit}, descriptors: [{{key: user, {limit}}}]}}\n  - {{key: ip, {limit}}}\n"
    );
    std::fs::write(rules.join("web.yaml"), text).unwrap();
    start(&["--envoy-config", rules.to_str().unwrap()])
}

/// A client whose value makes the call an error is not limited, and neither is its neighbour in the call.
#[tokio::test]
async fn whatever_a_client_chooses_is_limited_and_so_is_what_is_beside_it() {
    for (kind, server) in [("policies", policies as fn(&TempDir) -> Server), ("files", files)] {
        let folder = TempDir::new(&format!("rls-hostile-{kind}"));
        let server = server(&folder);
        let channel = channel(&server).await;
        for (at, (name, descriptor)) in hostile().into_iter().enumerate() {
            let name = format!("{kind}: {name}");
            // Another one's limit beside it.
            let beside = || of(&[(b"user", format!("beside-{at}").as_bytes())]);
            for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
                let peek = Descriptor { hits_addend: Some(Hits { value: 0 }), ..descriptor.clone() };
                let answer = send(&channel, vec![peek, beside()], &[]).await.unwrap();
                assert_eq!(answer.statuses.len(), 2, "{name}");
                assert_eq!(answer.statuses[1].code(), expected, "{name}");
            }
            let mut codes = Vec::new();
            for _ in 0..3 {
                let answer = send(&channel, vec![descriptor.clone()], &[]).await;
                codes.push(answer.unwrap_or_else(|status| panic!("{name}: {status}")).overall_code());
            }
            let is_one = descriptor.hits_addend.is_none();
            let expected = if is_one { [Code::Ok, Code::Ok, Code::OverLimit] } else { [Code::OverLimit; 3] };
            assert_eq!(codes, expected, "{name}");
        }
        let metrics = server.get("/metrics").body;
        let reasons: &[&str] = if kind == "policies" {
            &["encoding", "length", "address", "repeated", "cost", "invalid"]
        } else {
            &["encoding", "length", "cost", "invalid"]
        };
        for reason in reasons {
            let line = format!(
                "slidegate_malformed_total{{protocol=\"grpc\",reason=\"{reason}\",outcome=\"decided\"}} "
            );
            assert!(metrics.contains(&line), "{line}\n{metrics}");
        }
    }
}

/// Entries that no limit can name are not a way around the limits of the others.
#[tokio::test]
async fn entries_that_no_policy_can_name_and_too_many_of_anything_leave_the_limits_in_force() {
    let folder = TempDir::new("rls-odd");
    let server = policies(&folder);
    let channel = channel(&server).await;
    for (at, (name, odd)) in odd_entries().into_iter().enumerate() {
        let mut descriptor = of(&[(b"user", format!("odd-{at}").as_bytes())]);
        descriptor.entries.extend(odd);
        for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
            let answer = send(&channel, vec![descriptor.clone()], &[]).await;
            let answer = answer.unwrap_or_else(|status| panic!("{name}: {status}"));
            assert_eq!(answer.overall_code(), expected, "{name}");
        }
    }
    for count in [65, 5000] {
        let mut many = vec![of(&[(b"nothing", b"x")]); count];
        many[0] = of(&[(b"user", format!("many-{count}").as_bytes())]);
        for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
            assert_eq!(send(&channel, many.clone(), &[]).await.unwrap().overall_code(), expected, "{count}");
        }
    }
    // A path has many spellings.
    let config = folder.file(
        "paths.yaml",
        "policies:\n  - {name: login, when: {path: /login}, scope: [user], quota: 2/1h}\n",
    );
    let server = start(&["--config", &config]);
    let channel = super::client::channel(&server).await;
    for (at, path) in ["/login", "/login?x=1", "//login", "/./login", "/a/../login", "/%6cogin", "/login#x"]
        .into_iter()
        .enumerate()
    {
        let user = format!("path-{at}");
        for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
            let descriptor = of(&[(b"user", user.as_bytes()), (b"path", path.as_bytes())]);
            let answer = send(&channel, vec![descriptor], &[]).await.unwrap();
            assert_eq!(answer.overall_code(), expected, "{path}");
        }
    }
}

/// Two clients must not share a limit because of how their values are written.
#[tokio::test]
async fn different_values_have_limits_of_their_own() {
    for (kind, server) in [("policies", policies as fn(&TempDir) -> Server), ("files", files)] {
        let folder = TempDir::new(&format!("rls-own-{kind}"));
        let server = server(&folder);
        let channel = channel(&server).await;
        for round in 0..2 {
            for (name, value) in values() {
                let answer = send(&channel, vec![of(&[(b"user", &value)])], &[]).await.unwrap();
                assert_eq!(answer.overall_code(), Code::Ok, "{kind}, round {round}: {name}");
            }
        }
    }
}

/// A proxy copies fields of its client into the call, and sends the calls of all over one connection.
#[tokio::test]
async fn no_metadata_makes_a_call_an_error_or_ends_the_connection_of_others() {
    let folder = TempDir::new("rls-metadata");
    let server = policies(&folder);
    // One connection for all.
    let channel = channel(&server).await;
    let mut lists: Vec<Vec<(&'static str, String)>> =
        [512, 3900, 4096, 16_400, 17_000, 60_000, 70_000, 300_000, 2_000_000]
            .into_iter()
            .map(|length| vec![("tracestate", format!("a={}", "x".repeat(length)))])
            .collect();
    lists.extend([
        vec![("x-a", "y".to_owned()); 40],
        vec![("x-a", "y".to_owned()); 90],
        vec![("x-long", "z".repeat(10_000)); 10],
        vec![("baggage", "k=v,".repeat(5000)), ("x-request-id", "r".repeat(20_000))],
        vec![("traceparent", "no trace".to_owned()), ("tracestate", "=,=".repeat(3000))],
        vec![("grpc-timeout", "none".to_owned())],
    ]);
    for (at, metadata) in lists.iter().enumerate() {
        for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
            let own = vec![of(&[(b"user", format!("list-{at}").as_bytes())])];
            let answer = send(&channel, own, metadata).await;
            let answer = answer.unwrap_or_else(|status| panic!("list {at}: {status}"));
            assert_eq!(answer.overall_code(), expected, "list {at}");
            let other = vec![of(&[(b"user", format!("other-{at}").as_bytes())])];
            assert_eq!(
                send(&channel, other, &[]).await.unwrap().overall_code(),
                expected,
                "beside list {at}"
            );
        }
    }
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("slidegate_connections_accepted_total{protocol=\"grpc\"} 1\n"), "{metrics}");
}
