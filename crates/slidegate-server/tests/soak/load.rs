//! Clients of every protocol, which note what was admitted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use serde_json::json;
use slidegate_testkit::redis::{Connection, Reply};
use slidegate_testkit::window_checker::Admission;
use tonic::transport::Channel;

use crate::fleet::Fleet;

/// Users of the load. Half of all requests are of [`BUSY`] of them, who are always at their limit.
const USERS: u64 = 300;
const BUSY: u64 = 30;
/// Longest that a client waits for a reply: longer than a stopped Redis lasts.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause of each client, so that the faults find a machine that has time for them.
const PAUSE: Duration = Duration::from_millis(2);

/// What each user was admitted.
pub(crate) type Admitted = HashMap<String, Vec<Admission>>;

/// The clients.
pub(crate) struct Load<'scope>(Vec<ScopedJoinHandle<'scope, Admitted>>);

/// Asks an instance whether a user may. An error: the instance is away.
trait Client {
    fn is_admitted(&mut self, user: &str, cost: u64) -> Result<bool, String>;
}

impl<'scope> Load<'scope> {
    #[allow(clippy::disallowed_methods)] // Decisions are judged by the time of their clients.
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        fleet: &'env Fleet,
        is_over: &'env AtomicBool,
    ) -> Self {
        let started = Instant::now();
        let mut clients = Vec::new();
        for at in 0..fleet.ports.len() {
            let seed = 7 * at as u64;
            clients.push(scope.spawn(move || run(|| Http::connect(fleet, at), seed + 1, started, is_over)));
            clients.push(scope.spawn(move || run(|| Resp::connect(fleet, at), seed + 2, started, is_over)));
            clients.push(scope.spawn(move || run(|| Grpc::connect(fleet, at), seed + 3, started, is_over)));
        }
        Self(clients)
    }

    /// What they were admitted, together.
    pub(crate) fn end(self) -> Admitted {
        let mut all = Admitted::new();
        for client in self.0 {
            for (user, admissions) in client.join().expect("a client got no reply that makes no sense") {
                all.entry(user).or_default().extend(admissions);
            }
        }
        all
    }
}

/// Asks until it is over, and connects again after every error.
fn run<C: Client>(
    connect: impl Fn() -> Result<C, String>,
    seed: u64,
    started: Instant,
    is_over: &AtomicBool,
) -> Admitted {
    let mut random = seed;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut admitted = Admitted::new();
    let mut client = None;
    while !is_over.load(Relaxed) {
        std::thread::sleep(PAUSE);
        let user = format!("user-{}", if next(2) == 0 { next(BUSY) } else { next(USERS) });
        let cost = 1 + next(3);
        let Some(mut connected) = client.take().or_else(|| connect().ok()) else { continue };
        let sent = started.elapsed();
        let Ok(is_admitted) = connected.is_admitted(&user, cost) else { continue };
        client = Some(connected);
        if is_admitted {
            admitted.entry(user).or_default().push(Admission { sent, replied: started.elapsed(), cost });
        }
    }
    admitted
}

struct Http<'env>(&'env Fleet, usize);

impl<'env> Http<'env> {
    #[allow(clippy::unnecessary_wraps)] // As the others.
    fn connect(fleet: &'env Fleet, at: usize) -> Result<Self, String> {
        Ok(Self(fleet, at))
    }
}

impl Client for Http<'_> {
    fn is_admitted(&mut self, user: &str, cost: u64) -> Result<bool, String> {
        let body = json!({ "attributes": { "user": user }, "cost": cost }).to_string();
        let reply = self.0.send(self.1, "POST", "/v1/check", &body)?;
        match reply.status {
            200 => Ok(true),
            429 => Ok(false),
            503 => Err(reply.body),
            _ => panic!("{} {}", reply.status, reply.body),
        }
    }
}

struct Resp(Connection);

impl Resp {
    fn connect(fleet: &Fleet, at: usize) -> Result<Self, String> {
        Connection::tcp(fleet.ports[at].resp, PATIENCE).map(Self).map_err(|error| error.to_string())
    }
}

impl Client for Resp {
    fn is_admitted(&mut self, user: &str, cost: u64) -> Result<bool, String> {
        let cost = cost.to_string();
        match self.0.call(&["RL.REQUEST", "user", user, "COST", &cost]) {
            Ok(Reply::List(fields)) => match fields[0] {
                Reply::Integer(allowed) => Ok(allowed == 1),
                ref other => panic!("{other:?}"),
            },
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

struct Grpc {
    runtime: tokio::runtime::Runtime,
    client: RateLimitServiceClient<Channel>,
}

impl Grpc {
    fn connect(fleet: &Fleet, at: usize) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = format!("http://127.0.0.1:{}", fleet.ports[at].grpc);
        let client =
            runtime.block_on(RateLimitServiceClient::connect(url)).map_err(|error| error.to_string())?;
        Ok(Self { runtime, client })
    }
}

impl Client for Grpc {
    fn is_admitted(&mut self, user: &str, cost: u64) -> Result<bool, String> {
        let entry = Entry { key: "user".into(), value: user.into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        let request = RateLimitRequest {
            domain: "soak".into(),
            descriptors: vec![descriptor],
            hits_addend: u32::try_from(cost).unwrap(),
        };
        let reply = self.runtime.block_on(self.client.should_rate_limit(request));
        reply.map(|reply| reply.into_inner().overall_code() == Code::Ok).map_err(|status| status.to_string())
    }
}
