//! Spans of decisions, sent to a collector of the test's own, which reads them back as the standard
//! writes them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, ports};

/// Longer than anything takes here. Who waits as long has found a fault.
const LONG: Duration = Duration::from_secs(60);

const POLICIES: &str = "
policies:
  - {name: per-user, scope: [user], quota: 2/1h}
  - {name: hidden, scope: [card], quota: 1/1h, keys_shown: hashed}
  - {name: tried, scope: [user], quota: 1/1h, mode: shadow}
";

/// A collector on a free port. It returns what it receives: headers, and spans with their service
/// name.
struct Collector {
    url: String,
    sent: Receiver<(String, BTreeMap<String, String>, Span)>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, sent) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let sender = sender.clone();
                std::thread::spawn(move || collect(stream.unwrap(), &sender));
            }
        });
        Self { url, sent }
    }

    /// The next span, and the header that came with it.
    fn next(&self) -> (String, BTreeMap<String, String>, Span) {
        self.sent.recv_timeout(LONG).expect("the collector is sent a span")
    }

    fn span(&self) -> Span {
        self.next().2
    }
}

fn collect(stream: TcpStream, sender: &Sender<(String, BTreeMap<String, String>, Span)>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        let field = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok();
        let mut body = vec![0; head.lines().find_map(field).expect("a length")];
        reader.read_exact(&mut body).unwrap();
        if head.to_ascii_lowercase().contains("\r\ncontent-encoding: gzip\r\n") {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(body.as_slice()).read_to_end(&mut plain).unwrap();
            body = plain;
        }
        let message = ExportTraceServiceRequest::decode(body.as_slice()).expect("spans");
        for resource in message.resource_spans {
            let about = texts(&resource.resource.unwrap().attributes);
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                // A test that has seen enough is gone.
                let _ = sender.send((head.clone(), about.clone(), span));
            }
        }
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}

/// Attributes as text.
fn texts(attributes: &[opentelemetry_proto::tonic::common::v1::KeyValue]) -> BTreeMap<String, String> {
    fn text(value: Value) -> String {
        match value {
            Value::StringValue(text) => text,
            Value::IntValue(number) => number.to_string(),
            Value::BoolValue(flag) => flag.to_string(),
            Value::ArrayValue(list) => {
                let texts: Vec<_> = list.values.into_iter().map(|one| text(one.value.unwrap())).collect();
                texts.join(",")
            }
            other => format!("{other:?}"),
        }
    }
    let value = |one: &opentelemetry_proto::tonic::common::v1::KeyValue| one.value.clone()?.value;
    attributes.iter().filter_map(|one| Some((one.key.clone(), text(value(one)?)))).collect()
}

fn of(span: &Span) -> BTreeMap<String, String> {
    let attributes = texts(&span.attributes);
    attributes.into_iter().map(|(name, value)| (name.replace("slidegate.", ""), value)).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn start(folder: &TempDir, traces: &str, args: &[&str]) -> Server {
    let file = folder.file("slidegate.yaml", format!("observe: {{traces: {{{traces}}}}}{POLICIES}"));
    Server::start(&[&["--config", file.as_str()], args].concat())
}

fn check(server: &Server, fields: &str, attributes: &str) -> u16 {
    let body = json!({ "attributes": serde_json::from_str::<serde_json::Value>(attributes).unwrap() });
    server.ask_with(fields, "POST", "/v1/check", Some(&body.to_string())).status
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Who follows one slow or refused request through many services must find here why it was refused.
#[test]
fn a_decision_is_a_span_of_the_callers_trace_that_says_why() {
    let collector = Collector::start();
    let folder = TempDir::new("traces-spans");
    let traces = format!("endpoint: '{}', headers: {{api-key: secret}}, service_name: edge", collector.url);
    let server = start(&folder, &traces, &[]);
    let fields = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: vendor=x\r\n");
    assert_eq!(check(&server, &fields, r#"{"user": "alice"}"#), 200);
    let (head, about, span) = collector.next();
    assert!(head.to_ascii_lowercase().contains("\r\napi-key: secret\r\n"), "{head}");
    assert_eq!(
        (about["service.name"].as_str(), about["service.version"].as_str()),
        ("edge", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!((span.name.as_str(), span.kind), ("slidegate.check", 2));
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert_eq!(span.trace_state, "vendor=x");
    assert!(span.start_time_unix_nano > 0 && span.start_time_unix_nano <= span.end_time_unix_nano);
    let expected = [
        ("cost", "1"),
        ("key", "alice"),
        ("limit", "2"),
        ("policy", "per-user"),
        ("protocol", "http"),
        ("remaining", "1"),
        ("shadow", "false"),
        ("source", "store"),
        ("verb", "check"),
        ("verdict", "allow"),
        ("window_ms", "3600000"),
    ];
    let expected: BTreeMap<String, String> =
        expected.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    assert_eq!(of(&span), expected);

    assert_eq!(check(&server, "", r#"{"user": "alice"}"#), 200);
    let alone = collector.span();
    assert!(alone.parent_span_id.is_empty() && hex(&alone.trace_id) != TRACE, "{alone:?}");
    assert_eq!(of(&alone)["shadow_denied_by"], "tried");
    assert_eq!(check(&server, "", r#"{"user": "alice"}"#), 429);
    let denied = of(&collector.span());
    assert_eq!((denied["verdict"].as_str(), denied["remaining"].as_str()), ("deny", "0"));
    assert!(denied["retry_after_ms"].parse::<u64>().unwrap() > 3_000_000, "{denied:?}");

    // No policy that denies applies, or none at all.
    check(&server, "", r#"{"nobody": "knows"}"#);
    let none = of(&collector.span());
    assert_eq!((none["verdict"].as_str(), none.get("policy")), ("allow", None));

    // Anyone who may see spans may not see more of a key than is shown elsewhere.
    check(&server, "", r#"{"card": "4111111111111111"}"#);
    let hidden = of(&collector.span());
    assert!(hidden["key"].starts_with('#') && !format!("{hidden:?}").contains("4111"), "{hidden:?}");

    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("slidegate_spans_total{outcome=\"sent\"}"), "{metrics}");
    assert_eq!(server.get("/v1/status").json()["traces"]["dropped"], 0);
}

/// Who builds an alert on an attribute must find it under its documented name, with every operation.
#[test]
fn spans_tell_the_operation_a_block_and_a_failure_of_the_store() {
    let collector = Collector::start();
    let folder = TempDir::new("traces-attributes");
    let nobody = format!("127.0.0.1:{}", ports::free());
    let traces = format!("endpoint: '{}'", collector.url);
    let server = start(&folder, &traces, &[]);
    let alice = r#"{"attributes": {"user": "alice"}}"#;
    for verb in ["check", "peek", "refund", "penalize"] {
        assert_eq!(server.post(&format!("/v1/{verb}"), alice).status, 200);
        let span = collector.span();
        assert_eq!((span.name.as_str(), of(&span)["verb"].as_str()), (&*format!("slidegate.{verb}"), verb));
    }
    let blocked = server.change("POST", "/v1/keys/per-user/alice/block", &[], r#"{"for": "1h"}"#);
    let until = blocked.json()["block"]["until"].clone();
    assert_eq!(server.post("/v1/check", alice).status, 429);
    let span = of(&collector.span());
    let found = [&span["reason"], &span["blocked_by"], &span["blocked_until"]].map(String::as_str);
    assert_eq!(found, ["blocked", "loopback", until.as_str().unwrap()]);

    // The deadline is longer than a busy machine takes to notice that nobody listens.
    let store = format!("store: {{redis: 'redis://{nobody}', deadline: 10s}}");
    let config = format!("{store}\nobserve: {{traces: {{{traces}}}}}{POLICIES}");
    let server = Server::start(&["--config", &folder.file("nobody.yaml", config)]);
    assert_eq!(server.post("/v1/check", alice).status, 200);
    let span = of(&collector.span());
    assert_eq!(span["source"], "local");
    assert!(span["store_failure"].contains("Connection refused"), "{span:?}");
}

/// A caller that does not trace a request must not be sent spans of it, and one without a trace has
/// its share.
#[test]
fn an_unsampled_parent_has_no_span_and_roots_are_subject_to_the_ratio() {
    let collector = Collector::start();
    let folder = TempDir::new("traces-ratio");
    let traces = format!("endpoint: '{}', sample_ratio: 0", collector.url);
    let server = start(&folder, &traces, &["--resp", "127.0.0.1:0"]);
    assert_eq!(check(&server, &format!("traceparent: 00-{TRACE}-{PARENT}-00\r\n"), r#"{"user": "a"}"#), 200);
    assert_eq!(check(&server, "", r#"{"user": "b"}"#), 200);
    assert_eq!(check(&server, "traceparent: nonsense\r\n", r#"{"user": "c"}"#), 200);
    resp(&server, "d");
    assert_eq!(check(&server, &format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n"), r#"{"user": "e"}"#), 200);
    assert_eq!(of(&collector.span())["key"], "e", "the only one that is wanted");
}

/// `RL.CHECK per-user KEY` at the RESP port.
fn resp(server: &Server, key: &str) {
    let mut stream = TcpStream::connect(server.address_of("resp")).unwrap();
    write!(
        stream,
        "*3\r\n$8\r\nRL.CHECK\r\n$8\r\nper-user\r\n${}\r\n{key}\r\n*1\r\n$4\r\nQUIT\r\n",
        key.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("+store"), "{answer}");
}

/// Every protocol decides, so every protocol has spans. The environment alone can enable them.
#[test]
fn other_protocols_have_spans_as_well() {
    let collector = Collector::start();
    let folder = TempDir::new("traces-protocols");
    let file = folder.file("slidegate.yaml", format!("auth: {{preset: nginx}}{POLICIES}"));
    let args = ["--config", &file, "--resp", "127.0.0.1:0"];
    let server = Server::start_with(
        &args,
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url), ("OTEL_SERVICE_NAME", "fleet")],
    );
    resp(&server, "zoe");
    let (_, about, span) = collector.next();
    assert_eq!(about["service.name"], "fleet");
    let found = of(&span);
    assert_eq!((found["protocol"].as_str(), found["key"].as_str()), ("resp", "zoe"));
    assert!(span.parent_span_id.is_empty());
    let fields =
        format!("traceparent: 00-{TRACE}-{PARENT}-01\r\nx-original-uri: /\r\nx-original-method: GET\r\n");
    let answer = server.ask_with(&fields, "GET", "/v1/auth/nginx?user=yves", None);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let span = collector.span();
    assert_eq!(
        (of(&span)["protocol"].as_str(), hex(&span.parent_span_id).as_str()),
        ("auth_request", PARENT)
    );
}

/// A fleet is configured by these variables, the same for every service.
#[test]
fn the_standard_variables_say_what_else_a_collector_is_sent() {
    let collector = Collector::start();
    let folder = TempDir::new("traces-variables");
    let file = folder.file("slidegate.yaml", POLICIES);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20secret,not a name=x,nothing"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment = test,service.version=9,nothing"),
    ];
    let server = Server::start_with(&["--config", &file], &variables);
    assert_eq!(check(&server, "", r#"{"user": "alice"}"#), 200);
    let (head, about, span) = collector.next();
    let head = head.to_ascii_lowercase();
    assert!(head.contains("\r\napi-key: a secret\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-encoding: gzip\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/x-protobuf\r\n"), "{head}");
    let version = env!("CARGO_PKG_VERSION");
    let expected = [
        ("deployment.environment", "test"),
        ("service.name", "slidegate"),
        ("service.version", version),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.name", "opentelemetry"),
    ];
    let about = about.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let about: Vec<_> = about.filter(|(key, _)| *key != "telemetry.sdk.version").collect();
    assert_eq!(about, expected);
    assert_eq!(of(&span)["key"], "alice");
}

/// A call of Envoy's is one step of the request that Envoy itself has a span for.
#[test]
fn a_grpc_call_is_a_child_of_its_callers_span() {
    let collector = Collector::start();
    let folder = TempDir::new("traces-grpc");
    let traces = format!("endpoint: '{}', sample_ratio: 0", collector.url);
    let server = start(&folder, &traces, &["--grpc", "127.0.0.1:0"]);
    let place = format!("http://{}", server.address_of("grpc"));
    assert!(
        server.greeting.contains(&format!("traces     {}/v1/traces\n", collector.url)),
        "{}",
        server.greeting
    );
    let descriptor = |user: &str| RateLimitDescriptor {
        entries: vec![Entry { key: "user".into(), value: user.into() }],
        ..RateLimitDescriptor::default()
    };
    let call = async {
        let mut client = RateLimitServiceClient::connect(place).await.unwrap();
        // Without a parent first, of which the ratio wants none.
        for (user, parent) in [("nobody", None), ("alice", Some(format!("00-{TRACE}-{PARENT}-01")))] {
            let descriptors = vec![descriptor(user)];
            let call = RateLimitRequest { domain: "web".into(), descriptors, hits_addend: 0 };
            let mut request = tonic::Request::new(call);
            if let Some(parent) = parent {
                request.metadata_mut().insert("traceparent", parent.parse().unwrap());
            }
            client.should_rate_limit(request).await.unwrap();
        }
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(call);
    let span = collector.span();
    let found = of(&span);
    assert_eq!((found["protocol"].as_str(), found["key"].as_str()), ("grpc", "alice"));
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
}

/// Anyone who mistyped the port must read why nothing arrives, and not only that it does not.
#[test]
fn the_log_says_why_a_collector_does_not_take_spans() {
    let folder = TempDir::new("traces-refused");
    let url = format!("http://127.0.0.1:{}", ports::free());
    let log = folder.file("log", "");
    let file = folder.file("slidegate.yaml", format!("observe: {{traces: {{endpoint: '{url}'}}}}{POLICIES}"));
    let output = Stdio::from(std::fs::File::create(&log).unwrap());
    let server = Server::start_logging_to(&["--config", &file], output);
    check(&server, "", r#"{"user": "a"}"#);
    let deadline = std::iter::repeat_n(Duration::from_millis(100), 900);
    let found = deadline.map(|wait| {
        std::thread::sleep(wait);
        std::fs::read_to_string(&log).unwrap()
    });
    let found = found.into_iter().find(|log| log.contains("spans were lost")).expect("a log line");
    assert!(found.contains("lost=1 failed=1 dropped=0") && found.contains("Connection refused"), "{found}");
    assert_eq!(server.get("/v1/status").json()["traces"]["failed"], 1);
}

/// Traces are about the service, not a part of it: a collector that is gone, or that never answers,
/// must not be felt.
#[test]
fn a_dead_collector_holds_up_no_decision_and_its_losses_are_told() {
    let folder = TempDir::new("traces-dead");
    // Nobody accepts what comes here.
    let stuck = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", stuck.local_addr().unwrap());
    let log = folder.file("log", "");
    let file = folder.file("slidegate.yaml", format!("observe: {{traces: {{endpoint: '{url}'}}}}{POLICIES}"));
    let mut server =
        Server::start_logging_to(&["--config", &file], Stdio::from(std::fs::File::create(&log).unwrap()));
    // More than the buffers hold; all of them are answered while the first request is on its way to
    // nowhere.
    let asks = vec![json!({ "attributes": { "user": "a" } }); 1000];
    let batch = json!({ "requests": asks }).to_string();
    for _ in 0..40 {
        assert_eq!(server.post("/v1/check/batch", &batch).status, 200);
    }
    let spans = server.get("/v1/status").json()["traces"].clone();
    assert_eq!(spans["endpoint"], format!("{url}/v1/traces"));
    let (dropped, sent) = (spans["dropped"].as_u64().unwrap(), spans["sent"].as_u64().unwrap());
    assert!(sent == 0 && dropped > 0, "{spans}");
    server.signal("TERM");
    assert!(server.wait().success(), "a stopping service does not wait forever");
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(
        log.contains("spans were lost: the collector rejects them or is too slow; decisions are not delayed"),
        "{log}"
    );
}
