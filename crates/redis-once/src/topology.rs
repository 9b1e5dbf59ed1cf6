//! Maps slots to nodes: one server, the master named by Sentinels, or the nodes of a cluster.
//!
//! The slot map may be stale: a wrong entry costs a redirection, never a wrong decision. Reads take no lock.
//! A redirection updates one slot at once and triggers a refresh of the whole map. A background task
//! refreshes it periodically, earlier after an error, and ends with the topology.
//!
//! A Sentinel's answer is verified with the server: one that does not report the role `master` is not called.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::cluster::{self, Range};
use crate::connector::Serves;
use crate::error_reply;
use crate::node::{Node, Sent, Terms};
use crate::options::InvalidOptions;
use crate::options::{Address, Options, Servers};
use crate::reply_bound::ReplyBound;
use crate::sentinel;
use crate::slot::{self, SLOTS};
use tokio::time::Instant;

/// Shortest and longest timeout for asking one node. Between them it is the connect timeout, because asking
/// may include connecting. The upper bound keeps a silent node from delaying the question to the next one.
const ASKING: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
/// Maximum known nodes; more than any cluster has.
const MOST_NODES: usize = 2048;
/// Marks a slot without a known node.
const NOBODY: u16 = u16::MAX;
/// Refresh intervals while everything is healthy: for a cluster, and for Sentinels.
const CALM: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(10)];
/// Refresh interval while there are errors.
const SUSPECT: Duration = Duration::from_secs(1);
/// Minimum interval, however many errors there are.
const GAP: Duration = Duration::from_millis(50);

/// The nodes and their slots.
pub(crate) struct Topology {
    options: Options,
    map: ArcSwap<Map>,
    /// For a cluster: every node in the map, and those named by redirections since.
    nodes: Mutex<HashMap<Address, KnownNode>>,
    /// The Sentinels to ask for the master.
    sentinels: Vec<Arc<Node>>,
    wake: Arc<Notify>,
    /// Whether the background task runs.
    is_running: Arc<AtomicBool>,
    /// Why the last refresh failed; `None` after a successful one.
    why: ArcSwapOption<String>,
}

struct KnownNode {
    node: Arc<Node>,
    /// Whether a redirection has named it since the last refresh.
    fresh: AtomicBool,
}

/// The slot map.
#[derive(Clone, Default)]
struct Map {
    /// Per slot, the index of its master in `masters`, or [`NOBODY`]. Without a cluster there is one slot.
    holders: Box<[u16]>,
    masters: Vec<Arc<Node>>,
    /// Replicas: asked for the slot map if masters do not reply, never called for keys.
    replicas: Vec<Arc<Node>>,
}

impl Drop for Topology {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl Topology {
    /// # Errors
    /// Certificates that cannot be read.
    pub(crate) fn new(options: &Options) -> Result<Arc<Self>, InvalidOptions> {
        let node = |address: &Address, serves| Node::new(options, address.clone(), serves);
        let (mut map, mut sentinels) = (Map::default(), Vec::new());
        match &options.servers {
            Servers::Node(address) => map = Map::of(node(address, Serves::Keys)?),
            Servers::Cluster(seeds) => {
                for seed in seeds {
                    node(seed, Serves::Keys)?;
                }
            }
            Servers::Sentinel { sentinels: addresses, .. } => {
                let nodes = addresses.iter().map(|address| node(address, Serves::Sentinel));
                sentinels = nodes.collect::<Result<_, _>>()?;
            }
        }
        Ok(Arc::new(Self {
            options: options.clone(),
            map: ArcSwap::from_pointee(map),
            nodes: Mutex::default(),
            sentinels,
            wake: Arc::default(),
            is_running: Arc::default(),
            why: ArcSwapOption::empty(),
        }))
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.options.servers, Servers::Cluster(_))
    }

    /// The slot of a key; 0 if this is not a cluster, so that all keys share one slot.
    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        if self.is_cluster() { slot::of(key) } else { 0 }
    }

    /// The node that holds a slot, if known.
    pub(crate) fn holder(&self, slot: u16) -> Option<Arc<Node>> {
        let map = self.map.load();
        let number = map.holders.get(usize::from(slot))?;
        map.masters.get(usize::from(*number)).cloned()
    }

    /// All masters that are known.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        self.map.load().masters.clone()
    }

    /// Describes a slot without a node and, after a failed refresh, the reason.
    pub(crate) fn missing(&self, slot: u16) -> (&'static str, String, Option<String>) {
        let why = self.why.load().as_deref().cloned();
        match self.options.servers {
            Servers::Sentinel { .. } => ("the sentinels' master", "not known".to_owned(), why),
            _ => ("the cluster", format!("slot {slot} has no node"), why),
        }
    }

    /// Handles a `MOVED` redirection from `from`: the slot is now at `to`. Returns whether the call can
    /// follow it.
    pub(crate) fn moved(&self, slot: u16, to: &str, from: &Node) -> bool {
        let Some(node) = self.named(to, from) else { return false };
        self.map.rcu(|map| {
            let mut map = Map::clone(map);
            map.give(slot..=slot, &node);
            map
        });
        true
    }

    /// The node at the address of a redirection from `from`.
    pub(crate) fn named(&self, address: &str, from: &Node) -> Option<Arc<Node>> {
        let (host, port) = address.rsplit_once(':').filter(|_| self.is_cluster())?;
        let port = port.parse().ok()?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let address = cluster::located(Some(host), port, from.address())?;
        let mut nodes = self.nodes();
        if !nodes.contains_key(&address) && nodes.len() >= MOST_NODES {
            return None;
        }
        let known = self.known(&mut nodes, &address)?;
        known.fresh.store(true, Ordering::Relaxed);
        Some(known.node.clone())
    }

    fn known<'a>(
        &self,
        nodes: &'a mut HashMap<Address, KnownNode>,
        address: &Address,
    ) -> Option<&'a KnownNode> {
        if !nodes.contains_key(address) {
            // Cannot fail: the seeds used the same certificates.
            let node = Node::new(&self.options, address.clone(), Serves::Keys).ok()?;
            nodes.insert(address.clone(), KnownNode { node, fresh: AtomicBool::new(false) });
        }
        nodes.get(address)
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Address, KnownNode>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the background task, unless it is running or there is nothing to refresh.
    pub(crate) fn start_refresh(self: &Arc<Self>) {
        let is_fixed = matches!(self.options.servers, Servers::Node(_));
        if is_fixed || self.is_running.load(Ordering::Relaxed) || self.is_running.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let ending = Ending(self.is_running.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(keep_fresh(Arc::downgrade(self), self.wake.clone(), ending));
        }
    }

    /// Requests an early refresh after an error.
    pub(crate) fn refresh_soon(&self) {
        self.wake.notify_one();
    }

    /// Asks nodes for the map, one by one, until one replies. Returns whether everything is healthy.
    async fn refresh(&self) -> bool {
        let mut why = String::new();
        for node in self.advisers() {
            let asked = match &self.options.servers {
                Servers::Sentinel { master, .. } => self.ask_sentinel(&node, master).await,
                _ => self.ask_cluster(&node).await,
            };
            match asked {
                Ok(map) => {
                    self.map.store(Arc::new(map));
                    self.why.store(None);
                    let map = self.map.load();
                    let is_whole = map.holders.iter().all(|holder| *holder != NOBODY);
                    // A node never called is not connected, which does not make it suspect.
                    return is_whole && map.masters.iter().all(|node| !node.is_suspect());
                }
                Err(words) => why = words,
            }
        }
        self.why.store(Some(Arc::new(why)));
        false
    }

    /// Nodes to ask for the map: healthy ones, then the addresses in a cluster's URL, then the rest.
    fn advisers(&self) -> Vec<Arc<Node>> {
        let Servers::Cluster(seeds) = &self.options.servers else {
            let (well, unwell): (Vec<_>, Vec<_>) =
                self.sentinels.iter().cloned().partition(|node| node.is_healthy());
            return [well, unwell].concat();
        };
        let map = self.map.load();
        let mut known: Vec<_> = map.masters.iter().chain(&map.replicas).cloned().collect();
        if !known.is_empty() {
            let turn = fastrand::usize(..known.len());
            known.rotate_left(turn);
        }
        let (mut advisers, unwell): (Vec<_>, Vec<_>) = known.into_iter().partition(|node| node.is_healthy());
        let nodes = self.nodes();
        let unknown = seeds.iter().filter(|seed| !nodes.contains_key(seed));
        advisers.extend(unknown.filter_map(|seed| Node::new(&self.options, seed.clone(), Serves::Keys).ok()));
        advisers.extend(unwell);
        advisers
    }

    async fn ask_cluster(&self, node: &Node) -> Result<Map, String> {
        let reply = self.answered(node, &["CLUSTER", "SLOTS"], ReplyBound::LISTING).await?;
        match cluster::ranges(&reply, node.address()) {
            Some(ranges) if !ranges.is_empty() => Ok(self.map_of(&ranges)),
            Some(_) => Err(format!("redis at {}: no node holds slots", node.name())),
            None => Err(format!("redis at {}: malformed reply to CLUSTER SLOTS", node.name())),
        }
    }

    /// Builds a cluster's map. Nodes not in it are closed.
    fn map_of(&self, ranges: &[Range]) -> Map {
        let mut map = Map { holders: vec![NOBODY; SLOTS.into()].into(), ..Map::default() };
        let mut nodes = self.nodes();
        for range in ranges {
            if nodes.len() >= MOST_NODES {
                break;
            }
            let Some(master) = self.known(&mut nodes, &range.master).map(|known| known.node.clone()) else {
                continue;
            };
            map.give(range.first..=range.last, &master);
            for replica in &range.replicas {
                if let Some(known) = self.known(&mut nodes, replica)
                    && !map.replicas.iter().any(|node| Arc::ptr_eq(node, &known.node))
                {
                    map.replicas.push(known.node.clone());
                }
            }
        }
        nodes.retain(|_, known| {
            let named = map.masters.iter().chain(&map.replicas).any(|node| Arc::ptr_eq(node, &known.node));
            known.fresh.swap(false, Ordering::Relaxed) || named
        });
        map
    }

    /// The master that a Sentinel reports for this name, if the server confirms its role.
    async fn ask_sentinel(&self, sentinel: &Node, master: &str) -> Result<Map, String> {
        let question = ["SENTINEL", "get-master-addr-by-name", master];
        let reply = self.answered(sentinel, &question, ReplyBound::SMALL).await?;
        let Some(address) = sentinel::address(&reply) else {
            return Err(format!("sentinel at {} knows no master `{master}`", sentinel.name()));
        };
        let candidate = match self.holder(0).filter(|master| *master.address() == address) {
            Some(known) => known,
            None => Node::new(&self.options, address, Serves::Keys).map_err(|error| error.to_string())?,
        };
        match self.answered(&candidate, &["ROLE"], ReplyBound::SMALL).await {
            Ok(reply) if !sentinel::is_master(&reply) => Err(format!(
                "redis at {} is reported as master but does not have the role `master`",
                candidate.name()
            )),
            // A user without permission for `ROLE` must trust the Sentinel.
            Err(words) if !words.contains("NOPERM") => Err(words),
            _ => Ok(Map::of(candidate)),
        }
    }

    /// A node's reply, with errors as text.
    async fn answered(&self, node: &Node, words: &[&str], bound: ReplyBound) -> Result<Value, String> {
        let mut command = Cmd::new();
        command.arg(words);
        let [least, most] = ASKING;
        let deadline = Instant::now() + self.options.connect_timeout().clamp(least, most);
        match node.call(Sent::One(&command), Terms { deadline, bound }).await {
            Ok(Value::ServerError(error)) => {
                Err(format!("redis at {}: {}", node.name(), error_reply::reply_text(&error)))
            }
            Ok(value) => Ok(value),
            Err(failure) => Err(failure.to_string()),
        }
    }
}

impl Map {
    /// A map in which one node holds everything.
    fn of(node: Arc<Node>) -> Self {
        Self { holders: [0].into(), masters: vec![node], replicas: Vec::new() }
    }

    fn give(&mut self, slots: std::ops::RangeInclusive<u16>, node: &Arc<Node>) {
        let number = self.masters.iter().position(|known| Arc::ptr_eq(known, node)).unwrap_or_else(|| {
            self.masters.push(node.clone());
            self.masters.len() - 1
        });
        for slot in slots {
            if let (Some(holder), Ok(number)) =
                (self.holders.get_mut(usize::from(slot)), u16::try_from(number))
            {
                *holder = number;
            }
        }
    }
}

/// The background task.
async fn keep_fresh(topology: Weak<Topology>, wake: Arc<Notify>, _ending: Ending) {
    loop {
        let Some(topology) = topology.upgrade() else { return };
        let is_well = topology.refresh().await;
        let [of_cluster, of_sentinels] = CALM;
        let calm = if topology.is_cluster() { of_cluster } else { of_sentinels };
        drop(topology);
        sleep(GAP).await;
        let _ = timeout(if is_well { calm } else { SUSPECT }, wake.notified()).await;
    }
}

/// Allows a new task after this one ends, for example with its runtime.
struct Ending(Arc<AtomicBool>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn cluster() -> Arc<Topology> {
        Topology::new(&Options::from_url("redis+cluster://seed:7000").unwrap()).unwrap()
    }

    fn install(cluster: &Topology, ranges: &[Range]) {
        cluster.map.store(Arc::new(cluster.map_of(ranges)));
    }

    /// One redirection must not discard the other slots.
    #[test]
    fn a_moved_slot_is_patched_and_no_other() {
        let cluster = cluster();
        let range = Range { first: 0, last: 16_383, master: tcp("a", 1), replicas: vec![] };
        install(&cluster, &[range]);
        let from = cluster.holder(7).unwrap();
        assert!(cluster.moved(7, "b:2", &from));
        assert_eq!(cluster.holder(7).unwrap().name(), "b:2");
        assert_eq!(cluster.holder(8).unwrap().name(), "a:1");
        assert!(cluster.moved(9, ":3", &from));
        assert_eq!(cluster.holder(9).unwrap().name(), "a:3");
        assert!(!cluster.moved(9, "nonsense", &from));
    }

    /// Nodes must be reused, or each lookup would open a new connection.
    #[test]
    fn nodes_outlive_a_look_at_the_map() {
        let cluster = cluster();
        let range = |first, last, port| Range { first, last, master: tcp("a", port), replicas: vec![] };
        install(&cluster, &[range(0, 99, 1), range(100, 16_383, 2)]);
        let before = cluster.holder(0).unwrap();
        install(&cluster, &[range(0, 99, 1), range(100, 16_383, 3)]);
        assert!(Arc::ptr_eq(&before, &cluster.holder(0).unwrap()));
        assert_eq!(cluster.masters().len(), 2);
        assert_eq!(cluster.nodes().len(), 2);
    }
}
