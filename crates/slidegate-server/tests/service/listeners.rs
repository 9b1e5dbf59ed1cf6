//! Listeners: TLS and client certificates with hot reload, Unix sockets with file modes, and how
//! they are shown.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use slidegate_testkit::certificates::{Authority, Certificate};
use slidegate_testkit::service::{Server, run, slidegate, text};
use slidegate_testkit::{TempDir, until_true};

const POLICY: &str = "policies: [{name: p, scope: [user], quota: 1000/1h}]\n";
const HTTP: &[u8] = b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const RESP: &[u8] = b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n";

/// What a client of a TLS server trusts and shows, and the sessions that it may resume.
fn client(
    authority: &Authority,
    identity: Option<&Certificate>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match identity {
        None => config.with_no_client_auth(),
        Some(Certificate { pem, key_pem }) => config
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap(),
            )
            .unwrap(),
    })
}

/// The answer of a TLS server to these bytes, until it closes. An error is a rejected handshake.
fn exchange(
    address: &str,
    name: &str,
    (authority, identity): (&Authority, Option<&Certificate>),
    bytes: &[u8],
) -> std::io::Result<String> {
    let client = client(authority, identity, rustls::DEFAULT_VERSIONS);
    exchange_as(&client, address, name, bytes).map(|(answer, _)| answer)
}

/// The same as a client that may come again, with the kind of the handshake.
fn exchange_as(
    client: &Arc<ClientConfig>,
    address: &str,
    name: &str,
    bytes: &[u8],
) -> std::io::Result<(String, Option<HandshakeKind>)> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connection = ClientConnection::new(Arc::clone(client), name).unwrap();
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    // Some servers close without a farewell of TLS, which is an error of its own.
    if answer.is_empty() {
        read?;
    }
    Ok((text(&answer), stream.conn.handshake_kind()))
}

/// A certificate that is named and not used leaves a listener open that everybody believes is encrypted.
#[test]
fn http_and_resp_serve_tls_and_their_certificates_are_hot_reloaded() {
    let folder = TempDir::new("listeners-tls");
    let authority = Authority::new("authority");
    let (cert_file, key_file) = authority.sign(&["old.test"]).write(&folder, "server");
    let tls = format!("cert_file: {cert_file}, key_file: {key_file}");
    let config = format!("{POLICY}server: {{{tls}}}\nresp: {{listen: '127.0.0.1:0', {tls}}}\n");
    let config = folder.file("slidegate.yaml", config);
    let server = Server::start(&["--config", &config]);
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.greeting);
    let resp = server.address_of("resp");
    let ask = |name: &str| {
        let http = exchange(&server.address, name, (&authority, None), HTTP).ok();
        let resp = exchange(resp, name, (&authority, None), RESP).ok();
        http.zip(resp)
    };
    let (http, pong) = ask("old.test").expect("both accept TLS");
    assert!(http.starts_with("HTTP/1.1 200 OK\r\n"), "{http}");
    assert_eq!(pong, "+PONG\r\n+OK\r\n");
    assert!(ask("new.test").is_none());
    // Without TLS there is nothing but the end of the connection.
    for (address, bytes) in [(server.address.as_str(), HTTP), (resp, RESP)] {
        let mut plain = TcpStream::connect(address).unwrap();
        plain.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = plain.read_to_end(&mut answer);
        assert!(!text(&answer).contains("200 OK") && !text(&answer).contains("PONG"), "{}", text(&answer));
    }

    folder.file("server.crt", "no certificate");
    authority.sign(&["new.test"]).write(&folder, "server");
    slidegate_testkit::until_true("the new certificate is shown", || ask("new.test").is_some());
    assert!(ask("old.test").is_none());
}

/// A limiter that anybody may ask is one whose limits anybody may use up.
#[test]
fn with_a_client_authority_only_its_clients_come_in_and_need_no_other_credential() {
    let folder = TempDir::new("listeners-mtls");
    let (authority, stranger) = (Authority::new("authority"), Authority::new("stranger"));
    let (cert_file, key_file) = authority.sign(&["limits.test"]).write(&folder, "server");
    let ca_file = folder.file("clients.crt", authority.pem());
    let tls = format!(
        "cert_file: {cert_file}, key_file: {key_file}, client_ca_file: {ca_file}, client_name: proxy.test"
    );
    let config = folder.file(
        "slidegate.yaml",
        format!(
            "{POLICY}admin: {{decisions: token}}\nserver: {{{tls}}}\nresp: {{listen: '127.0.0.1:0', {tls}}}\n"
        ),
    );
    let token = ("SLIDEGATE_ADMIN_TOKENS", format!("ops:write:{}", "0a".repeat(32)));
    let server = Server::start_with(&["--config", &config], &[(token.0, &token.1)]);
    let resp = server.address_of("resp");
    let check =
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 31\r\n\r\n\
                  {\"attributes\":{\"user\":\"alice\"}}";
    let commands = b"*3\r\n$8\r\nRL.CHECK\r\n$1\r\np\r\n$5\r\nalice\r\n*1\r\n$4\r\nQUIT\r\n";
    let ask = |identity: Option<&Certificate>| {
        let http = exchange(&server.address, "limits.test", (&authority, identity), check);
        let resp = exchange(resp, "limits.test", (&authority, identity), commands);
        [http, resp].map(Result::unwrap_or_default)
    };
    let proxy = authority.sign(&["proxy.test"]);
    let [http, resp] = ask(Some(&proxy));
    assert!(http.starts_with("HTTP/1.1 200 OK\r\n"), "{http}");
    assert!(resp.starts_with('*') && resp.ends_with("+OK\r\n"), "{resp}");
    for identity in [
        None,
        Some(&stranger.sign(&["proxy.test"])),
        Some(&authority.sign(&["other.test"])),
        // Many may have a wildcard, and servers have certificates of the same authority.
        Some(&authority.sign(&["*.test"])),
        Some(&authority.sign_for_servers(&["proxy.test"])),
    ] {
        let [http, resp] = ask(identity);
        assert!(!http.contains("HTTP/1.1 2") && resp.is_empty(), "{http} {resp}");
    }
    // A certificate is for decisions; operators have tokens.
    let status = exchange(&server.address, "limits.test", (&authority, Some(&proxy)), HTTP).unwrap();
    assert!(status.starts_with("HTTP/1.1 401 "), "{status}");
}

/// A client whose certificate has ended must not come in by the session of an earlier connection.
#[test]
fn clients_with_certificates_resume_no_session_so_that_each_connection_is_checked() {
    let folder = TempDir::new("listeners-resumption");
    let authority = Authority::new("authority");
    let (cert_file, key_file) = authority.sign(&["limits.test"]).write(&folder, "server");
    let ca_file = folder.file("clients.crt", authority.pem());
    let proxy = authority.sign(&["proxy.test"]);
    let without = format!("cert_file: {cert_file}, key_file: {key_file}");
    let with = format!("{without}, client_ca_file: {ca_file}");
    for (tls, identity, second) in
        [(without, None, HandshakeKind::Resumed), (with, Some(&proxy), HandshakeKind::Full)]
    {
        let config = format!("{POLICY}server: {{{tls}}}\nresp: {{listen: '127.0.0.1:0', {tls}}}\n");
        let server = Server::start(&["--config", &folder.file("slidegate.yaml", config)]);
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            for (address, bytes) in [(server.address.as_str(), HTTP), (server.address_of("resp"), RESP)] {
                let client = client(&authority, identity, &[version]);
                let handshake = || exchange_as(&client, address, "limits.test", bytes).unwrap().1;
                let kinds = [handshake(), handshake()];
                assert_eq!(kinds, [Some(HandshakeKind::Full), Some(second)], "{version:?} {address}");
            }
        }
    }
}

/// What answers on a Unix socket.
fn ask_socket(path: &str, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    text(&answer)
}

/// A sidecar needs no port, and the file's permissions say who may ask.
#[test]
fn all_protocols_are_served_on_unix_sockets_with_their_modes() {
    let folder = TempDir::new("listeners-unix");
    let path = |name: &str| {
        let path = folder.file(name, "");
        std::fs::remove_file(&path).unwrap();
        path
    };
    let [http, resp, grpc] = ["http.sock", "resp.sock", "grpc.sock"].map(path);
    let config = folder.file(
        "slidegate.yaml",
        format!(
            "{POLICY}server: {{socket: {http}}}\nresp: {{socket: {resp}, socket_mode: '0600'}}\n\
             grpc: {{socket: {grpc}, socket_mode: 0666}}\n"
        ),
    );
    let mut server = Server::start(&["--config", &config]);
    let mode = |path: &str| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(&http), mode(&resp), mode(&grpc)], [0o660, 0o600, 0o666]);
    assert_eq!(ask_socket(&resp, RESP), "+PONG\r\n+OK\r\n");
    // Clients of Unix sockets send any name of a host, and may operate the service as on loopback.
    let named = text(HTTP).replace("localhost", "slidegate");
    let status = ask_socket(&http, named.as_bytes());
    assert!(status.starts_with("HTTP/1.1 200 OK\r\n"), "{status}");
    // A page in a browser cannot connect there, but a proxy might forward what a page sends.
    let page = text(HTTP)
        .replace("\r\n\r\n", "\r\norigin: http://evil.test\r\n\r\n")
        .replace("/v1/status", "/v1/check?user=a");
    assert!(ask_socket(&http, page.as_bytes()).starts_with("HTTP/1.1 403 "));

    // Every listener is shown at the start and in the status.
    let shown = [format!("unix:{http}"), format!("unix:{resp}"), format!("unix:{grpc}")];
    let status = server.get("/v1/status").json();
    let listeners: Vec<_> = status["listeners"].as_array().unwrap().iter().collect();
    for address in &shown {
        assert!(server.greeting.contains(address), "{address}: {}", server.greeting);
        assert!(listeners.iter().any(|one| one["address"] == **address && one["tls"] == false), "{status}");
    }
    assert_eq!(listeners[0]["address"], server.address.as_str());
    server.signal("TERM");
    assert!(server.wait().success());
    assert!([http, resp, grpc].iter().all(|path| !Path::new(path).exists()));
}

/// Operators' commands and health checks must not need a plain port beside.
#[test]
fn commands_reach_a_server_with_tls() {
    let folder = TempDir::new("listeners-cli");
    let authority = Authority::new("authority");
    let (cert_file, key_file) = authority.sign(&["127.0.0.1"]).write(&folder, "server");
    let ca_file = folder.file("ca.crt", authority.pem());
    let config = format!("{POLICY}server: {{cert_file: {cert_file}, key_file: {key_file}}}\n");
    let config = folder.file("slidegate.yaml", config);
    let server = Server::start(&["--config", &config]);
    let checked = run(&["check", "user=alice", "--url", &server.url, "--ca-file", &ca_file]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let other = folder.file("other.crt", Authority::new("other").pem());
    let rejected = run(&["check", "user=alice", "--url", &server.url, "--ca-file", &other]);
    assert_eq!(rejected.status.code(), Some(2), "{}", text(&rejected.stdout));
    let empty = folder.file("empty.crt", "");
    let rejected = run(&["check", "user=alice", "--url", &server.url, "--ca-file", &empty]);
    assert!(
        text(&rejected.stderr).contains(&format!(
            "--ca-file {empty}: it holds no certificate; give a file of certificates in PEM"
        )),
        "{}",
        text(&rejected.stderr)
    );
    // It waits for a second; an engine asks again as well.
    until_true("it is healthy", || {
        let health = slidegate().args(["health", "--config", &config, "--listen", &server.address]).output();
        text(&health.unwrap().stdout).starts_with("ready: https://")
    });
}

/// An invalid certificate must be found before the start, and never lead to a listener without TLS.
#[test]
fn invalid_certificates_are_found_by_validate_and_at_the_start() {
    let folder = TempDir::new("listeners-invalid");
    let empty = folder.file("empty", "");
    std::fs::set_permissions(&empty, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for section in ["server", "resp", "grpc"] {
        let listen = if section == "server" { "" } else { "listen: '127.0.0.1:0', " };
        let text_of = format!("{POLICY}{section}: {{{listen}cert_file: {empty}, key_file: {empty}}}\n");
        let config = folder.file("slidegate.yaml", text_of);
        let expected = format!(
            "{section}: cert_file `{empty}` cannot be used: it holds no certificate; give a file in PEM\n"
        );
        assert_eq!(text(&run(&["validate", &config]).stderr), expected);
        let served = run(&["serve", "--listen", "127.0.0.1:0", "--config", &config]);
        assert_eq!(text(&served.stderr), expected);
    }
}
