//! The methods of a gate over any store, which return futures.

use std::slice;
use std::sync::PoisonError;
use std::time::Duration;

use super::change::Change;
use super::{Decisions, Extension, Gate, Reserved, Settlement};
use crate::charge::HoldTerms;
use crate::error::Error;
use crate::hold::{HoldOptions, ttl_us};
use crate::policy_reset::{PolicyReset, ResetCursor};
use crate::request::{Cost, Request};
use crate::store::{HoldStore, Store, StoredPolicy};
use crate::ticket::Ticket;
use crate::usage::KeyUse;
use crate::verb::Verb;

/// About so many keys are examined in one step of [`Gate::reset_policy_async`].
const KEYS_PER_STEP: u64 = 1000;

impl<S: Store> Gate<S> {
    /// As [`check`](Self::check).
    pub async fn check_async<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.decide_async(Some(Verb::Check), slice::from_ref(request), None, false).await
    }

    /// As [`check_once`](Self::check_once). In a Redis cluster the request's keys must be in one
    /// slot, as [`RedisOptions::with_hash_tag`](crate::RedisOptions::with_hash_tag) ensures; otherwise this is
    /// a [`check_async`](Self::check_async).
    pub async fn check_once_async<'r>(&self, request: &'r Request<'r>, id: &str) -> Decisions<'r> {
        self.decide_async(Some(Verb::Check), slice::from_ref(request), Some(id), false).await
    }

    /// As [`peek`](Self::peek).
    pub async fn peek_async<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.decide_async(Some(Verb::Peek), slice::from_ref(request), None, false).await
    }

    /// As [`refund`](Self::refund).
    pub async fn refund_async<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.decide_async(Some(Verb::Refund), slice::from_ref(request), None, false).await
    }

    /// As [`penalize`](Self::penalize).
    pub async fn penalize_async<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.decide_async(Some(Verb::Penalize), slice::from_ref(request), None, false).await
    }

    /// As [`apply`](Self::apply).
    pub async fn apply_async<'r>(&self, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.decide_async(None, requests, None, false).await
    }

    /// As [`apply_all`](Self::apply_all).
    pub async fn apply_all_async<'r>(&self, verb: Verb, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.decide_async(Some(verb), requests, None, false).await
    }

    /// As [`reset`](Self::reset).
    ///
    /// # Errors
    /// If the request is [`under`](Request::under) a policy that cannot decide it: nothing is
    /// removed. If a shared store did not reply in time: the keys may or may not be removed.
    pub async fn reset_async(&self, request: &Request<'_>) -> Result<bool, Error> {
        let policies = self.policies.load();
        let plan = policies.plan_of_one(request)?;
        let reset = self.store.reset(&plan.charges).await;
        self.wake_charged(&plan);
        reset
    }

    /// As [`reset_policy`](Self::reset_policy).
    ///
    /// # Errors
    /// If a shared store did not reply in time, or its user may not scan; some keys may be removed.
    pub async fn reset_policy_async(&self, policy: &str) -> Result<u64, Error> {
        let mut next = None;
        loop {
            let reset = self.reset_policy_step_async(policy, next.as_ref(), KEYS_PER_STEP).await?;
            match reset.next {
                Some(cursor) => next = Some(cursor),
                None => return Ok(reset.forgotten),
            }
        }
    }

    /// One step of [`reset_policy_async`](Self::reset_policy_async), which examines about `keys` keys: whole
    /// shards of about 1024 in memory, keys of one node in Redis and then of this process's memory.
    /// Begins without a cursor, and continues with that of the step before, which any instance on a
    /// shared store can do. If its nodes change meanwhile, the scan begins again.
    ///
    /// # Errors
    /// If the cursor belongs to another store, or a shared store did not reply in time, or its user
    /// may not scan. Some keys may be removed, and the step can be repeated.
    pub async fn reset_policy_step_async(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).of(policy);
        let policy = StoredPolicy { name: policy, numbers: &numbers };
        let reset = self.store.reset_policy_step(&policy, from, keys).await;
        self.queues.wake_where(|queue| numbers.contains(&queue.policy));
        reset
    }

    /// As [`inspect`](Self::inspect).
    ///
    /// # Errors
    /// If the request is [`under`](Request::under) a policy that cannot decide it, or a shared
    /// store did not reply or holds a value that slidegate did not write.
    pub async fn inspect_async(&self, request: &Request<'_>) -> Result<Vec<KeyUse>, Error> {
        let policies = self.policies.load_full();
        let plan = policies.plan_of_one(request)?;
        let mut found = self.store.inspect(&plan.charges).await?;
        plan.lay_blocks_over(&mut found, self.store.wall_time());
        Ok(plan.uses(found))
    }
}

impl<S: HoldStore> Gate<S> {
    /// As [`reserve`](Gate::reserve).
    pub async fn reserve_async<'r>(&self, request: &'r Request<'r>) -> Reserved<'r> {
        let terms = HoldTerms::new(None);
        self.reserve_under(slice::from_ref(request), terms, None).await
    }

    /// As [`reserve_for`](Gate::reserve_for).
    ///
    /// # Errors
    /// If the time is out of range.
    pub async fn reserve_for_async<'r>(
        &self,
        request: &'r Request<'r>,
        ttl: Duration,
    ) -> Result<Reserved<'r>, Error> {
        let options = HoldOptions { ttl: Some(ttl), ..HoldOptions::default() };
        self.reserve_all_async(slice::from_ref(request), options).await
    }

    /// As [`reserve_all`](Gate::reserve_all).
    ///
    /// # Errors
    /// If the time is out of range.
    pub async fn reserve_all_async<'r>(
        &self,
        requests: &'r [Request<'r>],
        options: HoldOptions<'_>,
    ) -> Result<Reserved<'r>, Error> {
        let HoldOptions { ttl, id } = options;
        let ttl_us = ttl.map(|ttl| ttl_us(ttl).map_err(Error::ticket)).transpose()?;
        Ok(self.reserve_under(requests, HoldTerms::new(ttl_us), id).await)
    }

    /// As [`settle`](Gate::settle).
    ///
    /// # Errors
    /// If the cost has a name that no policy counts, and not the one that a policy
    /// [counts](crate::Counts::Named): nothing is settled. If a shared store did not reply: the
    /// reservation may or may not be settled, and repeating the call is safe.
    pub async fn settle_async<'c>(
        &self,
        ticket: &Ticket,
        cost: impl Into<Cost<'c>> + Send,
    ) -> Result<Settlement, Error> {
        self.change_holds(ticket, Change::Settle { cost: cost.into(), is_final: true }).await
    }

    /// As [`settle_so_far`](Gate::settle_so_far).
    ///
    /// # Errors
    /// As [`settle_async`](Self::settle_async).
    pub async fn settle_so_far_async<'c>(
        &self,
        ticket: &Ticket,
        cost: impl Into<Cost<'c>> + Send,
    ) -> Result<Settlement, Error> {
        self.change_holds(ticket, Change::Settle { cost: cost.into(), is_final: false }).await
    }

    /// As [`extend`](Gate::extend).
    ///
    /// # Errors
    /// As [`settle_async`](Self::settle_async).
    pub async fn extend_async(&self, ticket: &Ticket) -> Result<Settlement, Error> {
        self.change_holds(ticket, Change::Extend { cost: None, ttl_us: None }).await
    }

    /// As [`extend_with`](Gate::extend_with).
    ///
    /// # Errors
    /// As [`settle_async`](Self::settle_async).
    pub async fn extend_with_async(
        &self,
        ticket: &Ticket,
        extension: Extension<'_>,
    ) -> Result<Settlement, Error> {
        let Extension { hold: cost, ttl_us } = extension;
        self.change_holds(ticket, Change::Extend { cost, ttl_us }).await
    }

    /// As [`cancel`](Gate::cancel).
    ///
    /// # Errors
    /// As [`settle_async`](Self::settle_async).
    pub async fn cancel_async(&self, ticket: &Ticket) -> Result<Settlement, Error> {
        self.change_holds(ticket, Change::Cancel).await
    }
}
