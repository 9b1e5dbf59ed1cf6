//! The gRPC listener: health, reflection, socket files, addresses, certificates.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use slidegate_testkit::TempDir;
use slidegate_testkit::certificates::{Authority, Certificate as Signed};
use slidegate_testkit::service::{Server, run, slidegate, text};
use tonic::Code as GrpcCode;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::client::{Client, answer, ask, channel, grpc_url, start, statuses, until, user};

/// Load balancers take a server out by its health before it is gone; those who watch must not hold
/// it up.
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

/// grpcurl and similar tools know only what reflection returns.
#[tokio::test]
async fn reflection_lists_the_services_and_describes_them() {
    let server = start(&[]);
    let mut reflection = ServerReflectionClient::new(channel(&server).await);
    let mut reflect = async |asked| {
        let request =
            ServerReflectionRequest { message_request: Some(asked), ..ServerReflectionRequest::default() };
        let answers = reflection.server_reflection_info(tokio_stream_of(request)).await.unwrap();
        answers.into_inner().message().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) =
        reflect(MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list")
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    assert_eq!(names, ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"]);
    for name in names {
        let MessageResponse::FileDescriptorResponse(file) =
            reflect(MessageRequest::FileContainingSymbol(name.clone())).await
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

/// A sidecar talks over a file; one that a crash left behind must not keep the next process from
/// starting.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_file_is_served_taken_over_when_left_behind_and_removed() {
    let folder = TempDir::new("rls-socket");
    let socket = folder.file("grpc.sock", "");
    std::fs::remove_file(&socket).unwrap();
    // What a process leaves that had no time to clean up.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let config = folder
        .file("socket.yaml", format!("policies: [{{name: p, quota: 3/1h}}]\ngrpc: {{socket: {socket}}}\n"));
    let mut server = Server::start(&["--config", &config]);
    assert_eq!(grpc_url(&server), format!("unix:{socket}"));
    let mut client = Client::new(Endpoint::new(format!("unix:{socket}")).unwrap().connect().await.unwrap());
    assert_eq!(statuses(&answer(&mut client, &[user("alice")]).await), [(Code::Ok, 2)]);

    let second = run(&["serve", "--listen", "127.0.0.1:0", "--config", &config]);
    assert_eq!(
        text(&second.stderr),
        format!(
            "cannot listen on {socket}: another process listens there; choose another path with `grpc: {{socket: \
             ...}}`\n"
        )
    );
    drop(client);
    server.signal("TERM");
    assert!(server.wait().success());
    assert!(!Path::new(&socket).exists());
}

/// One frame of HTTP/2 on a call's stream.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A text as HPACK writes it, uncoded.
fn literal(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

/// Clients in C++, Python and Ruby write the file's path there, percent-encoded; one that is reset
/// has no limits at all.
#[test]
fn a_call_over_a_socket_file_is_answered_whatever_its_authority() {
    let folder = TempDir::new("rls-authority");
    let socket = folder.file("grpc.sock", "");
    std::fs::remove_file(&socket).unwrap();
    let config = folder
        .file("socket.yaml", format!("policies: [{{name: p, quota: 9/1h}}]\ngrpc: {{socket: {socket}}}\n"));
    let _server = Server::start(&["--config", &config]);
    for authority in ["%2Frun%2Fgrpc.sock", "/run/grpc.sock", "unix:/run/grpc.sock", "localhost", "a b", "x"]
    {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // `POST`, `http`, and what joins the table: the authority, the path and two fields.
        let first = [
            &[0x83, 0x86, 0x41][..],
            &literal(authority),
            &[0x44],
            &literal("/grpc.health.v1.Health/Check"),
            &[0x5f],
            &literal("application/grpc"),
            &[0x40],
            &literal("te"),
            &literal("trailers"),
        ]
        .concat();
        // Those from the table: a table that is out of step would make another request of it.
        let second = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
        // No compression, and a message without a byte.
        let message = [0; 5];
        let bytes = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            &frame(4, 0, 0, &[])[..],
            &frame(1, 4, 1, &first),
            &frame(0, 1, 1, &message),
            &frame(1, 4, 3, &second),
            &frame(0, 1, 3, &message),
        ]
        .concat();
        stream.write_all(&bytes).unwrap();
        let mut answered = 0;
        while answered < 2 {
            let mut head = [0; 9];
            stream.read_exact(&mut head).unwrap();
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut payload).unwrap();
            assert!(![3, 7].contains(&head[3]), "reset: {payload:?} for `{authority}`");
            if head[3] == 0 {
                assert_eq!(payload, [0, 0, 0, 0, 2, 8, 1], "SERVING");
                answered += 1;
            }
        }
    }
}

/// If the file's certificate were ignored with --grpc, the listener would be unencrypted.
#[tokio::test]
async fn the_address_of_the_command_line_goes_with_the_certificate_of_the_file() {
    let folder = TempDir::new("rls-tls-address");
    let authority = Authority::new("authority");
    let (cert_file, key_file) = authority.sign(&["limits.test"]).write(&folder, "server");
    let config = folder.file(
        "tls.yaml",
        format!(
            "policies: [{{name: p, quota: 1000/1h}}]\ngrpc: {{cert_file: {cert_file}, key_file: {key_file}}}\n"
        ),
    );
    let server = start(&["--config", &config]);
    assert!(grpc_url(&server).starts_with("https://"), "{}", server.greeting);
    assert!(is_let_in(&server, "limits.test", &authority, None).await);
    let nowhere = run(&["serve", "--listen", "127.0.0.1:0", "--config", &config]);
    assert_eq!(
        text(&nowhere.stderr),
        format!(
            "{config}:2: grpc: invalid cert_file: needs listen or socket; write for example `listen: \
             127.0.0.1:8081`, or give `--grpc`\n"
        )
    );
}

/// Two servers on one port would share the traffic by chance.
#[test]
fn an_address_in_use_is_refused_with_the_way_out() {
    let server = start(&[]);
    let address = grpc_url(&server).replace("http://", "");
    let second = run(&["serve", "--listen", "127.0.0.1:0", "--grpc", &address]);
    let error = text(&second.stderr);
    assert!(error.starts_with(&format!("cannot listen on {address}: Address already in use")), "{error}");
    assert!(error.trim_end().ends_with("; choose another address with --grpc"), "{error}");
}

/// A TLS connection to a listener whose certificate has this name.
async fn secure(
    server: &Server,
    name: &str,
    authority: &Authority,
    identity: Option<&Signed>,
) -> Result<Client, tonic::transport::Error> {
    let mut tls =
        ClientTlsConfig::new().domain_name(name).ca_certificate(Certificate::from_pem(authority.pem()));
    if let Some(Signed { pem, key_pem }) = identity {
        tls = tls.identity(Identity::from_pem(pem, key_pem));
    }
    Ok(Client::new(Endpoint::new(grpc_url(server))?.tls_config(tls)?.connect().await?))
}

/// Whether a call comes through: with TLS 1.3 a client learns at its first read that its
/// certificate was refused.
async fn is_let_in(server: &Server, name: &str, authority: &Authority, identity: Option<&Signed>) -> bool {
    match secure(server, name, authority, identity).await {
        Ok(mut client) => ask(&mut client, &[user("alice")], 0).await.is_ok(),
        Err(_) => false,
    }
}

/// Certificates are renewed every few weeks; the listener must use the new one without a restart.
#[tokio::test]
async fn a_changed_certificate_is_shown_to_new_connections_and_a_bad_one_is_not() {
    let folder = TempDir::new("rls-tls");
    let authority = Authority::new("authority");
    let (cert_file, key_file) = authority.sign(&["old.test"]).write(&folder, "server");
    let config = folder.file(
        "tls.yaml",
        format!(
            "policies: [{{name: p, quota: 1000/1h}}]\n\
             grpc: {{listen: '127.0.0.1:0', cert_file: {cert_file}, key_file: {key_file}}}\n"
        ),
    );
    let log = folder.file("log", "");
    let server = Server::start_logging_to(&["--config", &config], File::create(&log).unwrap());
    assert!(grpc_url(&server).starts_with("https://"));
    let mut kept = secure(&server, "old.test", &authority, None).await.unwrap();
    answer(&mut kept, &[user("alice")]).await;
    assert!(!is_let_in(&server, "new.test", &authority, None).await);
    // Nobody without TLS.
    let plain = Endpoint::new(grpc_url(&server).replace("https", "http")).unwrap().connect().await;
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

    authority.sign(&["new.test"]).write(&folder, "server");
    until("the new certificate", async || is_let_in(&server, "new.test", &authority, None).await).await;
    assert!(!is_let_in(&server, "old.test", &authority, None).await);
    answer(&mut kept, &[user("alice")]).await;
}

/// A limiter that anybody may ask is one whose limits anybody may use up.
#[tokio::test]
async fn with_a_client_authority_only_its_clients_come_in() {
    let folder = TempDir::new("rls-mtls");
    let (authority, stranger) = (Authority::new("authority"), Authority::new("stranger"));
    let (cert_file, key_file) = authority.sign(&["limits.test"]).write(&folder, "server");
    let ca_file = folder.file("clients.crt", authority.pem());
    let envoy = authority.sign(&["envoy.test"]);
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
    assert!(!is_let_in(&server, "limits.test", &authority, Some(&stranger.sign(&["envoy.test"]))).await);
    assert!(!is_let_in(&server, "limits.test", &authority, Some(&authority.sign(&["other.test"]))).await);
}

/// An invalid certificate at the start must not lead to a listener without TLS.
#[test]
fn a_certificate_that_is_none_ends_the_start_with_a_reason() {
    let folder = TempDir::new("rls-bad-tls");
    let key = folder.file("key", "");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
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
