//! The gRPC door, with a client that is generated from Envoy's own definitions.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Folder, Server, run, slidegate, text};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code as GrpcCode, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

type Client = RateLimitServiceClient<Channel>;

/// A server whose gRPC door is open on a free port.
fn start(args: &[&str]) -> Server {
    Server::start(&[&["--grpc", "127.0.0.1:0"], args].concat())
}

/// Where the door is, as the greeting has it: `http://127.0.0.1:40000`.
fn door(server: &Server) -> String {
    let line = server.greeting.lines().find_map(|line| line.strip_prefix("grpc       "));
    line.unwrap_or_else(|| panic!("no door: {}", server.greeting)).to_owned()
}

async fn channel(server: &Server) -> Channel {
    Endpoint::new(door(server)).unwrap().connect().await.expect("the door is open")
}

async fn client(server: &Server) -> Client {
    Client::new(channel(server).await)
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

/// The same with hits of its own.
fn hitting(hits: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor }
}

fn user(name: &str) -> RateLimitDescriptor {
    descriptor(&[("user", name)])
}

async fn ask(
    client: &mut Client,
    descriptors: &[RateLimitDescriptor],
    hits: u32,
) -> Result<RateLimitResponse, Status> {
    let request =
        RateLimitRequest { domain: "web".into(), descriptors: descriptors.to_vec(), hits_addend: hits };
    client.should_rate_limit(request).await.map(tonic::Response::into_inner)
}

async fn answer(client: &mut Client, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
    ask(client, descriptors, 0).await.expect("an answer")
}

/// The code of each status and what remains there.
fn told(answer: &RateLimitResponse) -> Vec<(Code, u32)> {
    answer.statuses.iter().map(|status| (status.code(), status.limit_remaining)).collect()
}

fn limit(status: &DescriptorStatus) -> (u32, Unit, &str) {
    let limit = status.current_limit.as_ref().expect("there is a limit");
    (limit.requests_per_unit, limit.unit(), &limit.name)
}

fn seconds(status: &DescriptorStatus) -> i64 {
    let span = status.duration_until_reset.expect("it is always told");
    assert_eq!(span.nanos, 0, "Envoy drops them");
    span.seconds
}

fn string<'m>(metadata: &'m Struct, name: &str) -> &'m str {
    match &metadata.fields[name].kind {
        Some(Kind::StringValue(text)) => text,
        other => panic!("{name} is {other:?}"),
    }
}

/// Envoy makes x-ratelimit-* of the statuses and logs of them: one that is not filled is a header that is missing.
#[tokio::test]
async fn every_status_says_code_limit_remaining_and_reset() {
    let server =
        start(&["--policy", "3/1h per user", "--policy", "100/1m per path", "--policy", "7/2s per odd"]);
    let mut client = client(&server).await;
    let descriptors = [
        user("alice"),
        descriptor(&[("path", "/")]),
        descriptor(&[("odd", "x")]),
        descriptor(&[("no", "x")]),
    ];
    let first = answer(&mut client, &descriptors).await;
    assert_eq!(first.overall_code(), Code::Ok);
    assert_eq!(told(&first), [(Code::Ok, 2), (Code::Ok, 99), (Code::Ok, 6), (Code::Ok, 0)]);
    assert_eq!(limit(&first.statuses[0]), (3, Unit::Hour, "per-user"));
    assert_eq!(limit(&first.statuses[1]), (100, Unit::Minute, "per-path"));
    assert_eq!(limit(&first.statuses[2]), (7, Unit::Unknown, "per-odd"));
    assert_eq!(seconds(&first.statuses[0]), 3600);
    assert_eq!(first.statuses[3], DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() });
    assert_eq!((&first.response_headers_to_add[..], &first.dynamic_metadata), (&[][..], &None));
}

/// A refused descriptor must not burn what another has, nor be burnt itself.
#[tokio::test]
async fn descriptors_are_charged_all_or_none() {
    let server = start(&["--policy", "2/1h per user", "--policy", "5/1h per path"]);
    let mut client = client(&server).await;
    let both = [user("alice"), descriptor(&[("path", "/")])];
    for _ in 0..2 {
        assert_eq!(answer(&mut client, &both).await.overall_code(), Code::Ok);
    }
    for _ in 0..3 {
        let denied = answer(&mut client, &both).await;
        assert_eq!(denied.overall_code(), Code::OverLimit);
        assert_eq!(told(&denied), [(Code::OverLimit, 0), (Code::Ok, 3)]);
    }
    assert_eq!(told(&answer(&mut client, &both[1..]).await), [(Code::Ok, 2)]);
    // Two descriptors on one key ask for both hits at once.
    let twice = answer(&mut client, &[user("bob"), user("bob"), user("bob")]).await;
    assert_eq!(told(&twice), [(Code::OverLimit, 2); 3]);
    assert_eq!(told(&answer(&mut client, &[user("bob"), user("bob")]).await), [(Code::Ok, 0); 2]);
}

/// Batches and tokens cost more than one, a look must cost nothing, and what was not used comes back.
#[tokio::test]
async fn hits_are_those_of_the_descriptor_then_of_the_call_then_one() {
    let server = start(&["--policy", "10/1h per user"]);
    let mut client = client(&server).await;
    let mut remaining = async |descriptor: RateLimitDescriptor, hits| {
        let answer = ask(&mut client, &[descriptor], hits).await.unwrap();
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    };
    assert_eq!(remaining(user("a"), 0).await, (Code::Ok, 9));
    assert_eq!(remaining(user("a"), 3).await, (Code::Ok, 6));
    assert_eq!(remaining(hitting(2, user("a")), 3).await, (Code::Ok, 4));
    assert_eq!(remaining(hitting(0, user("a")), 3).await, (Code::Ok, 4));
    assert_eq!(remaining(hitting(5, user("a")), 0).await, (Code::OverLimit, 4));
    assert_eq!(remaining(hitting(4, user("a")), 0).await, (Code::Ok, 0));
    assert_eq!(remaining(hitting(0, user("a")), 0).await, (Code::Ok, 0), "a look at a full key is no denial");
    let back = |hits| RateLimitDescriptor { is_negative_hits: true, ..hitting(hits, user("a")) };
    assert_eq!(remaining(back(6), 0).await, (Code::Ok, 6));
    assert_eq!(remaining(back(100), 0).await, (Code::Ok, 10), "no more comes back than was charged");
    assert_eq!(remaining(user("a"), 0).await, (Code::Ok, 9));

    // Who is refused tries again, with what is to be given back.
    let mixed = [back(1), hitting(11, user("b"))];
    let denied = answer(&mut client, &mixed).await;
    assert_eq!(told(&denied), [(Code::Ok, 9), (Code::OverLimit, 10)]);
    let mixed = [back(1), hitting(10, user("b"))];
    assert_eq!(told(&answer(&mut client, &mixed).await), [(Code::Ok, 10), (Code::Ok, 0)]);
}

/// A service that answers with tokens knows their number afterwards: what exceeds is waited out, and looks must see it.
#[tokio::test]
async fn costs_known_afterwards_are_charged_in_full_and_looks_deny_then() {
    let folder = Folder::new("rls-tokens");
    let config = folder.file(
        "tokens.yaml",
        "policies:\n  - {name: tokens, scope: [user], quota: 7/1h, excess: charge}\n  - {name: calls, scope: [call], quota: 9/1h}\n",
    );
    let server = start(&["--config", &config]);
    let mut client = client(&server).await;
    let look = [hitting(0, user("alice")), descriptor(&[("call", "x")])];
    let charge = [hitting(4, user("alice"))];
    for (seen, left) in [(Code::Ok, 3), (Code::Ok, 0)] {
        assert_eq!(answer(&mut client, &look).await.overall_code(), seen);
        assert_eq!(told(&answer(&mut client, &charge).await), [(Code::Ok, left)]);
    }
    let denied = answer(&mut client, &look).await;
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(told(&denied), [(Code::OverLimit, 0), (Code::Ok, 7)], "the refused call is charged nowhere");
    let metadata = denied.dynamic_metadata.unwrap();
    assert_eq!((string(&metadata, "policy"), string(&metadata, "key")), ("tokens", "alice"));
    let wait: u64 = denied.response_headers_to_add[0].value.parse().unwrap();
    assert!((3000..=3600).contains(&wait), "{wait}");
}

/// A limit that comes with the request takes the policy's place, and what was used goes on counting.
#[tokio::test]
async fn a_limit_of_the_request_decides_instead_of_the_policies() {
    let server = start(&["--policy", "2/1h per user using sliding-window"]);
    let mut client = client(&server).await;
    let own = |requests_per_unit, unit: Unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit, unit: unit.into() }),
        ..user("alice")
    };
    assert_eq!(told(&answer(&mut client, &[user("alice")]).await), [(Code::Ok, 1)]);
    let wider = answer(&mut client, &[own(5, Unit::Hour)]).await;
    assert_eq!(told(&wider), [(Code::Ok, 3)]);
    assert_eq!(limit(&wider.statuses[0]), (5, Unit::Hour, "per-user"));
    assert_eq!(told(&answer(&mut client, &[user("alice")]).await), [(Code::OverLimit, 0)]);
    let other = RateLimitDescriptor { entries: user("x").entries, ..own(1, Unit::Day) };
    assert_eq!(limit(&answer(&mut client, &[other]).await.statuses[0]), (1, Unit::Day, "per-user"));
    let error = ask(&mut client, &[user("alice"), own(5, Unit::Unknown)], 0).await.unwrap_err();
    assert_eq!(error.code(), GrpcCode::InvalidArgument);
    assert_eq!(
        error.message(),
        "descriptors[1]: limit.unit is 0; give SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
    );
}

/// A new limit is tried before it denies, and the enforced one beside it must still be told.
#[tokio::test]
async fn shadow_policies_are_told_and_never_deny() {
    let folder = Folder::new("rls-shadow");
    let config = folder.file(
        "shadow.yaml",
        "policies:\n  - {name: tried, scope: [user], quota: 1/1h, mode: shadow}\n  - {name: kept, scope: [path], quota: 5/1h}\n",
    );
    let server = start(&["--config", &config]);
    let mut client = client(&server).await;
    assert_eq!(told(&answer(&mut client, &[user("alice")]).await), [(Code::Ok, 0)]);
    let over = answer(&mut client, &[user("alice")]).await;
    assert_eq!((over.overall_code(), told(&over)), (Code::Ok, vec![(Code::Ok, 0)]));
    assert_eq!(limit(&over.statuses[0]), (1, Unit::Hour, "tried"));
    let both = answer(&mut client, &[descriptor(&[("user", "alice"), ("path", "/")])]).await;
    assert_eq!(limit(&both.statuses[0]), (5, Unit::Hour, "kept"));
}

/// Access logs of the proxy are where a denial is looked up: they must say who denied and why.
#[tokio::test]
async fn a_denial_says_policy_key_and_why_and_when_to_come_again() {
    let server = start(&["--policy", "1/1h per user,path named login"]);
    let mut client = client(&server).await;
    let descriptors = [descriptor(&[("other", "x")]), descriptor(&[("path", "/login"), ("user", "alice")])];
    answer(&mut client, &descriptors).await;
    let denied = answer(&mut client, &descriptors).await;
    let metadata = denied.dynamic_metadata.as_ref().unwrap();
    assert_eq!(string(metadata, "policy"), "login");
    assert_eq!(string(metadata, "key"), "alice,/login");
    let why = string(metadata, "why");
    assert!(why.starts_with("login: `alice,/login` has used 1 of 1 per 1h; the cost fits in 3"), "{why}");
    assert_eq!(string(metadata, "source"), "store");
    assert_eq!(metadata.fields["descriptor"].kind, Some(Kind::NumberValue(1.0)));
    assert_eq!(metadata.fields["limit"].kind, Some(Kind::NumberValue(1.0)));
    let [retry_after] = &denied.response_headers_to_add[..] else { panic!("{denied:?}") };
    assert_eq!(retry_after.key, "retry-after");
    let wait: i64 = retry_after.value.parse().unwrap();
    assert_eq!(wait, seconds(&denied.statuses[1]));
    assert!((3000..=3600).contains(&wait), "{wait}");
    // What never fits has no time to come again.
    let never = ask(&mut client, &[descriptor(&[("path", "/x"), ("user", "a")])], 2).await.unwrap();
    assert_eq!(never.response_headers_to_add, []);
    assert_eq!(never.dynamic_metadata.unwrap().fields["retry_after_ms"].kind, Some(Kind::NullValue(0)));
}

/// Clients that read the standard fields get them from every answer, if the configuration says so.
#[tokio::test]
async fn response_headers_are_those_of_the_configuration() {
    let folder = Folder::new("rls-headers");
    let config = folder.file(
        "headers.yaml",
        "policies: [{name: p, scope: [user], quota: 1/1h}]\ngrpc: {listen: '127.0.0.1:0', response_headers: true}\n\
         headers: {x_ratelimit: off, retry_after_ms: true}\n",
    );
    let server = Server::start(&["--config", &config]);
    let mut client = client(&server).await;
    let names = |answer: &RateLimitResponse| {
        let headers = answer.response_headers_to_add.iter();
        headers.map(|header| format!("{}: {}", header.key, header.value)).collect::<Vec<_>>()
    };
    let allowed = names(&answer(&mut client, &[user("alice")]).await);
    assert_eq!(allowed, [r#"ratelimit-policy: "p";q=1;w=3600"#, r#"ratelimit: "p";r=0;t=3600"#]);
    let denied = names(&answer(&mut client, &[user("alice")]).await);
    assert_eq!(denied[0], r#"ratelimit-policy: "p";q=1;w=3600"#);
    assert!(
        denied[2].starts_with("retry-after: 3") && denied[3].starts_with("retry-after-ms: 3"),
        "{denied:?}"
    );
    assert_eq!(denied.len(), 4);
}

/// Every call that is none gets an error that says what is wrong with it, and the next one is answered.
#[tokio::test]
async fn what_is_no_request_is_refused_with_a_reason() {
    let server = start(&["--policy", "9/1h per user", "--policy", "9/1h per ip"]);
    let mut client = client(&server).await;
    let domain = |domain: &str, descriptors: Vec<RateLimitDescriptor>| RateLimitRequest {
        domain: domain.into(),
        descriptors,
        hits_addend: 0,
    };
    let long = "x".repeat(8193);
    let many = descriptor(&vec![("k", "v"); 40].iter().enumerate().map(|_| ("k", "v")).collect::<Vec<_>>());
    for (request, expected) in [
        (domain("", vec![user("a")]), "rate limit domain must not be empty"),
        (domain("web", vec![]), "rate limit descriptor list must not be empty"),
        (domain("web", vec![user("a"); 65]), "the request has 65 descriptors; send at most 64"),
        (domain("web", vec![user("a"), many]), "descriptors[1]: attribute `k` stands twice; give it once"),
        (
            domain("web", vec![descriptor(&[("ip", "nowhere")])]),
            "descriptors[0]: attribute `ip` is no IP address: `nowhere`; write for example `192.0.2.7` or `2001:db8::7`",
        ),
        (
            domain("web", vec![user(&long)]),
            "descriptors[0]: attribute `user` has 8193 bytes; give at most 8192",
        ),
        (
            domain("web", vec![descriptor(&[("", "x")])]),
            "descriptors[0]: the name of attribute 2 has 0 bytes; give 1 to 128",
        ),
        (
            domain("web", vec![hitting(1 << 53, user("a"))]),
            "descriptors[0]: cost 9007199254740992 is too large; give a whole number from 0 to 9007199254740991",
        ),
    ] {
        let error = client.should_rate_limit(request).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (GrpcCode::InvalidArgument, expected));
    }
    let large = client.should_rate_limit(domain("web", vec![user(&long); 10])).await.unwrap_err();
    assert_eq!(large.code(), GrpcCode::OutOfRange, "{large}");
    assert_eq!(told(&answer(&mut client, &[user("a")]).await), [(Code::Ok, 8)]);
    // A path that is none says which is.
    let mut health = HealthClient::with_origin(channel(&server).await, "http://x/none".parse().unwrap());
    let error = health.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(
        error.message(),
        "there is no `/none/grpc.health.v1.Health/Check`; call /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    );
}

/// Load balancers take a server out by its health before it is gone; those who watch must not hold it up.
#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_until_the_server_stops_and_watchers_do_not_hold_it_up() {
    let mut server = start(&[]);
    let mut health = HealthClient::new(channel(&server).await);
    let asked = |service: &str| HealthCheckRequest { service: service.into() };
    for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        let answer = health.check(asked(service)).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    assert_eq!(health.check(asked("other")).await.unwrap_err().code(), GrpcCode::NotFound);
    let mut watched = health.watch(asked("ratelimit")).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.signal("TERM");
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(watched.message().await.unwrap(), None);
    assert!(server.wait().success());
}

/// grpcurl and its like know nothing but what reflection tells them.
#[tokio::test]
async fn reflection_lists_the_services_and_describes_them() {
    let server = start(&[]);
    let mut reflection = ServerReflectionClient::new(channel(&server).await);
    let mut tell = async |asked| {
        let request =
            ServerReflectionRequest { message_request: Some(asked), ..ServerReflectionRequest::default() };
        let answers = reflection.server_reflection_info(tokio_stream_of(request)).await.unwrap();
        answers.into_inner().message().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) = tell(MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list")
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    assert_eq!(names, ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"]);
    for name in names {
        let MessageResponse::FileDescriptorResponse(file) =
            tell(MessageRequest::FileContainingSymbol(name.clone())).await
        else {
            panic!("{name} is not described")
        };
        assert!(!file.file_descriptor_proto.is_empty(), "{name}");
    }
}

/// A stream of one request.
fn tokio_stream_of<T: Send + 'static>(one: T) -> impl tonic::IntoStreamingRequest<Message = T> {
    tonic::Request::new(tokio_stream::once(one))
}

/// A sidecar talks over a file; one that a crash left behind must not keep the next process from starting.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_file_is_served_taken_over_when_left_behind_and_removed() {
    let folder = Folder::new("rls-socket");
    let socket = folder.file("grpc.sock", "");
    std::fs::remove_file(&socket).unwrap();
    // What a process leaves that had no time to clean up.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let config = folder
        .file("socket.yaml", format!("policies: [{{name: p, quota: 3/1h}}]\ngrpc: {{socket: {socket}}}\n"));
    let mut server = Server::start(&["--config", &config]);
    assert_eq!(door(&server), format!("unix:{socket}"));
    let mut client = Client::new(Endpoint::new(format!("unix:{socket}")).unwrap().connect().await.unwrap());
    assert_eq!(told(&answer(&mut client, &[user("alice")]).await), [(Code::Ok, 2)]);

    let second = run(&["serve", "--listen", "127.0.0.1:0", "--config", &config]);
    assert_eq!(
        text(&second.stderr),
        format!(
            "cannot listen to {socket} for grpc: another process listens there; choose another path with `grpc: {{socket: \
             ...}}`\n"
        )
    );
    drop(client);
    server.signal("TERM");
    assert!(server.wait().success());
    assert!(!Path::new(&socket).exists());
}

/// Two servers on one port would share the traffic by chance.
#[test]
fn an_address_in_use_is_refused_with_the_way_out() {
    let server = start(&[]);
    let address = door(&server).replace("http://", "");
    let second = run(&["serve", "--listen", "127.0.0.1:0", "--grpc", &address]);
    let error = text(&second.stderr);
    assert!(
        error.starts_with(&format!("cannot listen to {address} for grpc: Address already in use")),
        "{error}"
    );
    assert!(error.trim_end().ends_with("; choose another address with --grpc"), "{error}");
}

/// An authority and what it signs, made by openssl.
struct Authority<'f> {
    folder: &'f Folder,
    name: &'static str,
}

impl<'f> Authority<'f> {
    fn new(folder: &'f Folder, name: &'static str) -> Self {
        let (certificate, key) =
            (folder.file(&format!("{name}.crt"), ""), folder.file(&format!("{name}.key"), ""));
        openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            &format!("/CN={name}"),
            "-keyout",
            &key,
            "-out",
            &certificate,
        ]);
        Self { folder, name }
    }

    fn path(&self, name: &str) -> String {
        self.folder.file(name, "")
    }

    fn pem(&self) -> Vec<u8> {
        std::fs::read(self.folder_path(&format!("{}.crt", self.name))).unwrap()
    }

    fn folder_path(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.folder.path()).join(name)
    }

    /// A certificate for this DNS name, signed; gives it and its key.
    fn sign(&self, dns: &str) -> (Vec<u8>, Vec<u8>) {
        let (request, key, certificate) = (self.path("x.csr"), self.path("x.key"), self.path("x.crt"));
        openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            "/CN=x",
            "-addext",
            &format!("subjectAltName=DNS:{dns}"),
            "-keyout",
            &key,
            "-out",
            &request,
        ]);
        let (ca, ca_key) = (
            self.folder_path(&format!("{}.crt", self.name)),
            self.folder_path(&format!("{}.key", self.name)),
        );
        openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            ca.to_str().unwrap(),
            "-CAkey",
            ca_key.to_str().unwrap(),
            "-CAcreateserial",
            "-days",
            "2",
            "-copy_extensions",
            "copy",
            "-out",
            &certificate,
        ]);
        (std::fs::read(certificate).unwrap(), std::fs::read(key).unwrap())
    }
}

fn openssl(args: &[&str]) {
    let output = Command::new("openssl").args(args).output().expect("the program openssl is installed");
    assert!(output.status.success(), "openssl {args:?}: {}", text(&output.stderr));
}

/// A connection over TLS to a door that shows a certificate for this name.
async fn secure(
    server: &Server,
    name: &str,
    authority: &Authority<'_>,
    identity: Option<&(Vec<u8>, Vec<u8>)>,
) -> Result<Client, tonic::transport::Error> {
    let mut tls =
        ClientTlsConfig::new().domain_name(name).ca_certificate(Certificate::from_pem(authority.pem()));
    if let Some((certificate, key)) = identity {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    Ok(Client::new(Endpoint::new(door(server))?.tls_config(tls)?.connect().await?))
}

/// Whether a call comes through: with TLS 1.3 a client learns at its first read that its certificate was refused.
async fn is_let_in(
    server: &Server,
    name: &str,
    authority: &Authority<'_>,
    identity: Option<&(Vec<u8>, Vec<u8>)>,
) -> bool {
    match secure(server, name, authority, identity).await {
        Ok(mut client) => ask(&mut client, &[user("alice")], 0).await.is_ok(),
        Err(_) => false,
    }
}

/// Waits until `holds` does, as long as it takes on a loaded machine.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what} did not come about in a minute");
}

/// Certificates live for weeks and servers for months: a door that has to be restarted for a new one is one that expires.
#[tokio::test]
async fn a_changed_certificate_is_shown_to_new_connections_and_a_bad_one_is_not() {
    let folder = Folder::new("rls-tls");
    let authority = Authority::new(&folder, "authority");
    let write = |(certificate, key): (Vec<u8>, Vec<u8>)| {
        (folder.file("server.crt", certificate), folder.file("server.key", key))
    };
    let (cert_file, key_file) = write(authority.sign("old.test"));
    let config = folder.file(
        "tls.yaml",
        format!(
            "policies: [{{name: p, quota: 1000/1h}}]\n\
             grpc: {{listen: '127.0.0.1:0', cert_file: {cert_file}, key_file: {key_file}}}\n"
        ),
    );
    let log = folder.file("log", "");
    let server = Server::start_logging_to(&["--config", &config], File::create(&log).unwrap());
    assert!(door(&server).starts_with("https://"));
    let mut kept = secure(&server, "old.test", &authority, None).await.unwrap();
    answer(&mut kept, &[user("alice")]).await;
    assert!(!is_let_in(&server, "new.test", &authority, None).await);
    // Nobody without TLS.
    let plain = Endpoint::new(door(&server).replace("https", "http")).unwrap().connect().await;
    if let Ok(channel) = plain {
        assert!(ask(&mut Client::new(channel), &[user("alice")], 0).await.is_err());
    }

    folder.file("server.crt", "no certificate");
    let said = || std::fs::read_to_string(&log).unwrap();
    until("a word about the bad certificate", async || said().contains("the old one stays in use")).await;
    let line =
        format!("grpc: cert_file `{cert_file}` cannot be used: it holds no certificate; give a file in PEM");
    assert!(said().contains(&line), "{}", said());
    assert!(is_let_in(&server, "old.test", &authority, None).await);

    write(authority.sign("new.test"));
    until("the new certificate", async || is_let_in(&server, "new.test", &authority, None).await).await;
    assert!(!is_let_in(&server, "old.test", &authority, None).await);
    answer(&mut kept, &[user("alice")]).await;
}

/// A limiter that anybody may ask is one whose limits anybody may use up.
#[tokio::test]
async fn with_a_client_authority_only_its_clients_come_in() {
    let folder = Folder::new("rls-mtls");
    let (authority, stranger) = (Authority::new(&folder, "authority"), Authority::new(&folder, "stranger"));
    let (certificate, key) = authority.sign("limits.test");
    let (cert_file, key_file) = (folder.file("server.crt", certificate), folder.file("server.key", key));
    let ca_file = folder.file("clients.crt", authority.pem());
    let envoy = authority.sign("envoy.test");
    let config = folder.file(
        "mtls.yaml",
        format!(
            "policies: [{{name: p, quota: 1000/1h}}]\ngrpc:\n  listen: '127.0.0.1:0'\n  cert_file: {cert_file}\n  \
             key_file: {key_file}\n  client_ca_file: {ca_file}\n  client_name: envoy.test\n"
        ),
    );
    let server = Server::start(&["--config", &config]);
    assert!(is_let_in(&server, "limits.test", &authority, Some(&envoy)).await);
    assert!(!is_let_in(&server, "limits.test", &authority, None).await);
    assert!(!is_let_in(&server, "limits.test", &authority, Some(&stranger.sign("envoy.test"))).await);
    assert!(!is_let_in(&server, "limits.test", &authority, Some(&authority.sign("other.test"))).await);
}

/// A certificate that cannot be used at the start must not become a door without one.
#[test]
fn a_certificate_that_is_none_ends_the_start_with_a_reason() {
    let folder = Folder::new("rls-bad-tls");
    let key = folder.file("key", "");
    let config = folder.file(
        "tls.yaml",
        format!("policies: [{{name: p, quota: 1/1h}}]\ngrpc: {{listen: '127.0.0.1:0', cert_file: /none, key_file: {key}}}\n"),
    );
    let output =
        slidegate().args(["serve", "--listen", "127.0.0.1:0", "--config", &config]).output().unwrap();
    assert_eq!(
        text(&output.stderr),
        "grpc: cert_file `/none` cannot be used: No such file or directory (os error 2); give a file in PEM\n"
    );
}

/// Like envoyproxy/ratelimit's own example. Years, as no test may run across the border of a fixed window.
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
  - {key: tokens, metadata: {slidegate: {excess: charge}}, rate_limit: {unit: year, requests_per_unit: 7}}
";

/// A server that takes the reference's place with these files and variables, its windows fixed.
fn in_place(folder: &Folder, variables: &[(&str, &str)]) -> Server {
    let (files, file) =
        (Path::new(folder.path()).join("config"), Path::new(folder.path()).join("config/basic.yaml"));
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(file, BASIC).unwrap();
    let defaults = [
        ("RUNTIME_ROOT", folder.path()),
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

/// Whoever changes the service keeps the files, and the proxies must not notice: codes, limits, names, order.
#[tokio::test]
async fn the_references_files_decide_as_they_do_there() {
    let folder = Folder::new("rls-reference");
    let server = in_place(&folder, &[]);
    let mut client = client(&server).await;
    let nested: &[(&str, &str)] = &[("key1", "value1"), ("subkey1", "something")];
    let mixed =
        asked(&mut client, &[&[("key6", "x")], nested, &[("none", "x")], &[("key2", "value3")]]).await;
    assert_eq!(mixed.overall_code(), Code::Ok);
    assert_eq!(told(&mixed), [(Code::Ok, u32::MAX), (Code::Ok, 4), (Code::Ok, 0), (Code::Ok, 0)]);
    assert_eq!(limit(&mixed.statuses[1]), (5, Unit::Year, ""));
    assert!(mixed.statuses[0].current_limit.is_none() && mixed.statuses[2].duration_until_reset.is_none());
    for left in (0..4).rev() {
        assert_eq!(told(&asked(&mut client, &[nested]).await), [(Code::Ok, left)]);
    }
    let denied = asked(&mut client, &[nested, &[("key2", "a")]]).await;
    assert_eq!(
        (denied.overall_code(), told(&denied)),
        (Code::OverLimit, vec![(Code::OverLimit, 0), (Code::Ok, 20)])
    );
    // A fixed window ends when the clock says so, whenever it began to be used.
    assert!((1..=365 * 86_400).contains(&seconds(&denied.statuses[0])));
    let named = asked(&mut client, &[&[("key4", "any")]]).await;
    assert_eq!(limit(&named.statuses[0]), (1, Unit::Year, "key4_rate_limit"));
    // A limit that comes with the request counts apart.
    let own = RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: 10, unit: Unit::Year.into() }),
        ..descriptor(nested)
    };
    let request = RateLimitRequest { domain: "test-domain".into(), descriptors: vec![own], hits_addend: 3 };
    let answer = client.should_rate_limit(request.clone()).await.unwrap().into_inner();
    assert_eq!(told(&answer), [(Code::Ok, 7)]);
    let elsewhere = RateLimitRequest { domain: "foo_domain".into(), ..request };
    assert_eq!(told(&client.should_rate_limit(elsewhere).await.unwrap().into_inner()), [(Code::Ok, 0)]);
}

/// What may not deny must not, and what denies only together must not deny alone.
#[tokio::test]
async fn shadow_quota_and_replaced_limits_deny_as_they_do_there() {
    let folder = Folder::new("rls-modes");
    let server = in_place(&folder, &[]);
    let mut client = client(&server).await;
    let (tried, key4): (&[_], &[_]) = (&[("tried", "x")], &[("key4", "x")]);
    assert_eq!(told(&asked(&mut client, &[tried]).await), [(Code::Ok, 0)]);
    let shadow = asked(&mut client, &[tried, key4]).await;
    assert_eq!((shadow.overall_code(), told(&shadow)), (Code::Ok, vec![(Code::Ok, 0), (Code::Ok, 0)]));
    assert_eq!(limit(&shadow.statuses[0]), (1, Unit::Year, ""));
    assert_eq!(asked(&mut client, &[tried, key4]).await.overall_code(), Code::OverLimit);

    let (one, two): (&[_], &[_]) = (&[("quota1", "x")], &[("quota2", "x")]);
    assert_eq!(told(&asked(&mut client, &[one, two]).await), [(Code::Ok, 0), (Code::Ok, 1)]);
    let half = asked(&mut client, &[one, two]).await;
    assert_eq!((half.overall_code(), told(&half)), (Code::Ok, vec![(Code::OverLimit, 0), (Code::Ok, 0)]));
    let none = asked(&mut client, &[one, two, &[("key2", "q")]]).await;
    assert_eq!(none.overall_code(), Code::OverLimit);
    assert_eq!(told(&none)[2], (Code::Ok, 20), "what is refused is charged nowhere");
    assert_eq!(asked(&mut client, &[one, &[("key2", "q")]]).await.overall_code(), Code::OverLimit);
    assert_eq!(asked(&mut client, &[&[("quota2", "new")], one]).await.overall_code(), Code::Ok);

    let (wide, narrow): (&[_], &[_]) = (&[("wide", "x")], &[("narrow", "x")]);
    for left in (0..3).rev() {
        assert_eq!(told(&asked(&mut client, &[wide, narrow]).await), [(Code::Ok, 0), (Code::Ok, left)]);
    }
    assert_eq!(told(&asked(&mut client, &[wide]).await), [(Code::Ok, 0)], "it was not counted");
    assert_eq!(asked(&mut client, &[wide]).await.overall_code(), Code::OverLimit);

    // Three charges of 4 and a look.
    let tokens = |hits| RateLimitRequest {
        domain: "test-domain".into(),
        descriptors: vec![hitting(hits, descriptor(&[("tokens", "x")]))],
        hits_addend: 0,
    };
    for (hits, code) in [(4, Code::Ok), (4, Code::Ok), (0, Code::OverLimit), (4, Code::OverLimit)] {
        let answer = client.should_rate_limit(tokens(hits)).await.unwrap().into_inner();
        assert_eq!(answer.overall_code(), code, "{hits}");
    }
}

/// Dashboards and clients read these names and this shape.
#[tokio::test]
async fn headers_metadata_and_global_shadow_are_as_the_variables_say() {
    let folder = Folder::new("rls-variables");
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
        let told = answer.response_headers_to_add.iter();
        told.map(|header| (header.key.clone(), header.value.clone())).collect::<Vec<_>>()
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
    assert_eq!((over.overall_code(), told(&over)), (Code::Ok, vec![(Code::OverLimit, 0), (Code::Ok, 0)]));
}

/// Scripts and probes talk to the reference over HTTP: bodies and codes.
#[tokio::test]
async fn json_healthcheck_and_rlconfig_answer_as_the_reference_does() {
    let folder = Folder::new("rls-json");
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
        r#"{"domain":"test-domain","descriptors":[{"entries":[{"key":"a","value":"b"}],"limit":{"requests_per_unit":5,"unit":"WEEK"}}]}"#,
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

/// Without any configuration everything would pass: it must be an error, and be seen by health checks where that is asked.
#[tokio::test]
async fn without_files_calls_fail_until_they_come() {
    let folder = Folder::new("rls-late");
    let root = folder.path().to_owned();
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
    std::fs::create_dir_all(Path::new(folder.path()).join("config")).unwrap();
    std::fs::write(Path::new(folder.path()).join("config/basic.yaml"), BASIC).unwrap();
    until("health after the files have come", async || is_serving().await).await;
    assert_eq!(told(&asked(&mut client, &[&[("key2", "x")]]).await), [(Code::Ok, 19)]);
    // Limits change while calls come, and none of these fails.
    std::fs::write(Path::new(folder.path()).join("config/basic.yaml"), "domain: test-domain\ndescriptors: [{key: key2, rate_limit: {unit: minute, requests_per_unit: 30}}]\n").unwrap();
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
