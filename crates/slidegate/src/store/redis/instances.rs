//! Instances: how many share the store.
//!
//! Each instance renews a line in one table. A line counts for [`COUNTS`] by the server's clock, so
//! an instance that ends is no longer counted then.

use std::time::Duration;

use redis::Value;

use super::names::Names;
use super::{Call, Executed, Failure, FailureKind, LastFailure, RedisStore, ReplyBound, explain, number};
use crate::error::Error;
use crate::time::{instant, millis_ceil};

/// How long an instance counts after it was last heard of: three intervals, and a second.
const COUNTS: Duration = Duration::from_secs(10);
/// The largest number of lines: the script reads them in half a millisecond.
const MAX_INSTANCES: usize = 1000;
/// The deadline. No decision waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

impl RedisStore {
    /// How often to [count](Self::count_instances).
    pub const COUNT_INTERVAL: Duration = Duration::from_secs(3);

    /// How many instances share the store, this one included: those that have called this within
    /// the last ten seconds of the server's clock. 1000 stands for any larger number. Call it from
    /// a timer, every [`COUNT_INTERVAL`](Self::COUNT_INTERVAL), and give the number to
    /// [`FallbackStore::share_among`](crate::FallbackStore::share_among).
    ///
    /// # Errors
    /// If the store did not reply, or holds a table that slidegate did not write.
    pub async fn count_instances(&self) -> Result<u64, Error> {
        self.beat().await.map_err(|failure| Error::store(failure.to_string()))
    }

    async fn beat(&self) -> Result<u64, Failure> {
        let (calls, key) = (&self.calls, Names::instances());
        let args = [
            calls.publisher.as_str().into(),
            millis_ceil(COUNTS).to_string().into_bytes(),
            MAX_INSTANCES.to_string().into_bytes(),
        ];
        let slot = calls.transport.slot(&key);
        let call = Call { script: calls.scripts().instances(), keys: &[key], args: &args, native: None };
        let deadline = instant() + PATIENCE;
        let counted = calls.transport.run(call, ReplyBound::SMALL, deadline, &LastFailure::default()).await;
        let counted: Value = counted.map_err(explain)?;
        number(&counted).filter(|count| *count > 0).ok_or_else(|| {
            let detail = format!("counted {counted:?} instances");
            calls.failed(slot, Executed::Maybe, FailureKind::Malformed, &detail)
        })
    }
}
