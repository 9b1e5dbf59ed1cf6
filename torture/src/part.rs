//! The parts of the torture: what each asks, under which limits, and what it needs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::judge::Limit;
use crate::target::Ability;

/// The limit of most parts.
pub(crate) const LIMIT: Limit = Limit { cost: 100, window: Duration::from_secs(1) };
/// Where something is to happen within one window.
pub(crate) const LONG: Limit = Limit { cost: 100, window: Duration::from_secs(10) };
/// Where the clock of a store is stepped.
pub(crate) const STEPPED: Limit = Limit { cost: 100, window: Duration::from_secs(2) };
/// Two limits of which the second denies, and two of which the first one does.
pub(crate) const SEVERAL: [[Limit; 2]; 2] = [
    [LIMIT, Limit { cost: 20, window: Duration::from_secs(2) }],
    [Limit { cost: 20, window: Duration::from_secs(1) }, Limit { cost: 30, window: Duration::from_secs(2) }],
];
/// Where many keys use up their limit.
pub(crate) const SMALL: Limit = Limit { cost: 5, window: Duration::from_secs(10) };
/// The parts, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartName {
    Bursts,
    Border,
    Denied,
    Waits,
    Costs,
    Instant,
    Callers,
    Several,
    Flood,
    Drain,
    Restart,
    Kill,
    Instances,
    Step,
    Emptied,
}

impl PartName {
    pub(crate) const ALL: [Self; 15] = [
        Self::Bursts,
        Self::Border,
        Self::Denied,
        Self::Waits,
        Self::Costs,
        Self::Instant,
        Self::Callers,
        Self::Several,
        Self::Flood,
        Self::Drain,
        Self::Restart,
        Self::Kill,
        Self::Instances,
        Self::Step,
        Self::Emptied,
    ];

    /// Its name in the tables.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Bursts => "bursts",
            Self::Border => "border",
            Self::Denied => "denials charged",
            Self::Waits => "wait too long, too short",
            Self::Costs => "costs",
            Self::Instant => "same instant",
            Self::Callers => "64 callers",
            Self::Several => "two limits",
            Self::Flood => "flood",
            Self::Drain => "flood that drains",
            Self::Restart => "restart",
            Self::Kill => "`kill -9`",
            Self::Instances => "3 instances",
            Self::Step => "clock of the store",
            Self::Emptied => "store emptied",
        }
    }

    /// Its name in keys.
    pub(crate) fn word(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// What is asked, for the table's legend.
    pub(crate) fn asks(self) -> &'static str {
        match self {
            Self::Bursts => "bursts of eight times the rate with pauses, at random for four windows",
            Self::Border => {
                "the limit just before and just after the border of an aligned window, and of one that begins with the first call"
            }
            Self::Denied => {
                "the limit, then twice the rate of denied calls for one window, then the limit again"
            }
            Self::Waits => "a call at the time that a denial promised, and calls before it",
            Self::Costs => "as bursts, with costs of 1 to 10",
            Self::Instant => "twice the limit in the same instant, five times",
            Self::Callers => "64 callers of one key, for two windows",
            Self::Several => {
                "two limits of which one denies: 100 in 1 s and 20 in 2 s, then 20 in 1 s and 30 in 2 s; calls that one denies must not be charged to the other"
            }
            Self::Flood => {
                "20 keys at their limit, 10,000 other keys in a store of 1,000, then the 20 again (within 10 s)"
            }
            Self::Drain => {
                "2,000 keys that use up a limit of 5 in a store of 1,000, then all of them again (within 10 s)"
            }
            Self::Restart => "the limit, SIGTERM, a start, the limit again (within 10 s)",
            Self::Kill => "the same with SIGKILL",
            Self::Instances => {
                "three instances on one store, 16 callers each and bursts in turn, for two windows"
            }
            Self::Step => "the store's clock is stepped by 0.6 windows, forwards and back",
            Self::Emptied => {
                "the limit, the store is ended and comes back empty, the limit again (within 10 s)"
            }
        }
    }

    /// The parts that need one instance and a few seconds. They share it.
    pub(crate) fn is_quick(self) -> bool {
        matches!(
            self,
            Self::Bursts
                | Self::Border
                | Self::Denied
                | Self::Waits
                | Self::Costs
                | Self::Instant
                | Self::Callers
        )
    }

    /// The parts that leave the machine to others: they are done at the same time.
    pub(crate) fn is_quiet(self) -> bool {
        self == Self::Several || self.is_quick() && !matches!(self, Self::Instant | Self::Callers)
    }

    /// The parts in which a limiter may lose what it keeps in memory, or its store.
    pub(crate) fn is_fault(self) -> bool {
        matches!(self, Self::Flood | Self::Drain | Self::Restart | Self::Kill | Self::Step | Self::Emptied)
    }

    pub(crate) fn limits(self) -> Vec<Limit> {
        match self {
            Self::Several => SEVERAL[0].to_vec(),
            Self::Flood | Self::Restart | Self::Kill | Self::Emptied => vec![LONG],
            Self::Drain => vec![SMALL],
            Self::Step => vec![STEPPED],
            _ => vec![LIMIT],
        }
    }

    /// What a target must be able to do for it.
    pub(crate) fn needs(self) -> Option<(Ability, &'static str)> {
        match self {
            Self::Waits => Some((Ability::Wait, "a denial says no wait")),
            Self::Costs => Some((Ability::Cost, "every call costs 1")),
            Self::Several => Some((Ability::Several, "a key has one limit")),
            Self::Flood | Self::Drain => Some((Ability::MaxKeys, "the number of keys has no bound")),
            _ => None,
        }
    }
}
