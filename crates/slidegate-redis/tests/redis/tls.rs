//! TLS: servers that are who they say, and those that are not.

use std::sync::Arc;
use std::time::Duration;

use slidegate::DecisionSource;
use slidegate::store::ServiceStore;
use slidegate_redis::{ClientCertificate, FailureKind, RedisGate, RedisOptions};
use slidegate_testkit::certificates::{Authority, Certificate};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::{TempDir, ports, until_true};

use crate::callers::{LATER, check_cost, daily, errors, gate, last_failure, named, until_used};

/// A server that speaks TLS at a port of its own, and who signed what.
struct Secured {
    server: RedisServer,
    tls_port: u16,
    authority: Authority,
    // Last, as it is removed with the certificates.
    dir: TempDir,
}

impl Secured {
    /// A server with a certificate for this DNS name or IP address, and with these arguments.
    fn start(subject: &str, args: &[&str]) -> Self {
        let dir = TempDir::new("redis");
        let authority = Authority::new("authority");
        let tls_port = ports::free();
        let tls = tls(&dir, tls_port, &authority, &authority.sign(&[subject]));
        let server = RedisServer::builder().args(tls).args(args.iter().copied()).start();
        Self { server, tls_port, authority, dir }
    }

    fn url(&self, scheme: &str, host: &str) -> String {
        format!("{scheme}://{host}:{}", self.tls_port)
    }

    fn options(&self, host: &str) -> RedisOptions {
        patient(&self.url("rediss", host)).with_ca_certificates(self.authority.pem().into())
    }
}

/// Options of a server or Sentinel that speaks TLS with this certificate and trusts this authority.
fn tls(dir: &TempDir, port: u16, authority: &Authority, own: &Certificate) -> Vec<String> {
    let (certificate, key) = own.write(dir, &port.to_string());
    let words = [
        ("--tls-port", port.to_string()),
        ("--tls-cert-file", certificate),
        ("--tls-key-file", key),
        ("--tls-ca-cert-file", dir.file("authority.crt", authority.pem())),
        ("--tls-auth-clients", "optional".to_owned()),
        ("--tls-replication", "yes".to_owned()),
    ];
    words.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

/// Options of a gate whose handshakes have the time they need on a busy machine.
fn patient(url: &str) -> RedisOptions {
    RedisOptions::new(url).unwrap().with_deadline(LATER)
}

fn own(signed: Certificate) -> ClientCertificate {
    ClientCertificate::new(signed.pem.into(), signed.key_pem.into_bytes())
}

/// If TLS fails, the fallback decides, and the error tells the operator how to fix it.
async fn is_refused(gate: &RedisGate, hint: &str) {
    let outcome = check_cost(gate, "alice", 1).await;
    let failure = last_failure(gate);
    assert_eq!(outcome.source, DecisionSource::Local, "{failure}");
    assert!(failure.contains("cannot connect: ") && failure.contains(hint), "{failure}");
    assert_eq!(failure.lines().count(), 1, "{failure}");
    assert_eq!(gate.store().stats().last_failure_kind, Some(FailureKind::Tls.name()), "{failure}");
    assert!(errors(gate, FailureKind::Tls) > 0, "{:?}", gate.store().stats());
}

/// Anyone who encrypts does so because somebody listens: what is counted must go through, and
/// nothing in the clear.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_authority_is_trusted_decides() {
    let secured = Secured::start("127.0.0.1", &[]);
    let gate = gate([daily(2)], secured.options("127.0.0.1"));
    for (allowed, used) in [(true, 1), (true, 2), (false, 2)] {
        let outcome = check_cost(&gate, "alice", 1).await;
        assert!(outcome.by_store(), "{}", last_failure(&gate));
        assert_eq!((outcome.allowed, outcome.used), (allowed, used));
    }
    // The script is not known to the first.
    assert!(secured.server.commandstats("evalsha").calls >= 3);
    // Denials are cached only by who hears the channel, which is a connection of its own.
    for _ in 0..500 {
        if check_cost(&gate, "alice", 1).await.source == DecisionSource::CachedDenial {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the channel is not heard over TLS: {:?}", gate.store().stats());
}

/// Names are checked against the server's certificate, and servers with several names need SNI.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_known_by_the_name_in_its_url() {
    let secured = Secured::start("localhost", &[]);
    let by_name = gate([daily(9)], secured.options("localhost"));
    assert!(check_cost(&by_name, "alice", 1).await.by_store(), "{}", last_failure(&by_name));
    let by_address = gate([daily(9)], secured.options("127.0.0.1"));
    is_refused(&by_address, "the server's certificate is for another name").await;
    assert_eq!(until_used(&by_name, "alice").await, [1]);
}

/// A server in the middle shows a certificate too; who does not look at its authority talks to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_authority_is_refused_and_charged_nothing() {
    let secured = Secured::start("127.0.0.1", &[]);
    let other = Authority::new("other");
    let url = secured.url("rediss", "127.0.0.1");
    let stranger = gate([daily(9)], patient(&url).with_ca_certificates(other.pem().into()));
    is_refused(&stranger, "no trusted authority has signed the server's certificate; trust the one that has")
        .await;
    // Without a file, those that browsers trust; none of them has signed it.
    let public = gate([daily(9)], patient(&url));
    is_refused(&public, "no trusted authority has signed").await;
    assert_eq!(secured.server.commandstats("evalsha").calls, 0);
}

/// Where the network is open, the certificate is the password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_asks_for_client_certificates_takes_those_of_its_authority_alone() {
    let secured = Secured::start("127.0.0.1", &["--tls-auth-clients", "yes"]);
    let client = secured.authority.sign(&["slidegate"]);
    let stranger = Authority::new("stranger").sign(&["slidegate"]);
    let without = gate([daily(9)], secured.options("127.0.0.1"));
    is_refused(&without, "the server asks for a client certificate; give one").await;
    let wrong = gate([daily(9)], secured.options("127.0.0.1").with_client_certificate(own(stranger)));
    is_refused(&wrong, "the server").await;
    let right = gate([daily(9)], secured.options("127.0.0.1").with_client_certificate(own(client)));
    let outcome = check_cost(&right, "alice", 1).await;
    assert!(outcome.by_store() && outcome.used == 1, "{}", last_failure(&right));
}

/// The commonest mistake: the right server, at the port that does not encrypt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_without_tls_is_distinguished_from_one_that_is_away() {
    let secured = Secured::start("127.0.0.1", &[]);
    let url = format!("rediss://{}", secured.server.address());
    // It takes our greeting for the beginning of a long command.
    let silent = patient(&url).with_connect_timeout(Duration::from_millis(500));
    let wrong = gate([daily(9)], silent.with_ca_certificates(secured.authority.pem().into()));
    assert_eq!(check_cost(&wrong, "alice", 1).await.source, DecisionSource::Local);
    let failure = last_failure(&wrong);
    assert!(failure.contains("cannot connect: ") && failure.contains("use its `tls-port`"), "{failure}");
}

/// A cluster's nodes name one another by the port that the question came by.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_followed_over_tls() {
    // Its bus would otherwise listen 10,000 above the TLS port, where systems take ports for
    // outgoing connections.
    let bus = ports::free().to_string();
    let cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", &bus];
    let secured = Secured::start("127.0.0.1", &cluster);
    secured.server.admin(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until_true("the cluster is whole", || {
        secured.server.admin(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    });
    let options = patient(&secured.url("rediss+cluster", "127.0.0.1"))
        .with_ca_certificates(secured.authority.pem().into());
    let gate: Arc<RedisGate> = gate([named("a", 9), named("b", 9)], options);
    // On a busy machine the first handshakes may take longer than a call may.
    assert_eq!(until_used(&gate, "alice").await, [0, 0]);
    let outcome = check_cost(&gate, "alice", 1).await;
    assert!(outcome.by_store() && outcome.used == 1, "{}", last_failure(&gate));
    assert_eq!(gate.store().primary().nodes()[0].node, format!("127.0.0.1:{}", secured.tls_port));
}

/// Sentinels are asked over TLS as well, and lead to the master's encrypted port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_is_asked_over_tls() {
    let secured = Secured::start("127.0.0.1", &[]);
    let sentinel_tls_port = ports::free();
    let certificate = secured.authority.sign(&["127.0.0.1"]);
    let config = format!("bind 127.0.0.1\nsentinel monitor limits 127.0.0.1 {} 1\n", secured.tls_port);
    let args = tls(&secured.dir, sentinel_tls_port, &secured.authority, &certificate);
    let sentinel = RedisServer::builder().sentinel(config).args(args).start();
    until_true("the sentinel sees the master", || {
        sentinel.admin(&["SENTINEL", "MASTER", "limits"]).lines().any(|line| line == "master")
    });
    let url = format!("rediss+sentinel://127.0.0.1:{sentinel_tls_port}/limits");
    let gate = gate([daily(9)], patient(&url).with_ca_certificates(secured.authority.pem().into()));
    // On a busy machine the first handshakes may take longer than a Sentinel is waited for.
    assert_eq!(until_used(&gate, "alice").await, [0]);
    let outcome = check_cost(&gate, "alice", 1).await;
    assert!(outcome.by_store() && outcome.used == 1, "{}", last_failure(&gate));
}
