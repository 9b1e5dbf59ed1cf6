//! Instances: how many share the store.
//!
//! Each instance renews a line in one table. A line counts for [`COUNTS`] by the server's clock, so
//! an instance that ends is no longer counted then.

use std::time::Duration;

use super::PATIENCE;
use crate::store::redis::calls::Calls;
use crate::store::redis::names::Names;
use crate::store::redis::reply::number;
use crate::store::redis::transport::{Call, Executed, Failure, FailureKind, LastFailure, ReplyBound};
use crate::time::{instant, millis_ceil};

/// How long an instance counts after it was last heard of: three intervals, and a second.
const COUNTS: Duration = Duration::from_secs(10);
/// The largest number of lines: the script reads them in half a millisecond.
const MAX_INSTANCES: usize = 1000;

/// Renews the line of this instance. Returns how many there are.
pub(crate) async fn count(calls: &Calls) -> Result<u64, Failure> {
    let key = Names::instances();
    let args = [
        calls.denials.instance.as_bytes().to_vec(),
        millis_ceil(COUNTS).to_string().into_bytes(),
        MAX_INSTANCES.to_string().into_bytes(),
    ];
    let slot = calls.transport.slot(&key);
    let call = Call { script: &calls.scripts().instances, keys: &[key], args: &args, native: None };
    let counted = calls.run(call, ReplyBound::SMALL, instant() + PATIENCE, &LastFailure::default()).await?;
    number(&counted).filter(|count| *count > 0).ok_or_else(|| {
        let detail = format!("counted {counted:?} instances");
        calls.failed(slot, Executed::Maybe, FailureKind::Malformed, &detail)
    })
}
