//! Redis Cluster: which node holds which slot.
//!
//! The slot map may be stale: a wrong entry costs a redirection, never a wrong decision. Reads take
//! no lock. A redirection updates one slot at once and triggers a refresh of the whole map.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use redis::{Cmd, Value};

use super::connector::Serves;
use super::error_reply;
use super::node::{Node, Terms};
use super::options::{Address, ConnectionOptions};
use super::refresh::{Refresh, Renew};
use super::reply_bound::ReplyBound;
use super::slot::SLOTS;
use crate::error::Error;
use crate::jitter;
use crate::time::instant;

/// Timeout for asking one node for the slot map.
const ASKING: Duration = Duration::from_millis(200);
/// The maximum number of known nodes; more than any cluster has.
const MOST_NODES: usize = 2048;
/// Marks a slot without a known node.
const NOBODY: u16 = u16::MAX;

/// The nodes of a cluster and their slots.
pub(super) struct Cluster {
    options: ConnectionOptions,
    seeds: Vec<Address>,
    map: ArcSwap<Map>,
    /// Every node in the map, and those that redirections have named since.
    nodes: Mutex<HashMap<Address, Known>>,
    refresh: Refresh,
    /// Why the last refresh failed; empty after a successful one.
    why: ArcSwapOption<String>,
}

struct Known {
    node: Arc<Node>,
    /// Whether a redirection has named it since the last refresh.
    fresh: AtomicBool,
}

/// The slot map.
#[derive(Clone)]
struct Map {
    /// For each slot the index of its master in `masters`, or [`NOBODY`].
    holders: Box<[u16]>,
    masters: Vec<Arc<Node>>,
    /// Replicas: asked for the slot map if masters do not reply, never for keys.
    replicas: Vec<Arc<Node>>,
}

/// One entry of `CLUSTER SLOTS`: the slots `first` to `last`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    first: u16,
    last: u16,
    master: Address,
    replicas: Vec<Address>,
}

impl Cluster {
    /// # Errors
    /// Certificates that cannot be read.
    pub(super) fn new(options: &ConnectionOptions, seeds: &[Address]) -> Result<Self, Error> {
        for seed in seeds {
            Node::new(options, seed.clone(), Serves::Keys)?;
        }
        Ok(Self {
            options: options.clone(),
            seeds: seeds.to_vec(),
            map: ArcSwap::from_pointee(Map::empty()),
            nodes: Mutex::default(),
            refresh: Refresh::default(),
            why: ArcSwapOption::empty(),
        })
    }

    /// The node that holds a slot, if known.
    pub(super) fn holder(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.load().holder(slot).cloned()
    }

    /// All masters.
    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        self.map.load().masters.clone()
    }

    /// Every known node.
    fn nodes(&self) -> Vec<Arc<Node>> {
        let map = self.map.load();
        map.masters.iter().chain(&map.replicas).cloned().collect()
    }

    /// Why nothing is known of the cluster, after the first refresh.
    pub(super) fn last_error(&self) -> Option<String> {
        self.why.load().as_deref().cloned()
    }

    /// Handles a `MOVED` redirection from `from`: the slot is now at `to`. Returns whether it is
    /// valid.
    pub(super) fn moved(&self, slot: u16, to: &str, from: &Node) -> bool {
        let Some(node) = self.named(to, from) else { return false };
        self.map.rcu(|map| {
            let mut map = Map::clone(map);
            map.give(slot, &node);
            map
        });
        true
    }

    /// The node at an address that `from` named.
    pub(super) fn named(&self, address: &str, from: &Node) -> Option<Arc<Node>> {
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let address = located(Some(host), port, from.address())?;
        let mut nodes = self.lock();
        if !nodes.contains_key(&address) && nodes.len() >= MOST_NODES {
            return None;
        }
        let known = self.known(&mut nodes, &address)?;
        known.fresh.store(true, Ordering::Relaxed);
        Some(known.node.clone())
    }

    fn known<'a>(&self, nodes: &'a mut HashMap<Address, Known>, address: &Address) -> Option<&'a Known> {
        if !nodes.contains_key(address) {
            // Cannot fail: the same certificates were read for the seeds.
            let node = Node::new(&self.options, address.clone(), Serves::Keys).ok()?;
            nodes.insert(address.clone(), Known { node, fresh: AtomicBool::new(false) });
        }
        nodes.get(address)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Address, Known>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which nodes to ask for the map: healthy ones, then the addresses of the URL, then the rest.
    fn advisers(&self) -> Vec<Arc<Node>> {
        let mut known = self.nodes();
        if !known.is_empty() {
            let turn = usize::try_from(jitter::below(known.len() as u64)).unwrap_or(0);
            known.rotate_left(turn);
        }
        let (mut advisers, unwell): (Vec<_>, Vec<_>) = known.into_iter().partition(|node| node.is_healthy());
        let unknown = self.seeds.iter().filter(|seed| !self.lock().contains_key(seed)).cloned();
        let unknown: Vec<_> = unknown.collect();
        let seeds = unknown.into_iter().filter_map(|seed| Node::new(&self.options, seed, Serves::Keys).ok());
        advisers.extend(seeds);
        advisers.extend(unwell);
        advisers
    }

    /// Applies a node's slot map.
    fn install(&self, ranges: &[Range]) {
        let mut map = Map::empty();
        let mut nodes = self.lock();
        for range in ranges {
            if nodes.len() >= MOST_NODES {
                break;
            }
            let Some(master) = self.known(&mut nodes, &range.master).map(|known| known.node.clone()) else {
                continue;
            };
            for slot in range.first..=range.last {
                map.give(slot, &master);
            }
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
        drop(nodes);
        self.map.store(Arc::new(map));
        self.why.store(None);
    }
}

impl Renew for Cluster {
    const CALM: Duration = Duration::from_secs(30);

    fn refresh(&self) -> &Refresh {
        &self.refresh
    }

    async fn renew(&self) -> bool {
        let mut command = Cmd::with_capacity(2, 12);
        command.arg("CLUSTER").arg("SLOTS");
        let mut why = String::new();
        for node in self.advisers() {
            let terms = Terms { deadline: instant() + ASKING, bound: ReplyBound::LISTING };
            match node.call(&command, terms).await {
                Ok(Value::ServerError(error)) => {
                    why = format!("redis at {}: {}", node.name(), error_reply::reply_text(&error));
                }
                Ok(value) => match ranges(&value, node.address()) {
                    Some(ranges) if !ranges.is_empty() => {
                        self.install(&ranges);
                        let map = self.map.load();
                        let whole = map.holders.iter().all(|holder| *holder != NOBODY);
                        // A node that was never called is not connected, which is no reason to
                        // doubt it.
                        return whole && map.masters.iter().all(|node| !node.is_suspect());
                    }
                    Some(_) => why = format!("redis at {}: no node holds slots", node.name()),
                    None => why = format!("redis at {}: malformed reply to CLUSTER SLOTS", node.name()),
                },
                Err(failure) => why = failure.to_string(),
            }
        }
        self.why.store(Some(Arc::new(why)));
        false
    }
}

impl Map {
    fn empty() -> Self {
        Self { holders: vec![NOBODY; SLOTS.into()].into(), masters: Vec::new(), replicas: Vec::new() }
    }

    fn holder(&self, slot: u16) -> Option<&Arc<Node>> {
        let number = self.holders.get(usize::from(slot))?;
        self.masters.get(usize::from(*number))
    }

    fn give(&mut self, slot: u16, node: &Arc<Node>) {
        let number = self.masters.iter().position(|known| Arc::ptr_eq(known, node)).unwrap_or_else(|| {
            self.masters.push(node.clone());
            self.masters.len() - 1
        });
        if let (Some(holder), Ok(number)) = (self.holders.get_mut(usize::from(slot)), u16::try_from(number)) {
            *holder = number;
        }
    }
}

/// Parses the reply of `CLUSTER SLOTS`; `None` if it is malformed.
pub(super) fn ranges(reply: &Value, from: &Address) -> Option<Vec<Range>> {
    let Value::Array(entries) = reply else { return None };
    entries.iter().map(|entry| range(entry, from)).collect()
}

fn range(entry: &Value, from: &Address) -> Option<Range> {
    let Value::Array(parts) = entry else { return None };
    let [Value::Int(first), Value::Int(last), master, replicas @ ..] = &parts[..] else { return None };
    let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
    if first > last || last >= SLOTS {
        return None;
    }
    let master = listed(master, from)?;
    let replicas = replicas.iter().filter_map(|replica| listed(replica, from)).collect();
    Some(Range { first, last, master, replicas })
}

/// Parses one node of the list: host, port, and fields that are ignored.
fn listed(node: &Value, from: &Address) -> Option<Address> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), ..] = &parts[..] else { return None };
    let host = match host {
        Value::BulkString(bytes) => Some(std::str::from_utf8(bytes).ok()?),
        Value::SimpleString(text) => Some(text.as_str()),
        Value::Nil => None,
        _ => return None,
    };
    located(host, u16::try_from(*port).ok()?, from)
}

/// An address as reported by `from`. A missing or unknown host means the host of `from`.
fn located(host: Option<&str>, port: u16, from: &Address) -> Option<Address> {
    if port == 0 {
        return None;
    }
    match (host.filter(|host| !host.is_empty() && *host != "?"), from) {
        (Some(host), _) => Some(Address::Tcp { host: host.to_owned(), port }),
        (None, Address::Tcp { host, .. }) => Some(Address::Tcp { host: host.clone(), port }),
        (None, Address::Unix(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn read(reply: &str) -> Option<Vec<Range>> {
        ranges(&redis::parse_redis_value(reply.as_bytes()).unwrap(), &tcp("seed", 7000))
    }

    fn cluster() -> Cluster {
        Cluster::new(&ConnectionOptions::parse("redis+cluster://seed:7000").unwrap(), &[tcp("seed", 7000)])
            .unwrap()
    }

    /// The slot map depends on parsing this reply correctly.
    #[test]
    fn the_list_of_slots_is_read() {
        let reply = "*1\r\n*4\r\n:0\r\n:5460\r\n*4\r\n$8\r\n10.0.0.1\r\n:7000\r\n$2\r\nid\r\n*0\r\n\
                     *4\r\n$0\r\n\r\n:7003\r\n$2\r\nid\r\n*0\r\n";
        let range =
            Range { first: 0, last: 5460, master: tcp("10.0.0.1", 7000), replicas: vec![tcp("seed", 7003)] };
        assert_eq!(read(reply), Some(vec![range]));
        // A node that does not know its own host replies nil.
        let reply = "*1\r\n*3\r\n:0\r\n:0\r\n*2\r\n$-1\r\n:7001\r\n";
        assert_eq!(read(reply).unwrap()[0].master, tcp("seed", 7001));
    }

    /// A malformed reply must not empty the map or panic.
    #[test]
    fn what_is_no_list_of_slots_is_not_taken_for_one() {
        for reply in [
            "+OK\r\n",
            "*1\r\n:1\r\n",
            "*1\r\n*2\r\n:0\r\n:1\r\n",
            "*1\r\n*3\r\n:5\r\n:1\r\n*2\r\n$1\r\nh\r\n:1\r\n",
            "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nh\r\n:1\r\n",
            "*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n$1\r\nh\r\n:1\r\n",
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\nh\r\n:0\r\n",
        ] {
            assert_eq!(read(reply), None, "{reply:?}");
        }
    }

    /// One redirection must not discard the other slots.
    #[test]
    fn a_moved_slot_is_patched_and_no_other() {
        let cluster = cluster();
        let range = Range { first: 0, last: 16_383, master: tcp("a", 1), replicas: vec![] };
        cluster.install(&[range]);
        let from = cluster.holder(7).unwrap();
        assert!(cluster.moved(7, "b:2", &from));
        assert_eq!(cluster.holder(7).unwrap().name(), "b:2");
        assert_eq!(cluster.holder(8).unwrap().name(), "a:1");
        assert!(cluster.moved(9, ":3", &from));
        assert_eq!(cluster.holder(9).unwrap().name(), "a:3");
        assert!(!cluster.moved(9, "nonsense", &from));
    }

    /// A node must be reused, or each lookup would open a new connection.
    #[test]
    fn nodes_outlive_a_look_at_the_map() {
        let cluster = cluster();
        let range = |first, last, port| Range { first, last, master: tcp("a", port), replicas: vec![] };
        cluster.install(&[range(0, 99, 1), range(100, 16_383, 2)]);
        let before = cluster.holder(0).unwrap();
        cluster.install(&[range(0, 99, 1), range(100, 16_383, 3)]);
        assert!(Arc::ptr_eq(&before, &cluster.holder(0).unwrap()));
        assert_eq!(cluster.masters().len(), 2);
        assert_eq!(cluster.lock().len(), 2);
    }
}
