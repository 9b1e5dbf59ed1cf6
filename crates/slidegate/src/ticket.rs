//! Tickets settle reservations. A ticket is opaque text that any instance can read, so the instance
//! that settles needs no state of the reservation.
//!
//! A ticket is sealed as a whole: its store accepts only tickets that it, or an instance that
//! shares its secret, wrote. So nothing in a ticket needs further authorization.

use std::hash::Hasher;
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, iter};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use siphasher::sip128::{Hasher128, SipHasher24};
use smallvec::SmallVec;

use crate::error::Error;
use crate::hold::Unsettled;
use crate::secret::Secret;
use crate::time::{Timestamp, micros};

/// The handle of a reservation, to settle, extend or cancel it with
/// [`Gate::settle`](crate::Gate::settle) and related calls.
///
/// Its text is opaque and at most [`MAX_TEXT`](Self::MAX_TEXT) bytes, and mostly below 200. It holds
/// the names of the policies, and their keys as the store knows them, under a seal of the store: one
/// that is made up or changed is [`Unknown`](crate::reserve::HoldStatus::Unknown). It grants nothing but to
/// end or extend its own reservation. A ticket that is dropped is charged by its time, see
/// [`Unsettled`]. Of a request that no policy limits, it holds nothing, and settling it does nothing.
///
/// ```
/// use slidegate::{Gate, Policy, PolicySet, Quota, Request, reserve::Ticket};
///
/// let tokens = Policy::new("tokens", Quota::per_minute(1000))?.with_scope(["user"]);
/// let gate = Gate::new(PolicySet::new([tokens])?);
/// let request = Request::new().with("user", "alice").with_cost(400);
/// let text = gate.reserve(&request).into_ticket().unwrap().to_string();
/// // Another task, or another call of the same client.
/// let ticket: Ticket = text.parse()?;
/// gate.settle(&ticket, 120)?;
/// assert_eq!(gate.peek(&request).strictest().unwrap().decision().used(), 120);
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "unsettled, it is charged in full when its time is over"]
pub struct Ticket {
    /// The encoded text: version, seal, incarnation, id, time, [`Self::ttl_us`], and the keys.
    /// Stored as written, so that a ticket of one policy needs no heap memory.
    bytes: SmallVec<[u8; INLINE]>,
    queues: QueueHints,
}

/// A ticket's hold under one policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TicketHold<'t> {
    /// The policy's name.
    pub policy: &'t str,
    /// Cost that is held and not settled.
    pub held: u64,
    /// Its end unless settled or extended before, by the store's clock.
    pub until: Timestamp,
}

/// One key of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TicketKey<'t> {
    pub policy: &'t str,
    /// The store's name for the key: at most 255 bytes.
    pub key: &'t [u8],
    /// Whether its amounts are millionths of a unit.
    pub in_millionths: bool,
    /// Total held or charged.
    pub amount: u64,
    pub part: TicketPart,
}

/// The place of a key in a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TicketPlace {
    /// Its position among the keys.
    nth: usize,
    /// Its first byte.
    from: usize,
}

/// Hashes of the queues that wait for the keys, in key order, for a ticket settled by the process
/// that made it. Not part of the text, so tickets that differ only in this are equal.
#[derive(Debug, Clone, Default)]
struct QueueHints(SmallVec<[u64; 2]>);

impl PartialEq for QueueHints {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for QueueHints {}

/// How the reservation counts on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketPart {
    /// Cost is held on it.
    Held {
        /// Applies if the hold expires unsettled.
        unsettled: Unsettled,
        /// Its end, as a date.
        until: Timestamp,
        /// How long it lasts.
        ttl_us: u64,
        /// The largest settled cost so far.
        settled: u64,
    },
    /// Charged at once; refunded if the reservation is cancelled.
    Charged,
}

/// The secret by which a store recognizes its tickets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketSecret {
    /// The key of the seals. Random or configured, and never a fixed one.
    pub key: Secret<[u8; 16]>,
    /// The incarnation of the store's data: it changes after a shared store lost its data, and with
    /// it the reservations. Always 0 in memory, where a new secret has the same effect.
    pub incarnation: u64,
}

/// The first byte of every ticket.
const VERSION: u8 = 2;
/// Maximum number of keys when reading a ticket: more than any request has policies.
const MAX_KEYS: usize = 255;
/// Where the seal begins, and where it ends.
const SEAL: usize = 1;
const SEALED: usize = SEAL + 16;
/// Where the incarnation, the id and the time begin.
const INCARNATION: usize = SEALED;
const ID: usize = INCARNATION + 8;
const MADE: usize = ID + 8;
/// Bytes before the first key.
const HEADER: usize = MADE + 8 + TTL;
/// Bytes of a time to live.
const TTL: usize = 5;
/// Bytes of a hold's end, relative to the ticket's creation.
const UNTIL: usize = 7;
/// Added to the first byte of a key that counts millionths.
const MILLIONTHS: u8 = 4;
/// Bytes of a key's hold.
const HELD: usize = 1 + UNTIL + TTL + 8;
/// Inline capacity: enough for a ticket of one policy.
const INLINE: usize = 128;

impl Ticket {
    /// Longest text that is read: some 60 policies with names and keys of usual length.
    pub const MAX_TEXT: usize = 4096;

    /// A ticket without keys and without a [seal](Self::seal). `made` is a date, `id` that of its
    /// holds.
    pub fn new(id: u64, made: Timestamp) -> Self {
        let mut bytes = SmallVec::new();
        bytes.push(VERSION);
        bytes.extend_from_slice(&[0; ID - SEAL]);
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&made.as_micros().to_le_bytes());
        bytes.extend_from_slice(&[0; TTL]);
        Self { bytes, queues: QueueHints::default() }
    }

    /// Adds a key.
    pub fn push(&mut self, key: &TicketKey<'_>) {
        let mut bytes = [0; HELD];
        let length = key.part.write(self.made(), &mut bytes);
        bytes[0] |= if key.in_millionths { MILLIONTHS } else { 0 };
        self.bytes.reserve(length + 8 + 2 + key.policy.len() + key.key.len());
        self.bytes.extend_from_slice(&bytes[..length]);
        self.bytes.extend_from_slice(&key.amount.to_le_bytes());
        for part in [key.policy.as_bytes(), key.key] {
            // Both are at most a hundred bytes.
            self.bytes.push(u8::try_from(part.len()).unwrap_or(u8::MAX));
            self.bytes.extend_from_slice(part);
        }
        if let TicketPart::Held { ttl_us, .. } = key.part
            && (self.ttl_us() == 0 || ttl_us < self.ttl_us())
        {
            self.bytes[HEADER - TTL..HEADER].copy_from_slice(&ttl_us.to_le_bytes()[..TTL]);
        }
    }

    /// Seals its current content. The first seal stores the store's incarnation.
    pub fn seal(&mut self, secret: &TicketSecret) {
        if self.bytes[SEAL..SEALED] == [0; SEALED - SEAL] {
            self.bytes[INCARNATION..ID].copy_from_slice(&secret.incarnation.to_le_bytes());
        }
        let seal = self.seal_by(secret);
        self.bytes[SEAL..SEALED].copy_from_slice(seal.expose());
    }

    /// Whether it was sealed with this secret and not changed since. Takes constant time.
    pub fn is_sealed_by(&self, secret: &TicketSecret) -> bool {
        let mut seal = [0; SEALED - SEAL];
        seal.copy_from_slice(&self.bytes[SEAL..SEALED]);
        self.seal_by(secret) == Secret::new(seal)
    }

    /// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012) over all bytes but the seal.
    fn seal_by(&self, secret: &TicketSecret) -> Secret<[u8; SEALED - SEAL]> {
        let mut hasher = SipHasher24::new_with_key(secret.key.expose());
        hasher.write(&self.bytes[..SEAL]);
        hasher.write(&self.bytes[SEALED..]);
        Secret::new(hasher.finish128().as_bytes())
    }

    /// The [incarnation](TicketSecret::incarnation) of the store when it was made.
    pub fn incarnation(&self) -> u64 {
        number(&self.bytes[INCARNATION..ID])
    }

    /// Records the queue of the key added last. Either all keys have one or none.
    pub fn push_queue(&mut self, queue: u64) {
        self.queues.0.push(queue);
    }

    /// The queue of a key, if this process made the ticket.
    pub fn queue(&self, place: TicketPlace) -> Option<u64> {
        self.queues.0.get(place.nth).copied()
    }

    /// The id of its holds: see [`OpenHold::id`](crate::store::OpenHold::id).
    #[must_use]
    pub fn id(&self) -> u64 {
        number(&self.bytes[ID..MADE])
    }

    /// The date of its creation.
    pub fn made(&self) -> Timestamp {
        Timestamp::from_micros(number(&self.bytes[MADE..HEADER - TTL]))
    }

    /// How long partial settlements and extensions renew it: the shortest time of its holds.
    fn ttl_us(&self) -> u64 {
        number(&self.bytes[HEADER - TTL..HEADER])
    }

    /// Its keys, in the order of the policies.
    pub fn keys(&self) -> impl Iterator<Item = (TicketPlace, TicketKey<'_>)> {
        let made = self.made();
        let mut rest = &self.bytes[HEADER..];
        let mut nth = 0..;
        iter::from_fn(move || {
            let place = TicketPlace { nth: nth.next()?, from: self.bytes.len() - rest.len() };
            Some((place, TicketKey::read(&mut rest, made)?))
        })
    }

    /// The key at this place.
    pub fn key(&self, place: TicketPlace) -> Option<TicketKey<'_>> {
        TicketKey::read(&mut &self.bytes[place.from..], self.made())
    }

    /// Replaces the amount of a key, and its part by another one of the same kind.
    pub fn set(&mut self, place: TicketPlace, amount: u64, part: TicketPart) {
        let mut bytes = [0; HELD];
        let length = part.write(self.made(), &mut bytes);
        let (to, amount_to) = self.bytes[place.from..].split_at_mut(length);
        bytes[0] |= to[0] & MILLIONTHS;
        to.copy_from_slice(&bytes[..length]);
        amount_to[..8].copy_from_slice(&amount.to_le_bytes());
    }

    /// Its hold under each policy, in policy order, as of this ticket: a settlement returns a
    /// [newer one](crate::reserve::Settlement::ticket).
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("tokens", Quota::per_minute(1000))?])?);
    /// let ticket = gate.reserve(&Request::new().with_cost(400)).into_ticket().unwrap();
    /// let ticket = gate.settle_so_far(&ticket, 150)?.into_ticket();
    /// let hold = ticket.holds().next().unwrap();
    /// assert_eq!((hold.policy, hold.held), ("tokens", 250));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn holds(&self) -> impl Iterator<Item = TicketHold<'_>> {
        self.keys().filter_map(|(_, key)| match key.part {
            TicketPart::Held { until, settled, .. } => {
                Some(TicketHold { policy: key.policy, held: key.amount.saturating_sub(settled), until })
            }
            TicketPart::Charged => None,
        })
    }

    /// The date when its first hold ends, unless it is settled or extended before.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.holds().map(|hold| hold.until).min()
    }

    /// The date when its last hold ends.
    pub fn last_until(&self) -> Option<Timestamp> {
        self.holds().map(|hold| hold.until).max()
    }

    /// The names of the policies under which it holds cost.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.holds().map(|hold| hold.policy)
    }

    /// How often to [extend](crate::Gate::extend) it: every third of its time.
    #[must_use]
    pub fn heartbeat(&self) -> Duration {
        Duration::from_micros(self.ttl_us() / 3)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER || bytes[0] != VERSION {
            return None;
        }
        let ticket = Self { bytes: bytes.into(), queues: QueueHints::default() };
        let (made, mut rest) = (ticket.made(), &bytes[HEADER..]);
        for _ in 0..MAX_KEYS {
            if rest.is_empty() {
                return Some(ticket);
            }
            TicketKey::read(&mut rest, made)?;
        }
        rest.is_empty().then_some(ticket)
    }
}

/// A little-endian number of at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

impl<'t> TicketKey<'t> {
    /// Whether cost is held on it, as opposed to charged at once.
    pub fn is_held(&self) -> bool {
        matches!(self.part, TicketPart::Held { .. })
    }

    /// Reads the next key and moves `bytes` past it. `None` at the end, or if malformed.
    fn read(bytes: &mut &'t [u8], made: Timestamp) -> Option<Self> {
        let mut take = |count: usize| bytes.split_off(..count);
        let first = take(1)?[0];
        let unsettled = match first & !MILLIONTHS {
            0 => None,
            1 => Some(Unsettled::Charge),
            2 => Some(Unsettled::Forget),
            _ => return None,
        };
        let in_millionths = first & MILLIONTHS != 0;
        let part = match unsettled {
            None => TicketPart::Charged,
            Some(unsettled) => {
                let until = made + Duration::from_micros(number(take(UNTIL)?));
                TicketPart::Held { unsettled, until, ttl_us: number(take(TTL)?), settled: number(take(8)?) }
            }
        };
        let amount = number(take(8)?);
        let mut text = || {
            let length = usize::from(take(1)?[0]);
            take(length)
        };
        let policy = str::from_utf8(text()?).ok()?;
        Some(Self { policy, key: text()?, in_millionths, amount, part })
    }
}

impl TicketPart {
    /// Writes the key; its first byte is the kind. Returns the number of bytes.
    fn write(&self, made: Timestamp, to: &mut [u8; HELD]) -> usize {
        match *self {
            Self::Charged => {
                to[0] = 0;
                1
            }
            Self::Held { unsettled, until, ttl_us, settled } => {
                to[0] = if unsettled == Unsettled::Charge { 1 } else { 2 };
                to[1..][..UNTIL].copy_from_slice(&micros(until - made).to_le_bytes()[..UNTIL]);
                to[1 + UNTIL..][..TTL].copy_from_slice(&ttl_us.to_le_bytes()[..TTL]);
                to[1 + UNTIL + TTL..].copy_from_slice(&settled.to_le_bytes());
                HELD
            }
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Ticket");
        out.field("id", &self.id()).field("made", &self.made());
        out.field("keys", &self.keys().map(|(_, key)| key).collect::<Vec<_>>()).finish()
    }
}

/// The opaque text: letters, digits, `-` and `_`.
impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(&self.bytes))
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

    fn key() -> impl Strategy<Value = (String, Vec<u8>, bool, u64, TicketPart)> {
        let part = prop_oneof![
            Just(TicketPart::Charged),
            (any::<bool>(), 0..1u64 << 40, 1..1u64 << 38, any::<u64>()).prop_map(
                |(is_kept, until, ttl_us, settled)| {
                    let unsettled = if is_kept { Unsettled::Charge } else { Unsettled::Forget };
                    TicketPart::Held { unsettled, until: Timestamp::from_micros(until), ttl_us, settled }
                }
            ),
        ];
        ("[a-z]{1,64}", prop::collection::vec(any::<u8>(), 0..100), any::<bool>(), any::<u64>(), part)
    }

    fn as_key(
        (policy, key, in_millionths, amount, part): &(String, Vec<u8>, bool, u64, TicketPart),
    ) -> TicketKey<'_> {
        TicketKey { policy, key, in_millionths: *in_millionths, amount: *amount, part: *part }
    }

    proptest! {
        /// A ticket passes through clients and comes back to another instance.
        #[test]
        fn a_ticket_is_read_as_it_was_written(
            id in any::<u64>(),
            keys in prop::collection::vec(key(), 1..8),
            change in any::<(prop::sample::Index, u64, u64)>(),
        ) {
            let mut ticket = Ticket::new(id, Timestamp::EPOCH);
            let mut expected: Vec<_> = keys.iter().map(as_key).collect();
            expected.iter().for_each(|key| ticket.push(key));
            prop_assert_eq!(Ticket::read(&ticket.bytes), Some(ticket.clone()));
            prop_assert_eq!(ticket.id(), id);
            prop_assert_eq!(ticket.keys().map(|(_, key)| key).collect::<Vec<_>>(), expected.clone());
            let ttls = keys.iter().filter_map(|(.., part)| match part {
                TicketPart::Held { ttl_us, .. } => Some(*ttl_us),
                TicketPart::Charged => None,
            });
            prop_assert_eq!(ticket.heartbeat(), Duration::from_micros(ttls.min().unwrap_or(0) / 3));

            let (changed, amount, settled_now) = (change.0.index(keys.len()), change.1, change.2);
            let place = ticket.keys().nth(changed).unwrap().0;
            let mut key = ticket.key(place).unwrap();
            if let TicketPart::Held { settled, .. } = &mut key.part {
                *settled = settled_now;
            }
            let part = key.part;
            ticket.set(place, amount, part);
            (expected[changed].amount, expected[changed].part) = (amount, part);
            prop_assert_eq!(ticket.keys().map(|(_, key)| key).collect::<Vec<_>>(), expected);
        }

        /// Whoever holds a ticket can change its text. Any change breaks the seal.
        #[test]
        fn a_ticket_with_a_changed_bit_is_not_sealed(
            keys in prop::collection::vec(key(), 0..4),
            bits in prop::collection::vec((any::<prop::sample::Index>(), 0u32..8), 1..4),
        ) {
            let secret = TicketSecret { key: Secret::new([7; 16]), incarnation: 9 };
            let mut ticket = Ticket::new(1, Timestamp::EPOCH);
            keys.iter().for_each(|key| ticket.push(&as_key(key)));
            ticket.seal(&secret);
            prop_assert!(ticket.is_sealed_by(&secret));
            let other = TicketSecret { key: Secret::new([8; 16]), ..secret.clone() };
            prop_assert!(!ticket.is_sealed_by(&other));
            let mut forged = ticket.clone();
            for (at, bit) in bits {
                let at = at.index(ticket.bytes.len());
                forged.bytes[at] ^= 1u8 << bit;
            }
            prop_assert_eq!(forged.is_sealed_by(&secret), forged == ticket);
            ticket.bytes.pop();
            prop_assert!(!ticket.is_sealed_by(&secret));
        }

        /// Clients send anything; a ticket is read without a panic, and as it is or not at all.
        #[test]
        fn any_text_is_a_ticket_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(ticket) = Ticket::read(&bytes) {
                prop_assert_eq!(&ticket.bytes[..], bytes);
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
