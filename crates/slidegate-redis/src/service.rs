//! The Redis store for the service: [`ServiceStore`], and what only `slidegate doctor` asks of Redis.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis_once::{BreakerState, Failure, ReplyBound};
use slidegate::store::{
    BoxFuture, ClosedTotal, ClosedTotals, ControlDocument, ControlDocumentId, InstanceRecord, LastQuota,
    NodeState, PolicyKeys, ResetCursor, ServiceStore, StoreFailure, StoreStats,
};
use slidegate::{Error, Key};

use crate::admin::servers::ServerInfo;
use crate::admin::{claim, closed, control_document, instances, scan, self_test, servers};
use crate::calls::{Counts, EXPIRY_US};
use crate::last_quotas;
use crate::store::{RedisStore, store_failure};

impl RedisStore {
    async fn ping_masters(&self) -> Result<(), Failure> {
        let deadline = self.calls.deadline() + self.options.connection.connect_timeout();
        let ping = |_: &str| Some(redis::cmd("PING"));
        let answers = self.calls.client.on_each_master(ping, ReplyBound::SMALL, deadline).await;
        let counted = |failure: &Failure| self.calls.client.count(failure);
        answers.into_iter().try_for_each(|(_, answer)| answer.map(|_| ()).inspect_err(counted))
    }

    /// Information about every master, sorted by address, without those that do not reply. Needs
    /// the rights to `INFO` and `TIME`.
    pub async fn servers(&self) -> Vec<ServerInfo> {
        servers::ask(&self.calls).await
    }

    /// How many bytes of the table of instances were not written by instances, at most 32,000. The
    /// next [count](ServiceStore::count_instances) replaces them.
    ///
    /// # Errors
    /// If the store does not reply, or the table is not a string.
    pub async fn foreign_instances(&self) -> Result<usize, Error> {
        instances::foreign(&self.calls).await.map_err(error)
    }
}

impl ServiceStore for RedisStore {
    fn url(&self) -> String {
        self.options.to_string()
    }

    fn hash_tag(&self) -> Option<&str> {
        self.options.hash_tag()
    }

    fn stats(&self) -> StoreStats {
        let Counts { calls, batched, cached_denials, late, instances_replaced } = &self.calls.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut stats = StoreStats {
            calls: of(calls),
            batched: of(batched),
            cached_denials: of(cached_denials),
            late: of(late),
            errors: self.calls.client.errors().iter().map(|(kind, count)| (kind.name(), count)).collect(),
            clock_jumps: self.calls.times.counts(),
            clock_resolution_us: if self.calls.reads_expiry() { EXPIRY_US } else { 1 },
            instances_replaced: of(instances_replaced),
            ..StoreStats::default()
        };
        stats.leases = self.calls.leases.stats();
        self.seen.write_to(&mut stats);
        stats
    }

    fn return_leases(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.calls.return_leases())
    }

    fn nodes(&self) -> Vec<NodeState> {
        let nodes = self.calls.client.state().into_iter().map(|node| NodeState {
            node: node.node,
            connected: node.connected,
            has_module: node.has_module,
            breaker: match node.breaker {
                BreakerState::Closed => "closed",
                BreakerState::Open => "open",
                BreakerState::HalfOpen => "half-open",
            },
            reconnects: node.reconnects,
            moved: node.moved,
            ask: node.ask,
            timeouts: node.timeouts,
        });
        nodes.collect()
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { self.ping_masters().await.map_err(error) })
    }

    /// Makes the calls of a check, of a reservation and of a reset, on a key of its own on every
    /// master, and calls each command that scripts call.
    ///
    /// If scripts may not call `TIME` but may read a key's expiry, they use that as their clock
    /// from then on, in whole milliseconds: see
    /// [`clock_resolution_us`](StoreStats::clock_resolution_us). Charges then count for the window
    /// plus a millisecond, so that no more is admitted.
    ///
    /// Without replies it ends within about four seconds per master, or twice the deadline if that is longer.
    fn self_test(&self) -> BoxFuture<'_, Result<(), StoreFailure>> {
        let tested = async {
            self.ping_masters().await?;
            self_test::test_masters(&self.calls).await
        };
        Box::pin(async { tested.await.map_err(store_failure) })
    }

    fn restriction(&self) -> Option<&'static str> {
        let restriction = "scripts may not call `time`: charges count for their window and up to 2 ms";
        self.calls.reads_expiry().then_some(restriction)
    }

    /// Finds, within the rights of the store's user: a server that evicts keys, evicted keys,
    /// history lost in a failover, a restart or a `FLUSHALL`, and clock jumps. Clears the cached
    /// denials of all instances if usage was lost.
    fn examine(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(self.seen.examine(&self.calls))
    }

    fn instance_id(&self) -> &str {
        &self.calls.denials.instance
    }

    fn count_instances<'a>(&'a self, record: Option<&'a [u8]>) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move { instances::count(&self.calls, record).await.map_err(error) })
    }

    fn instance_records(&self) -> BoxFuture<'_, Result<Vec<InstanceRecord>, Error>> {
        Box::pin(async { instances::records(&self.calls).await.map_err(error) })
    }

    fn list_policy_step<'a>(
        &'a self,
        policy: &'a str,
        from: Option<&'a ResetCursor>,
        keys: u64,
    ) -> BoxFuture<'a, Result<PolicyKeys, Error>> {
        Box::pin(async move {
            if from.is_some_and(|from| from.position().is_some()) {
                let detail =
                    "the cursor is that of a store in memory, and this one is shared; give none to begin";
                return Err(Error::policy(detail));
            }
            scan::list(&self.calls, policy, from, keys).await.map_err(error)
        })
    }

    fn last_quota<'a>(&'a self, key: &'a Key<'a>) -> BoxFuture<'a, Result<Option<LastQuota>, Error>> {
        Box::pin(async move { last_quotas::read(&self.calls, &self.options.names, key).await.map_err(error) })
    }

    fn claim<'a>(&'a self, what: &'a [u8], duration: Duration) -> BoxFuture<'a, Result<bool, Error>> {
        let key = self.options.names.claim(what);
        Box::pin(async move { claim::claim(&self.calls, &key, duration).await.map_err(error) })
    }

    fn extend_claim<'a>(&'a self, what: &'a [u8], duration: Duration) -> BoxFuture<'a, Result<bool, Error>> {
        let key = self.options.names.claim(what);
        Box::pin(async move { claim::extend(&self.calls, &key, duration).await.map_err(error) })
    }

    fn closed_step<'a>(
        &'a self,
        policy: &'a str,
        from: Option<&'a ResetCursor>,
        keys: u64,
    ) -> BoxFuture<'a, Result<ClosedTotals, Error>> {
        Box::pin(async move { closed::list(&self.calls, policy, from, keys).await.map_err(error) })
    }

    fn acknowledge_closed<'a>(&'a self, totals: &'a [ClosedTotal]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { closed::acknowledge(&self.calls, totals).await.map_err(error) })
    }

    fn control_document(
        &self,
        known: Option<ControlDocumentId>,
    ) -> BoxFuture<'_, Result<Option<ControlDocument>, Error>> {
        Box::pin(async move { control_document::read_document(&self.calls, known).await.map_err(error) })
    }

    fn replace_control_document<'a>(
        &'a self,
        found: ControlDocumentId,
        document: &'a ControlDocument,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let written = control_document::write_document(&self.calls, found, document);
        Box::pin(async { written.await.map_err(error) })
    }

    fn control_document_changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.calls.denials.control_document_changed())
    }
}

#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn error(failure: Failure) -> Error {
    Error::store(failure.to_string())
}

#[cfg(test)]
mod tests {
    use redis_once::FailureKind;

    use super::*;

    /// A refusal that passes for an outage is waited for, and nobody grants the right.
    #[test]
    fn a_refusal_is_told_from_an_outage() {
        let failure = |kind: FailureKind| StoreFailure::new(kind.name(), "redis: no");
        let refusals: Vec<_> =
            FailureKind::ALL.into_iter().filter(|kind| failure(*kind).is_refusal()).collect();
        assert_eq!(refusals, [FailureKind::Authentication, FailureKind::NoPermission, FailureKind::Other]);
        assert_eq!(FailureKind::BreakerOpen.name(), StoreFailure::BREAKER_OPEN);
    }
}
