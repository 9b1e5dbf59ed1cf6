//! Redis and Redis Cluster under concurrency, by their own clocks.
//!
//! Two gates, as two instances, decide for the same keys. A client only knows when it asked and
//! when it had the decision, so an excess counts as far as it is certain.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use slidegate::store::FallbackStore;
use slidegate::{DecisionSource, OnStoreError, Policy, PolicySet, Quota, Request, SharedGate};
use slidegate_redis::{RedisOptions, RedisStore};
use slidegate_testkit::redis::{RedisCluster, RedisServer};
use slidegate_testkit::window_checker::{Admission, greatest_in_one_window};

const USERS: usize = 500;
const LIMIT: u64 = 40;
const WINDOW: Duration = Duration::from_secs(1);
/// Requests under way at once, of both gates together.
const CALLERS: usize = 128;

/// A server, or a cluster of three.
enum Servers {
    One(RedisServer),
    Cluster(RedisCluster),
}

pub(crate) fn run(decisions: u64, is_cluster: bool) -> Result<String, String> {
    let servers = if is_cluster {
        Servers::Cluster(RedisCluster::of_three())
    } else {
        Servers::One(RedisServer::start())
    };
    let url = match &servers {
        Servers::One(server) => server.url(),
        Servers::Cluster(cluster) => cluster.url(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(decide(decisions, &url, is_cluster))
}

fn gate(url: &str) -> Result<SharedGate<FallbackStore<RedisStore>>, String> {
    let quota = Quota::new(LIMIT, WINDOW).map_err(|error| error.to_string())?;
    let policy = Policy::new("user", quota).map_err(|error| error.to_string())?.with_scope(["user"]);
    let policy = policy.with_on_store_error(OnStoreError::Deny);
    let policies = PolicySet::new([policy]).map_err(|error| error.to_string())?;
    // The machine is loaded on purpose: a decision may take long, and must not be missing.
    let options = RedisOptions::new(url)
        .map_err(|error| error.to_string())?
        .with_deadline(Duration::from_secs(30));
    let store = RedisStore::new(options).map_err(|error| error.to_string())?;
    SharedGate::with_store(policies, FallbackStore::new(store)).map_err(|error| error.to_string())
}

async fn decide(decisions: u64, url: &str, is_cluster: bool) -> Result<String, String> {
    let gates = [Arc::new(gate(url)?), Arc::new(gate(url)?)];
    let names: Arc<Vec<String>> = Arc::new((0..USERS).map(|user| format!("user-{user}")).collect());
    let (started, left) = (Instant::now(), Arc::new(AtomicU64::new(decisions)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (gate, names, left) =
                (Arc::clone(&gates[caller % gates.len()]), Arc::clone(&names), Arc::clone(&left));
            tokio::spawn(async move {
                let mut random = SmallRng::seed_from_u64(caller as u64);
                let (mut admitted, mut denied) = (Vec::new(), 0u64);
                while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                    let user = random.random_range(0..USERS);
                    let cost = random.random_range(1..4);
                    let request = Request::new().with("user", names[user].as_str()).with_cost(cost);
                    let sent = started.elapsed();
                    let decisions = gate.check(&request).await;
                    let strictest = decisions.strictest().ok_or("a policy applies")?;
                    if !matches!(
                        strictest.decision().source(),
                        DecisionSource::Store | DecisionSource::CachedDenial
                    ) {
                        return Err(format!(
                            "not decided by the store but by {:?}",
                            strictest.decision().source()
                        ));
                    }
                    if decisions.is_allowed() {
                        admitted.push((user, Admission { sent, replied: started.elapsed(), cost }));
                    } else {
                        denied += 1;
                    }
                }
                Ok::<_, String>((admitted, denied))
            })
        })
        .collect();
    let (mut by_user, mut denied) = (vec![Vec::new(); USERS], 0);
    for caller in callers {
        let (admitted, refused) = caller.await.map_err(|error| error.to_string())??;
        denied += refused;
        admitted.into_iter().for_each(|(user, admission)| by_user[user].push(admission));
    }
    let seconds = started.elapsed().as_secs_f64();
    let mut greatest = 0;
    for (user, admissions) in by_user.iter_mut().enumerate() {
        let of_user = greatest_in_one_window(admissions, WINDOW);
        if of_user > LIMIT {
            return Err(format!("user-{user} was admitted {of_user} of {LIMIT} within one window"));
        }
        greatest = greatest.max(of_user);
    }
    let admitted: usize = by_user.iter().map(Vec::len).sum();
    let name = if is_cluster { "cluster" } else { "redis" };
    Ok(format!(
        "{name}: {decisions} decisions through 2 instances in {seconds:.0} s, {admitted} admitted, {denied} denied, at \
         most {greatest} of {LIMIT} within one window"
    ))
}
