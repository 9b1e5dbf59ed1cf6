//! Changes of a reservation: settle, extend, cancel, end.

use crate::cost::Cost;
use crate::hold::{HoldChange, Unsettled};
use crate::policy::Policy;
use crate::quota::Algorithm;
use crate::ticket::{TicketKey, TicketPart};

/// A change to all holds of a ticket.
#[derive(Debug, Clone)]
pub(super) enum Change<'c> {
    Settle {
        cost: Cost<'c>,
        is_final: bool,
    },
    Extend {
        cost: Option<Cost<'c>>,
        ttl_us: Option<u64>,
    },
    Cancel,
    /// Same as the end of its time.
    End,
}

impl Change<'_> {
    /// The change of one key under a policy, if any. A key that was charged at once cannot tell
    /// whether the reservation is open, so it is only asked if no key holds anything.
    pub(super) fn of(&self, key: &TicketKey<'_>, policy: &Policy, has_holds: bool) -> Option<HoldChange> {
        let counts = &policy.options().counts;
        let TicketPart::Held { ttl_us, unsettled, settled, .. } = key.part else {
            return match self {
                Self::Cancel => Some(HoldChange::Refund { cost: key.amount }),
                Self::Settle { is_final: true, .. } | Self::End if !has_holds => {
                    Some(HoldChange::Refund { cost: 0 })
                }
                _ => None,
            };
        };
        let is_in_flight = policy.quota().algorithm() == Algorithm::InFlight;
        Some(match self {
            // The request is in flight until its last settlement.
            Self::Settle { is_final: false, .. } if is_in_flight => {
                HoldChange::Extend { total: None, ttl_us }
            }
            Self::Settle { cost, is_final } => {
                HoldChange::Settle { total: cost.under(counts), ttl_us: (!is_final).then_some(ttl_us) }
            }
            Self::Extend { cost, ttl_us: asked } => {
                let total = cost.as_ref().map(|cost| cost.under(counts));
                HoldChange::Extend { total, ttl_us: asked.unwrap_or(ttl_us) }
            }
            Self::Cancel => HoldChange::Cancel,
            Self::End => {
                let total = if unsettled == Unsettled::Charge { key.amount } else { settled };
                HoldChange::Settle { total, ttl_us: None }
            }
        })
    }
}
