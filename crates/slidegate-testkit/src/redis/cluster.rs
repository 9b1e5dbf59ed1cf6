//! A cluster: masters that share the slots evenly, and their replicas.
//!
//! State is always read from the nodes, never remembered, so a failover by the cluster itself is
//! noticed.

use std::thread;
use std::time::Duration;

use super::acl;
use super::resp::Reply;
use super::server::{Builder, RedisServer, addresses, is_old};
use crate::poll::{until, until_true};
use crate::ports;

/// All slots of a cluster.
const SLOTS: u16 = 16_384;

/// Time after which a silent node counts as failed, in milliseconds.
const NODE_TIMEOUT_MS: &str = "2000";

/// Timeout for a running node's reply. Slower nodes are skipped.
const PATIENCE: Duration = Duration::from_secs(2);

/// A running cluster. Ends when dropped.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

/// The size of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Nodes that share the slots; at least three, so that a majority can outvote one.
    pub masters: u16,
    /// Replicas of each master.
    pub replicas_each: u16,
}

impl RedisCluster {
    /// Starts the nodes and waits until each sees all others as healthy.
    pub fn start(shape: Shape) -> Self {
        let Shape { masters, replicas_each } = shape;
        let count = masters * (1 + replicas_each);
        let cluster = Self { nodes: start_nodes(count) };
        let (leaders, followers) = cluster.nodes.split_at(usize::from(masters));
        for (number, leader) in (0..).zip(leaders) {
            let bound = |number: u16| u32::from(number) * u32::from(SLOTS) / u32::from(masters);
            // One by one, because Redis 6 does not support ranges.
            let slots: Vec<_> = (bound(number)..bound(number + 1)).map(|slot| slot.to_string()).collect();
            let slots = slots.iter().map(String::as_str);
            leader.admin(&["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect::<Vec<_>>());
            // Otherwise they would have to detect equal epochs by themselves.
            leader.admin(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        cluster.introduce();
        for (number, follower) in followers.iter().enumerate() {
            let leader = &leaders[number / usize::from(replicas_each)];
            follower.admin(&["CLUSTER", "REPLICATE", &leader.admin(&["CLUSTER", "MYID"])]);
        }
        until_true("all nodes of a new cluster are content", || cluster.is_whole(followers.len()));
        until_true("each leader is a master that its replicas follow", || {
            leaders.iter().all(|leader| {
                // If the machine stalled for longer than the node timeout, a failover has happened.
                if !leader.admin(&["ROLE"]).starts_with("master") {
                    let _ = leader.ask(&["CLUSTER", "FAILOVER"]);
                    return false;
                }
                leader.is_followed_by(usize::from(replicas_each))
            })
        });
        cluster
    }

    /// Three masters with a replica each.
    pub fn of_three() -> Self {
        Self::start(Shape { masters: 3, replicas_each: 1 })
    }

    /// `redis+cluster://127.0.0.1:P1,127.0.0.1:P2,...`, all nodes.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", addresses(&self.nodes))
    }

    /// The URL with the user of [`acl::MINIMUM`].
    pub fn url_as_user(&self) -> String {
        format!("redis+cluster://{}{}", acl::userinfo(), addresses(&self.nodes))
    }

    /// All nodes: initially the masters in the order of their slots, then the replicas.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        let slot = self.first_answer(&["CLUSTER", "KEYSLOT", key]);
        slot.parse().unwrap()
    }

    /// The node that claims a slot with the latest epoch, among those that reply.
    pub fn master_of(&self, slot: u16) -> &RedisServer {
        until("some node says that it serves the slot", || self.owner_of(slot))
    }

    /// A replica of the node that serves a slot.
    pub fn replica_of(&self, slot: u16) -> &RedisServer {
        until("some node says that it is a replica of the slot's master", || {
            let master = views(self.owner_of(slot)?)?.into_iter().find(View::is_self)?;
            self.nodes.iter().find(|node| {
                let own = views(node).and_then(|views| views.into_iter().find(View::is_self));
                own.is_some_and(|own| own.master == master.id)
            })
        })
    }

    /// Makes a replica the master of a slot without data loss, and waits until all nodes know.
    pub fn failover(&self, slot: u16) -> &RedisServer {
        let replica = self.replica_of(slot);
        replica.admin(&["CLUSTER", "FAILOVER"]);
        self.until_owner_is(slot, replica);
        replica
    }

    /// Waits until a node other than `old` serves a slot, after `old` was killed or frozen, and
    /// returns it.
    pub fn until_moved(&self, slot: u16, old: &RedisServer) -> &RedisServer {
        let new = until("a slot moves away from its old master", || {
            self.owner_of(slot).filter(|owner| owner.port() != old.port())
        });
        self.until_owner_is(slot, new);
        new
    }

    /// Starts the migration of a slot: keys missing at the old master are redirected to the new
    /// one.
    pub fn migrate_begin<'a>(&'a self, slot: u16, to: &'a RedisServer) -> Migration<'a> {
        let from = self.master_of(slot);
        let ids = [from, to].map(|node| node.admin(&["CLUSTER", "MYID"]));
        let slot_text = slot.to_string();
        to.admin(&["CLUSTER", "SETSLOT", &slot_text, "IMPORTING", &ids[0]]);
        from.admin(&["CLUSTER", "SETSLOT", &slot_text, "MIGRATING", &ids[1]]);
        Migration { cluster: self, slot, from, to }
    }

    /// Introduces each node to each other, because gossip alone takes seconds.
    fn introduce(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[number + 1..] {
                let (port, bus) = (other.port().to_string(), other.admin(&["CONFIG", "GET", "cluster-port"]));
                match bus.lines().last() {
                    Some(bus) => node.admin(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]),
                    None => node.admin(&["CLUSTER", "MEET", "127.0.0.1", &port]),
                };
            }
        }
        let all = format!("cluster_known_nodes:{}", self.nodes.len());
        until_true("all nodes know all nodes by name", || {
            self.nodes.iter().all(|node| {
                let met = |views: Vec<View>| views.iter().all(|view| !view.flags.contains("handshake"));
                node.admin(&["CLUSTER", "INFO"]).lines().any(|line| line == all)
                    && views(node).is_some_and(met)
            })
        });
    }

    /// Whether each node reports a healthy cluster with this many replicas, all in sync.
    fn is_whole(&self, replicas: usize) -> bool {
        self.nodes.iter().all(|node| {
            let content = node.admin(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
            let seen = views(node).unwrap_or_default();
            let sees_replicas = seen.iter().filter(|view| !view.is_master()).count() == replicas;
            let replication = node.admin(&["INFO", "replication"]);
            let in_step =
                replication.contains("role:master") || replication.contains("master_link_status:up");
            content && sees_replicas && in_step
        })
    }

    /// By the nodes' own reports, of which the latest epoch wins: a master replaced while frozen
    /// has an older one.
    fn owner_of(&self, slot: u16) -> Option<&RedisServer> {
        let claims = self.nodes.iter().filter_map(|node| {
            let own = views(node)?.into_iter().find(View::is_self)?;
            (own.is_master() && own.serves(slot)).then_some((own.epoch, node))
        });
        claims.max_by_key(|(epoch, _)| *epoch).map(|(_, node)| node)
    }

    fn until_owner_is(&self, slot: u16, owner: &RedisServer) {
        until_true("all nodes that answer agree on who serves a slot", || {
            self.nodes.iter().filter_map(views).all(|views| {
                let found = views.iter().find(|view| view.serves(slot));
                found.is_some_and(|view| view.port == owner.port() && view.is_master())
            })
        });
    }

    fn first_answer(&self, command: &[&str]) -> String {
        until("some node answers", || {
            let mut awake = self.nodes.iter().filter(|node| node.is_awake());
            awake.find_map(|node| match node.ask_within(PATIENCE, command) {
                Ok(Reply::Error(_)) | Err(_) => None,
                Ok(reply) => Some(reply.to_string()),
            })
        })
    }
}

/// Starts all in parallel: each takes some time to answer.
fn start_nodes(count: u16) -> Vec<RedisServer> {
    thread::scope(|scope| {
        let starting: Vec<_> = (0..count).map(|_| scope.spawn(|| node().start())).collect();
        starting.into_iter().map(|node| node.join().unwrap()).collect()
    })
}

fn node() -> Builder {
    let bus = ports::free().to_string();
    // Redis 6 always uses the port plus 10,000.
    let bus = if is_old() { vec![] } else { vec!["--cluster-port", &bus] };
    RedisServer::builder().args(bus).args([
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        NODE_TIMEOUT_MS,
        // It takes over however old its data seems after a step of the machine's clock.
        "--cluster-replica-validity-factor",
        "0",
        // A replica stays with its master, whatever happens to the others.
        "--cluster-allow-replica-migration",
        "no",
        "--repl-ping-replica-period",
        "1",
    ])
}

/// A slot being migrated from one master to another.
#[must_use = "a migration stays open until it is ended"]
pub struct Migration<'a> {
    cluster: &'a RedisCluster,
    slot: u16,
    /// The old master.
    pub from: &'a RedisServer,
    /// The new one.
    pub to: &'a RedisServer,
}

impl Migration<'_> {
    /// Moves one key of the slot.
    pub fn move_key(&self, key: &str) {
        let port = self.to.port().to_string();
        self.from.admin(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }

    /// Moves the remaining keys, assigns the slot to its new master and waits until all nodes know.
    pub fn end(self) {
        let slot = self.slot.to_string();
        loop {
            let keys = self.from.admin(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            if keys.is_empty() {
                break;
            }
            keys.lines().for_each(|key| self.move_key(key));
        }
        let id = self.to.admin(&["CLUSTER", "MYID"]);
        for node in [self.to, self.from] {
            node.admin(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
        self.cluster.until_owner_is(self.slot, self.to);
    }
}

/// A node's entry in `CLUSTER NODES`.
struct View {
    id: String,
    port: u16,
    flags: String,
    /// The id of its master, or `-`.
    master: String,
    epoch: u64,
    /// First and last slots of its ranges.
    slots: Vec<(u16, u16)>,
}

impl View {
    /// `id ip:port@bus flags master ping pong epoch link slot...`.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        let port = words.get(1)?.split(['@', ',']).next()?.rsplit(':').next()?;
        let range = |word: &&str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            // Migrating slots are in brackets and also listed without.
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Some(Self {
            id: (*words.first()?).to_owned(),
            port: port.parse().ok()?,
            flags: (*words.get(2)?).to_owned(),
            master: (*words.get(3)?).to_owned(),
            epoch: words.get(6)?.parse().ok()?,
            slots: words.get(8..)?.iter().filter_map(range).collect(),
        })
    }

    fn is_self(&self) -> bool {
        self.flags.contains("myself")
    }

    fn is_master(&self) -> bool {
        self.flags.contains("master")
    }

    fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

/// A node's view of all nodes, if it replies.
fn views(node: &RedisServer) -> Option<Vec<View>> {
    if !node.is_awake() {
        return None;
    }
    let reply = node.ask_within(PATIENCE, &["CLUSTER", "NODES"]).ok()?;
    reply.to_string().lines().map(View::parse).collect()
}
