//! What clients asked for and what they were answered, in microseconds of Redis's clock.

/// The policies of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Policy {
    /// Tokens in a short window.
    Tokens,
    /// What is in flight.
    Streams,
    /// A limit that is never reached and a window longer than the test: what was charged in all.
    Ledger,
}

impl Policy {
    pub(crate) const ALL: [Self; 3] = [Self::Tokens, Self::Streams, Self::Ledger];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Streams => "streams",
            Self::Ledger => "ledger",
        }
    }
}

/// When a call was sent, and when its reply arrived or its connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) sent: u64,
    pub(crate) replied: u64,
}

/// A reservation that was made or may have been made.
#[derive(Debug, Clone)]
pub(crate) struct Reservation {
    pub(crate) user: usize,
    pub(crate) policies: Vec<Policy>,
    /// What it asked for under the policies that count cost.
    pub(crate) hold: u64,
    pub(crate) ttl: u64,
    pub(crate) made: Span,
    /// When it ends, as the reply says.
    pub(crate) until: Option<u64>,
    /// Whether a reply says that it was made. Otherwise each of its policies may hold or not.
    pub(crate) is_certain: bool,
    /// In the order in which they were sent; each was sent after the reply to the one before.
    pub(crate) changes: Vec<Change>,
    /// When its client used tokens, and how many.
    pub(crate) uses: Vec<(u64, u64)>,
}

/// A call that changes a reservation.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) verb: Verb,
    pub(crate) span: Span,
    /// By policy; without a reply, none.
    pub(crate) outcomes: Outcomes,
}

/// The outcome of a change under each policy.
pub(crate) type Outcomes = Vec<(Policy, Outcome)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Costs are totals since the reservation was made.
    Settle {
        total: u64,
        is_final: bool,
    },
    Extend {
        hold: Option<u64>,
    },
    Cancel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Changed,
    AlreadySettled,
    Expired,
    Denied,
}

impl Outcome {
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "changed" => Self::Changed,
            "already_settled" => Self::AlreadySettled,
            "expired" => Self::Expired,
            "denied" => Self::Denied,
            _ => panic!("unknown outcome {name:?}"),
        }
    }
}

impl Change {
    pub(crate) fn outcome(&self, policy: Policy) -> Option<Outcome> {
        self.outcomes.iter().find(|(of, _)| *of == policy).map(|(_, outcome)| *outcome)
    }

    /// What it does under a policy: what is in flight has no cost.
    pub(crate) fn verb_under(&self, policy: Policy) -> Verb {
        match self.verb {
            _ if policy != Policy::Streams => self.verb,
            Verb::Settle { is_final: false, .. } | Verb::Extend { hold: None } => Verb::Extend { hold: None },
            // Denied if another policy denies it.
            Verb::Extend { hold: Some(_) } => Verb::Extend { hold: Some(1) },
            Verb::Settle { is_final: true, .. } => Verb::Settle { total: 0, is_final: true },
            Verb::Cancel => Verb::Cancel,
        }
    }
}

impl Reservation {
    /// What it holds under a policy at first.
    pub(crate) fn held_by(&self, policy: Policy) -> u64 {
        if policy == Policy::Streams { 1 } else { self.hold }
    }
}
