//! What the service asks of a shared store besides decisions.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{pending, ready};
use std::pin::Pin;
use std::time::Duration;

use super::control_document::{ControlDocument, ControlDocumentId};
use crate::error::Error;
use crate::key::Key;
use crate::policy_reset::{PolicyKeys, ResetCursor};
use crate::quota::LastQuota;
use crate::store::failure::StoreFailure;
use crate::time::Timestamp;

/// A future of a [`ServiceStore`].
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How often instances [count](ServiceStore::count_instances) themselves.
pub const COUNT_INTERVAL: Duration = Duration::from_secs(3);

/// What the service asks of a [`SharedStore`](super::SharedStore) besides decisions: whether limits
/// are shared, by whom, and what instances tell each other.
///
/// The service uses it as `dyn ServiceStore`, so futures are boxed; no decision waits for them. Each
/// ends within a few seconds, even if the store does not reply.
pub trait ServiceStore: fmt::Debug + Send + Sync {
    /// Where the store is, without secrets: `redis://10.0.0.5:6379`.
    fn url(&self) -> String;

    /// The attribute by which all keys of a request are stored together. By default none.
    fn hash_tag(&self) -> Option<&str> {
        None
    }

    /// Counters since the store was created. By default zeros.
    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    /// Settles the [leases](crate::Policy::with_lease) of this process, and takes no others from now on: what they have
    /// left is free for other instances at once, and not when they end. Call it before the process ends. By default
    /// does nothing.
    fn return_leases(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }

    /// The known servers. While none of them is connected, the service counts as degraded.
    fn nodes(&self) -> Vec<NodeState>;

    /// Asks every server that accepts writes for a reply. May wait longer than a decision, because
    /// connections may have to be opened first.
    ///
    /// # Errors
    /// If a server did not reply.
    fn ping(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Tests that limits are shared: makes the calls that decisions make, on keys of its own.
    ///
    /// # Errors
    /// If a server is unreachable or refuses a call. The text names the server and the call, and
    /// [`is_refusal`](StoreFailure::is_refusal) whether somebody has to change the server.
    fn self_test(&self) -> BoxFuture<'_, Result<(), StoreFailure>>;

    /// How decisions are less exact than usual because the servers restrict calls, as the
    /// self-test found. By default `None`.
    fn restriction(&self) -> Option<&'static str> {
        None
    }

    /// Looks for conditions that silently break limits, such as lost usage. Returns one line per
    /// finding since the last call, which is made every minute. By default nothing.
    fn examine(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(ready(Vec::new()))
    }

    /// The id of this instance in [`instance_records`](Self::instance_records).
    fn instance_id(&self) -> &str;

    /// Announces this instance, and returns the number of instances on the store, including this
    /// one: those that called this within the last ten seconds of the store's clock. 1000 means 1000
    /// or more. Call it every [`COUNT_INTERVAL`], and pass the result to
    /// [`FallbackStore::share_among`](super::FallbackStore::share_among). A record of at most 4096
    /// bytes is published for as long as the instance counts.
    ///
    /// # Errors
    /// If the store did not reply, or the record is too large.
    fn count_instances<'a>(&'a self, record: Option<&'a [u8]>) -> BoxFuture<'a, Result<u64, Error>>;

    /// The published records of live instances, including this one, unordered. At most 1000.
    ///
    /// # Errors
    /// If the store did not reply.
    fn instance_records(&self) -> BoxFuture<'_, Result<Vec<InstanceRecord>, Error>>;

    /// One step of listing the keys of a policy that the store has, expired ones included, which examines
    /// about `keys` keys of one server. Start without a cursor, then pass the one from the step
    /// before. By default an error.
    ///
    /// # Errors
    /// If the store cannot, the cursor belongs to another store, or the store did not reply.
    fn list_policy_step<'a>(
        &'a self,
        policy: &'a str,
        from: Option<&'a ResetCursor>,
        keys: u64,
    ) -> BoxFuture<'a, Result<PolicyKeys, Error>> {
        let _ = (policy, from, keys);
        Box::pin(ready(Err(Error::store("this store does not list the keys of a policy"))))
    }

    /// The quota under which a key was last charged, if it depends on requests, as any instance left it within the
    /// last minute. By default `None`.
    ///
    /// # Errors
    /// If the store did not reply.
    fn last_quota<'a>(&'a self, key: &'a Key<'a>) -> BoxFuture<'a, Result<Option<LastQuota>, Error>> {
        let _ = key;
        Box::pin(ready(Ok(None)))
    }

    /// Claims `what` for a duration, by the store's clock. Returns whether it was unclaimed: exactly
    /// one of the instances that ask gets true.
    ///
    /// # Errors
    /// If the store did not reply; it may or may not be claimed.
    fn claim<'a>(&'a self, what: &'a [u8], duration: Duration) -> BoxFuture<'a, Result<bool, Error>>;

    /// Sets how long a claim of this instance lasts from now on. Returns false if it has ended: another instance may
    /// have it by now, and this one must stop what it does under it. By default an error.
    ///
    /// # Errors
    /// If the store cannot, or did not reply.
    fn extend_claim<'a>(&'a self, what: &'a [u8], duration: Duration) -> BoxFuture<'a, Result<bool, Error>> {
        let _ = (what, duration);
        Box::pin(ready(Err(Error::store("this store does not extend claims"))))
    }

    /// One step of listing the totals of a policy's keys in windows that have ended, which examines about
    /// `keys` keys. The policy must [ask for them](crate::Policy::with_notify_closed). A total is listed until it
    /// is [acknowledged](Self::acknowledge_closed), for half a window after its end, at most a week. By default
    /// an error.
    ///
    /// # Errors
    /// If the store cannot, or did not reply.
    fn closed_step<'a>(
        &'a self,
        policy: &'a str,
        from: Option<&'a ResetCursor>,
        keys: u64,
    ) -> BoxFuture<'a, Result<ClosedTotals, Error>> {
        let _ = (policy, from, keys);
        Box::pin(ready(Err(Error::store("this store does not keep the totals of ended windows"))))
    }

    /// Acknowledges totals, which are not listed again. Usage stays as it is. By default an error.
    ///
    /// # Errors
    /// If the store cannot, or did not reply; some may be acknowledged.
    fn acknowledge_closed<'a>(&'a self, totals: &'a [ClosedTotal]) -> BoxFuture<'a, Result<(), Error>> {
        let _ = totals;
        Box::pin(ready(Err(Error::store("this store does not keep the totals of ended windows"))))
    }

    /// The control document, or `None` if it is still the `known` one. If there is none, its id [is
    /// absent](ControlDocumentId::is_absent) and its text is empty. Polled every two seconds, so a
    /// known document should be cheap.
    ///
    /// # Errors
    /// If the store did not reply, or holds a document that slidegate did not write.
    fn control_document(
        &self,
        known: Option<ControlDocumentId>,
    ) -> BoxFuture<'_, Result<Option<ControlDocument>, Error>>;

    /// Replaces the control document `found`, or its absence, in one step. Returns false if another
    /// one is stored by now. It never expires, and all instances are
    /// [notified](Self::control_document_changed).
    ///
    /// A store can lose a document, or restore an older one. Give each write a new random
    /// `revision`, so that two documents of one version differ, and a new random `epoch` after a
    /// loss.
    ///
    /// # Errors
    /// If the document is larger than a mebibyte or its id [cannot be
    /// written](ControlDocumentId::is_writable). If the store did not reply; it may or may not be
    /// written.
    fn replace_control_document<'a>(
        &'a self,
        found: ControlDocumentId,
        document: &'a ControlDocument,
    ) -> BoxFuture<'a, Result<bool, Error>>;

    /// Waits until another instance announces a new control document. Announcements can be lost or
    /// repeated, because the document is also polled. By default there are none.
    fn control_document_changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(pending())
    }
}

/// What one [step](ServiceStore::closed_step) found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClosedTotals {
    /// The totals. One may be in several steps.
    pub totals: Vec<ClosedTotal>,
    /// Keys with holds that have ended and are not charged yet. A peek charges them; then the same step lists their
    /// totals.
    pub unsettled: Vec<String>,
    /// Windows that ended by then are listed: a few seconds ago by the store's clock, so that a small correction of
    /// it changes no total.
    pub until: Timestamp,
    /// Where the next step continues; `None` when the list is complete.
    pub next: Option<ResetCursor>,
}

/// The total of a key in a calendar window that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedTotal {
    /// The name of the key in the store, the same for all instances.
    pub name: Vec<u8>,
    /// The text of the key; `#` and a hash if the store has only that.
    pub key: String,
    /// Whether the store counts millionths of a unit.
    pub in_millionths: bool,
    /// The [code](crate::Calendar::code) of the calendar.
    pub calendar: u64,
    /// When the window ended.
    pub ended: Timestamp,
    /// What was used in it, as the store counts.
    pub used: u64,
}

/// The published record of an instance on a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRecord {
    /// The instance: random, chosen when its store was created.
    pub id: String,
    /// Its record, unvalidated: anyone who can write to the store can write it. At most 4096 bytes.
    pub record: Vec<u8>,
}

/// Counters of a shared store since it was created.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Calls made for decisions.
    pub calls: u64,
    /// Checks that joined another check's call.
    pub batched: u64,
    /// Checks denied by a cached denial, without a call.
    pub cached_denials: u64,
    /// Leases by policy, of this process: those of policies that have had one.
    pub leases: BTreeMap<String, LeaseStats>,
    /// Calls that reached the server after their deadline and charged nothing.
    pub late: u64,
    /// Failed calls by [kind](StoreFailure::kind): every kind that the store knows.
    pub errors: BTreeMap<&'static str, u64>,
    /// Detected clock jumps of the servers.
    pub clock_jumps: ClockJumps,
    /// Resolution of the clock that decides, in microseconds.
    pub clock_resolution_us: u64,
    /// Keys evicted by the servers, as found by [`examine`](ServiceStore::examine).
    pub evicted_keys: u64,
    /// How often [`examine`](ServiceStore::examine) found that usage was lost: keys evicted, or history gone after
    /// a failover, a restart without persistence or a `FLUSHALL`.
    pub usage_losses: u64,
    /// How often the table of instances contained foreign data and was replaced.
    pub instances_replaced: u64,
}

/// Leases of one policy in this process: [`Policy::with_lease`](crate::Policy::with_lease). Costs are as the store counts
/// them: millionths of a unit, if the policy [weights](crate::Counts::Weighted) costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseStats {
    /// Leases that the store granted, renewals included.
    pub granted: u64,
    /// Those that replaced one that was settled by the same call.
    pub renewed: u64,
    /// Leases that were settled and not replaced.
    pub returned: u64,
    /// Leases that ended before their settlement reached the store: it charged them in full.
    pub expired: u64,
    /// Requests that were admitted from leases, without a call.
    pub admitted: u64,
    /// Open leases.
    pub open: u64,
    /// Cost that open leases have left.
    pub held: u64,
    /// The limits of their keys, added up: `held` of it is kept from other instances.
    pub limit: u64,
}

/// Detected clock jumps of a shared store's servers.
///
/// A forward jump expires history early, so up to one limit more is admitted; see
/// `docs/failures.md`. A failover to a server with another clock counts as a jump, and so does a
/// suspension of the machine that this process runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockJumps {
    /// Jumps ahead.
    pub forward: u64,
    /// Jumps back.
    pub backward: u64,
    /// The size of the last jump in microseconds, negative where it was back; 0 before the first.
    pub last_us: i64,
}

/// State of one server of a shared store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeState {
    /// Address: `10.0.0.5:6379`, or a socket path.
    pub node: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Whether it decides by slidegate's native module.
    pub has_module: bool,
    /// Its circuit breaker: `closed` lets calls through, `open` none, `half-open` a few probes.
    pub breaker: &'static str,
    /// Reconnects since the first call.
    pub reconnects: u64,
    /// Redirections to the server that has the key now (`MOVED` of Redis Cluster).
    pub moved: u64,
    /// Redirections of a single call (`ASK` of Redis Cluster).
    pub ask: u64,
    /// Calls that got no reply within their deadline.
    pub timeouts: u64,
}
