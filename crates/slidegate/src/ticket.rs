//! Tickets: what settles a reservation. Opaque text that any instance can read, so that settling
//! needs no memory of who reserved.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::error::Error;
use crate::hold::Unsettled;
use crate::time::Timestamp;

/// What a reservation holds, to be settled, extended or cancelled with
/// [`Gate::settle`](crate::Gate::settle) and its kin.
///
/// Its text is opaque and at most [`MAX_TEXT`](Self::MAX_TEXT) bytes, and mostly below 200. It holds
/// the names of the policies, and their keys as the store knows them. It grants nothing but to
/// charge keys that were charged by it. A ticket that is dropped is charged by its time, see
/// [`Unsettled`]. Of a request that no policy limits, it holds nothing, and settling it does nothing.
///
/// ```
/// use slidegate::{Gate, Policy, PolicySet, Quota, Request, Ticket};
///
/// let tokens = Policy::new("tokens", Quota::per_minute(1000))?.scope(["user"]);
/// let gate = Gate::new(PolicySet::new([tokens])?);
/// let request = Request::new().with("user", "alice").cost(400);
/// let text = gate.reserve(&request).into_ticket().unwrap().to_string();
/// // Another task, or another call of the same client.
/// let ticket: Ticket = text.parse()?;
/// gate.settle(&ticket, 120)?;
/// assert_eq!(gate.peek(&request).strictest().unwrap().used(), 120);
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "unsettled, it is charged in full when its time is over"]
pub struct Ticket {
    pub(crate) id: u64,
    /// When it was made, by the date.
    pub(crate) made: Timestamp,
    /// How long parts and extensions renew it for.
    pub(crate) ttl_us: u64,
    pub(crate) keys: Vec<TicketKey>,
}

/// What a ticket holds under one policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TicketHold<'t> {
    /// The policy's name.
    pub policy: &'t str,
    /// Cost that is held and not settled.
    pub held: u64,
    /// When it ends unless it is settled or extended before, by the store's clock.
    pub until: Timestamp,
}

/// One key that a ticket is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TicketKey {
    pub(crate) policy: String,
    /// What the store knows the key by.
    pub(crate) key: Vec<u8>,
    /// Held or charged in all.
    pub(crate) amount: u64,
    pub(crate) part: TicketPart,
    /// The queue of those who wait for the key.
    #[cfg(feature = "wait")]
    pub(crate) queue: QueueHint,
}

/// Which queue waits for a key, for a ticket that is settled by the process that made it. Not part
/// of the text, so tickets that differ in this alone are equal.
#[cfg(feature = "wait")]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueueHint(pub(crate) Option<u64>);

#[cfg(feature = "wait")]
impl PartialEq for QueueHint {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[cfg(feature = "wait")]
impl Eq for QueueHint {}

/// What was done with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TicketPart {
    Held {
        unsettled: Unsettled,
        /// When it ends, by the date.
        until: Timestamp,
        /// How long it lasts.
        ttl_us: u64,
        /// The largest cost so far that it was settled to.
        settled: u64,
    },
    /// Charged at once; given back if the reservation is cancelled.
    Charged,
}

/// The first byte of every ticket.
const VERSION: u8 = 1;
/// Most keys of a ticket that is read: more than the policies of any request.
const MAX_KEYS: usize = 255;

impl Ticket {
    /// Longest text that is read: some 60 policies with names and keys of usual length.
    pub const MAX_TEXT: usize = 4096;

    /// The id of its holds, as [`OpenHold::id`](crate::OpenHold::id) has it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What it holds under each policy, in their order, as far as it knows: a settlement returns a
    /// [newer one](crate::Settlement::ticket).
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("tokens", Quota::per_minute(1000))?])?);
    /// let ticket = gate.reserve(&Request::new().cost(400)).into_ticket().unwrap();
    /// let ticket = gate.settle_so_far(&ticket, 150)?.into_ticket();
    /// let hold = ticket.holds().next().unwrap();
    /// assert_eq!((hold.policy, hold.held), ("tokens", 250));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn holds(&self) -> impl Iterator<Item = TicketHold<'_>> {
        self.keys.iter().filter_map(|key| match key.part {
            TicketPart::Held { until, settled, .. } => {
                Some(TicketHold { policy: &key.policy, held: key.amount.saturating_sub(settled), until })
            }
            TicketPart::Charged => None,
        })
    }

    /// When the first of its holds ends unless it is settled or extended before, by the date.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.held().map(|(_, until)| until).min()
    }

    /// When the last of its holds ends, by the date.
    #[cfg(feature = "redis")]
    pub(crate) fn last_until(&self) -> Option<Timestamp> {
        self.held().map(|(_, until)| until).max()
    }

    /// The names of the policies under which it holds cost.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.held().map(|(key, _)| key.policy.as_str())
    }

    fn held(&self) -> impl Iterator<Item = (&TicketKey, Timestamp)> {
        self.keys.iter().filter_map(|key| match key.part {
            TicketPart::Held { until, .. } => Some((key, until)),
            TicketPart::Charged => None,
        })
    }

    /// How often its holder has to [extend](crate::Gate::extend) it: every third of its time.
    #[must_use]
    pub fn heartbeat(&self) -> Duration {
        Duration::from_micros(self.ttl_us / 3)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        let mut push = |part: &[u8]| bytes.extend_from_slice(part);
        push(&self.id.to_le_bytes());
        push(&self.made.as_micros().to_le_bytes());
        push(&self.ttl_us.to_le_bytes()[..5]);
        for key in &self.keys {
            match key.part {
                TicketPart::Charged => push(&[0]),
                TicketPart::Held { unsettled, until, ttl_us, settled } => {
                    push(&[if unsettled == Unsettled::Charge { 1 } else { 2 }]);
                    push(&(until - self.made).as_micros().to_le_bytes()[..7]);
                    push(&ttl_us.to_le_bytes()[..5]);
                    push(&settled.to_le_bytes());
                }
            }
            push(&key.amount.to_le_bytes());
            for part in [key.policy.as_bytes(), &key.key] {
                // Both are at most a hundred bytes.
                push(&[u8::try_from(part.len()).unwrap_or(u8::MAX)]);
                push(part);
            }
        }
        bytes
    }

    fn read(mut bytes: &[u8]) -> Option<Self> {
        let mut take = |count: usize| bytes.split_off(..count);
        let number = |bytes: &[u8]| {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(all)
        };
        if take(1)? != [VERSION] {
            return None;
        }
        let (id, made) = (number(take(8)?), Timestamp::from_micros(number(take(8)?)));
        let ttl_us = number(take(5)?);
        let mut keys = Vec::new();
        while let Some(kind) = take(1) {
            let unsettled = match kind {
                [0] => None,
                [1] => Some(Unsettled::Charge),
                [2] => Some(Unsettled::Forget),
                _ => return None,
            };
            let part = match unsettled {
                None => TicketPart::Charged,
                Some(unsettled) => {
                    let until = made + Duration::from_micros(number(take(7)?));
                    TicketPart::Held { unsettled, until, ttl_us: number(take(5)?), settled: number(take(8)?) }
                }
            };
            let amount = number(take(8)?);
            let mut text = || {
                let length = usize::from(take(1)?[0]);
                take(length)
            };
            let (policy, key) = (text()?, text()?.to_vec());
            keys.push(TicketKey {
                policy: String::from_utf8(policy.to_vec()).ok()?,
                key,
                amount,
                part,
                #[cfg(feature = "wait")]
                queue: QueueHint::default(),
            });
        }
        (keys.len() <= MAX_KEYS).then_some(Self { id, made, ttl_us, keys })
    }
}

/// The opaque text: letters, digits, `-` and `_`.
impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(self.bytes()))
    }
}

/// Reads the opaque text.
impl FromStr for Ticket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bytes =
            (text.len() <= Self::MAX_TEXT).then(|| BASE64_URL_SAFE_NO_PAD.decode(text).ok()).flatten();
        bytes.and_then(|bytes| Self::read(&bytes)).ok_or_else(|| {
            let shown: String = text.chars().take(20).collect();
            let more = if text.chars().count() > 20 { "..." } else { "" };
            Error::ticket(format!(
                "invalid ticket `{}{more}`: must be the text that a reservation returned, unchanged",
                shown.escape_debug()
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = TicketKey> {
        let part = prop_oneof![
            Just(TicketPart::Charged),
            (any::<bool>(), 0..1u64 << 40, 0..1u64 << 38, any::<u64>()).prop_map(
                |(is_kept, until, ttl_us, settled)| {
                    let unsettled = if is_kept { Unsettled::Charge } else { Unsettled::Forget };
                    TicketPart::Held { unsettled, until: Timestamp::from_micros(until), ttl_us, settled }
                }
            ),
        ];
        ("[a-z]{1,64}", prop::collection::vec(any::<u8>(), 0..100), any::<u64>(), part).prop_map(
            |(policy, key, amount, part)| TicketKey {
                policy,
                key,
                amount,
                part,
                #[cfg(feature = "wait")]
                queue: QueueHint::default(),
            },
        )
    }

    proptest! {
        /// A ticket passes through clients and comes back to another instance.
        #[test]
        fn a_ticket_is_read_as_it_was_written(
            (id, ttl_us) in (any::<u64>(), 0..1u64 << 38),
            keys in prop::collection::vec(key(), 1..8),
        ) {
            let ticket = Ticket { id, made: Timestamp::EPOCH, ttl_us, keys };
            prop_assert_eq!(Ticket::read(&ticket.bytes()), Some(ticket));
        }

        /// Clients send anything; a ticket is read without a panic, and as it is or not at all.
        #[test]
        fn any_text_is_a_ticket_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(ticket) = Ticket::read(&bytes) {
                prop_assert_eq!(ticket.bytes(), bytes);
            }
        }
    }

    /// The text of an error is shown to users, who pass tickets through other programs.
    #[test]
    fn a_text_that_is_no_ticket_is_refused_with_the_reason() {
        let error = |text: &str| text.parse::<Ticket>().unwrap_err().to_string();
        assert_eq!(
            error("abc"),
            "invalid ticket `abc`: must be the text that a reservation returned, unchanged"
        );
        let long = "x".repeat(5000);
        assert_eq!(
            error(&long),
            "invalid ticket `xxxxxxxxxxxxxxxxxxxx...`: must be the text that a reservation returned, unchanged"
        );
    }
}
