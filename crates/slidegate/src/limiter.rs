//! The limiter: one quota, many keys.

use crate::decision::Decision;
use crate::key::KeyId;
use crate::quota::{Algorithm, Quota};
use crate::store::memory::{MemoryStats, MemoryStore};
use crate::verb::Verb;
use crate::waiting::queues::WaitQueues;

mod acquire;

pub use acquire::Acquire;

/// One quota for many keys, in the memory of this process.
///
/// Every method takes `&self` and may be called from many threads at once. A decision allocates
/// only when its key is new to the store or its log has grown to a new size, locks one shard of the
/// store, and reads the clock once.
///
/// ```
/// use slidegate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_minute(100)); // exact sliding window, in memory
/// if limiter.check("alice").is_denied() { /* 429 */ }
/// # assert_eq!(limiter.peek("alice").remaining(), 99);
/// ```
///
/// Keys are text or bytes of any length: up to 15 bytes are stored as they are, longer ones by a
/// keyed hash.
#[derive(Debug)]
pub struct Limiter {
    store: MemoryStore,
    queues: WaitQueues<KeyId>,
}

impl Limiter {
    /// A limiter with a store of its own, which holds up to [`MemoryStore::DEFAULT_MAX_KEYS`] keys.
    ///
    /// # Panics
    /// If the quota is one of [what is in flight](Quota::in_flight). Only a [`Gate`](crate::Gate) can
    /// reserve.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self::with_store(quota, MemoryStore::new())
    }

    /// A limiter on a store that was made with a clock or a number of keys of choice.
    ///
    /// # Panics
    /// Same as [`new`](Self::new).
    #[must_use]
    pub fn with_store(quota: Quota, store: MemoryStore) -> Self {
        assert_rate(&quota);
        store.set_quota(quota);
        Self { store, queues: WaitQueues::default() }
    }

    /// Decides a request of cost 1 and charges it if it is allowed.
    #[inline]
    #[must_use = "a denied request must not be served"]
    pub fn check(&self, key: impl AsRef<[u8]>) -> Decision {
        self.check_cost(key, 1)
    }

    /// Decides a request and charges its cost if it is allowed. A denial charges nothing.
    ///
    /// A cost of zero is always allowed and stores nothing; one above the quota's
    /// [capacity](Quota::capacity) is always denied: `retry_after` is `None`.
    ///
    /// ```
    /// # use slidegate::{Limiter, Quota};
    /// let limiter = Limiter::new(Quota::per_minute(10));
    /// assert_eq!(limiter.check_cost("alice", 9).remaining(), 1);
    /// assert!(limiter.check_cost("alice", 5).is_denied());
    /// assert!(limiter.check_cost("alice", 1).is_allowed());
    /// assert_eq!(limiter.check_cost("alice", 11).retry_after(), None);
    /// ```
    #[inline]
    #[must_use = "a denied request must not be served"]
    pub fn check_cost(&self, key: impl AsRef<[u8]>, cost: u64) -> Decision {
        self.store.apply_one(Verb::Check, key.as_ref(), cost)
    }

    /// Decides as [`check`](Self::check) would, without charging.
    ///
    /// ```
    /// # use slidegate::{Limiter, Quota};
    /// let limiter = Limiter::new(Quota::per_minute(10));
    /// assert_eq!(limiter.peek("alice").remaining(), 10);
    /// assert_eq!(limiter.peek("alice").remaining(), 10);
    /// ```
    pub fn peek(&self, key: impl AsRef<[u8]>) -> Decision {
        self.peek_cost(key, 1)
    }

    /// Decides as [`check_cost`](Self::check_cost) would, without charging.
    pub fn peek_cost(&self, key: impl AsRef<[u8]>, cost: u64) -> Decision {
        self.store.apply_one(Verb::Peek, key.as_ref(), cost)
    }

    /// Refunds `cost`, at most what was charged and still counts; [`Decision::cost`] says how
    /// much that was.
    ///
    /// Under `sliding-log` the oldest charges are refunded first: a log does not know which
    /// charge is meant, and so no window can come to hold more than the limit.
    ///
    /// ```
    /// # use slidegate::{Limiter, Quota};
    /// let limiter = Limiter::new(Quota::per_minute(10));
    /// limiter.check_cost("alice", 4);
    /// let refunded = limiter.refund("alice", 6);
    /// assert_eq!((refunded.cost(), refunded.remaining()), (4, 10));
    /// ```
    pub fn refund(&self, key: impl AsRef<[u8]>, cost: u64) -> Decision {
        let decision = self.store.apply_one(Verb::Refund, key.as_ref(), cost);
        self.queues.wake(|| self.id_of(key.as_ref()));
        decision
    }

    /// Charges `cost` although it may exceed the limit: for costs known only afterwards. What
    /// follows waits it out.
    ///
    /// The decision says allow; its `used` may be above its `limit`, but never above
    /// [`Quota::max_used`]. What of `cost` is above that is not charged; the decision's `cost` says
    /// how much was.
    ///
    /// ```
    /// # use slidegate::{Limiter, Quota};
    /// let limiter = Limiter::new(Quota::per_minute(10));
    /// assert_eq!(limiter.penalize("alice", 25).used(), 25);
    /// assert!(limiter.check("alice").is_denied());
    /// ```
    pub fn penalize(&self, key: impl AsRef<[u8]>, cost: u64) -> Decision {
        self.store.apply_one(Verb::Penalize, key.as_ref(), cost)
    }

    /// Resets a key; returns whether anything counted on it.
    ///
    /// ```
    /// # use slidegate::{Limiter, Quota};
    /// let limiter = Limiter::new(Quota::per_minute(10));
    /// limiter.check("alice");
    /// assert!(limiter.reset("alice"));
    /// assert!(!limiter.reset("alice"));
    /// ```
    pub fn reset(&self, key: impl AsRef<[u8]>) -> bool {
        let counted = self.store.reset_one(key.as_ref());
        self.queues.wake(|| self.id_of(key.as_ref()));
        counted
    }

    /// Puts another quota in force at once. Keys keep what they have used: it counts by the old
    /// quota until now and by the new one from now on. Under another algorithm they start afresh.
    ///
    /// Takes time proportional to the number of keys, while decisions go on.
    ///
    /// ```
    /// # use slidegate::{Limiter, Quota};
    /// let limiter = Limiter::new(Quota::per_minute(10));
    /// limiter.check_cost("alice", 10);
    /// limiter.configure(Quota::per_minute(12));
    /// assert_eq!(limiter.peek("alice").remaining(), 2);
    /// ```
    ///
    /// # Panics
    /// Same as [`new`](Self::new).
    pub fn configure(&self, quota: Quota) {
        assert_rate(&quota);
        self.store.set_quota(quota);
        self.queues.wake_all();
    }

    /// The quota in force.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.store.quota()
    }

    /// How full the store is.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        self.store.stats()
    }

    /// Removes expired keys; see [`MemoryStore::sweep`].
    pub fn sweep(&self, slots: usize) -> usize {
        self.store.sweep(slots)
    }

    fn id_of(&self, key: &[u8]) -> KeyId {
        self.store.secret().id_of(key)
    }
}

/// Under a limit on what is in flight, checks charge nothing, and a limiter makes no others.
fn assert_rate(quota: &Quota) {
    assert!(
        quota.algorithm() != Algorithm::InFlight,
        "invalid quota `{quota}` of a limiter: what is in flight must be reserved, and a limiter only checks; use it in a policy of a `Gate`"
    );
}
