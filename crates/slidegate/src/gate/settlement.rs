//! The outcome of a reservation's change, per key.

use smallvec::SmallVec;

use crate::amount::Amount;
use crate::cost::CostUnit;
use crate::decision::Decision;
use crate::hold::HoldStatus;
use crate::ticket::{Ticket, TicketPlace};

/// The outcome of a reservation's change.
#[derive(Debug, Clone)]
pub struct Settlement {
    pub(super) keys: SmallVec<[ChangedKey; 1]>,
    pub(super) ticket: Ticket,
    /// Set if the outcome is known without the keys: the store knows the reservation under no
    /// policy, or another last change waits for the store.
    of_all: Option<HoldStatus>,
}

/// The outcome on a key of the ticket.
#[derive(Debug, Clone)]
pub(super) struct ChangedKey {
    pub(super) place: TicketPlace,
    pub(super) status: HoldStatus,
    pub(super) decision: Decision,
    pub(super) unit: Option<CostUnit>,
    pub(super) last: Option<SettledCost>,
}

/// The outcome under one policy; derefs to the [`Decision`] on the key after the change.
#[derive(Debug, Clone, Copy)]
pub struct SettledKey<'s> {
    policy: &'s str,
    changed: &'s ChangedKey,
}

/// A reservation's hold under a policy and its final cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledCost {
    /// Total held, including what was settled in parts.
    pub held: Amount,
    /// Final cost.
    pub cost: Amount,
}

impl Settlement {
    pub(super) fn new(ticket: &Ticket) -> Self {
        Self { keys: SmallVec::new(), ticket: ticket.clone(), of_all: None }
    }

    pub(super) fn of_all(ticket: &Ticket, status: HoldStatus) -> Self {
        Self { of_all: Some(status), ..Self::new(ticket) }
    }

    /// The outcome: [`Unknown`](HoldStatus::Unknown) if the store does not know the reservation,
    /// [`Denied`](HoldStatus::Denied) if a key denied an extension, else the status of the first
    /// key that is not [`Changed`](HoldStatus::Changed).
    #[must_use]
    pub fn status(&self) -> HoldStatus {
        if let Some(status) = self.of_all {
            return status;
        }
        let is = |status| self.keys.iter().any(|key| key.status == status);
        let order =
            [HoldStatus::Denied, HoldStatus::Expired, HoldStatus::AlreadySettled, HoldStatus::Unknown];
        order.into_iter().find(|status| is(*status)).unwrap_or(HoldStatus::Changed)
    }

    /// The ticket for the next change: it records what was settled and extended. An older one works
    /// while the hold is open.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// The ticket for the next change.
    pub fn into_ticket(self) -> Ticket {
        self.ticket
    }

    /// The outcome under each policy that held cost, in policy order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SettledKey<'_>> + Clone {
        self.keys.iter().map(|changed| SettledKey {
            policy: self.ticket.key(changed.place).map_or("", |key| key.policy),
            changed,
        })
    }
}

impl<'s> SettledKey<'s> {
    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &'s str {
        self.policy
    }

    /// The outcome of the change.
    #[must_use]
    pub fn status(&self) -> HoldStatus {
        self.changed.status
    }

    /// The estimate and the true cost, after the last settlement of an open reservation. `None`
    /// after other changes, and under policies that limit requests in flight.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request, reserve::SettledCost};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("tokens", Quota::per_minute(1000))?])?);
    /// let ticket = gate.reserve(&Request::new().with_cost(400)).into_ticket().unwrap();
    /// let settled = gate.settle(&ticket, 120)?;
    /// let last = settled.iter().next().unwrap().last();
    /// assert_eq!(last, Some(SettledCost { held: 400.into(), cost: 120.into() }));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn last(&self) -> Option<SettledCost> {
        self.changed.last
    }

    /// The decision on the key after the change.
    #[must_use]
    #[inline]
    pub fn decision(&self) -> &'s Decision {
        &self.changed.decision
    }

    /// The unit of cost, if the policy declares one and is enforced.
    #[must_use]
    #[inline]
    pub fn unit(&self) -> Option<CostUnit> {
        self.changed.unit
    }
}
