//! Keys: one partition of one policy, and the 128-bit identity by which stores know it.
//!
//! Keys are any bytes of any length, and different keys never collide. A short key is stored as it
//! is. A long key, or one with several parts, is stored as a keyed hash of 120 bits: the
//! probability that any two of 10^12 keys collide is 10^-12.

use std::collections::hash_map::RandomState;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use siphasher::sip128::{Hasher128, SipHasher13, SipHasher24};
use smallvec::SmallVec;

use crate::fold::{Fold, Folded};
use crate::lease::LeaseLength;
use crate::network::{Grouped, Ipv6Prefix, group};
use crate::request::{Request, Value};

/// The keys of a policy.
#[derive(Debug, Clone)]
pub struct KeySpace {
    /// The policy's name.
    pub policy: String,
    /// The attributes that form a key.
    pub scope: Vec<String>,
    /// The folds of the values, in order. Empty if none is folded.
    pub folds: Box<[Fold]>,
    /// How many bits of an IPv6 address count.
    pub ipv6_prefix: Ipv6Prefix,
    /// Whether usage is counted in millionths of a unit. It is kept apart from usage in units.
    pub in_millionths: bool,
    /// How long instances may lease slices of a key's limit.
    pub lease: Option<LeaseLength>,
}

/// The values of a policy's scope in one request, by which the policy counts.
///
/// Its text, as in responses and logs, is the values joined by commas. Within a value, commas,
/// percent signs, control characters and bytes that are not UTF-8 are percent-encoded, so that
/// different keys have different texts. The key of a policy without a scope is `*`, and so is an attribute that
/// the request lacks.
#[derive(Debug, Clone, Copy)]
pub struct Key<'r> {
    /// Its key space.
    #[doc(hidden)]
    pub space: &'r KeySpace,
    #[doc(hidden)]
    pub request: &'r Request<'r>,
}

impl<'r> Key<'r> {
    /// The values in the order of the scope, `None` for what the request lacks. Addresses are truncated to
    /// their group.
    #[inline]
    pub fn parts(&self) -> impl Iterator<Item = Option<Folded<'r>>> {
        self.space.scope.iter().enumerate().map(|(at, attribute)| {
            Some(match self.request.value(attribute)? {
                Value::Address(ip) => Folded::Same(Value::Address(group(ip, self.space.ipv6_prefix))),
                bytes @ Value::Bytes(_) => self.fold_at(at).of(bytes),
            })
        })
    }

    #[inline]
    fn fold_at(&self, at: usize) -> Fold {
        self.space.folds.get(at).copied().unwrap_or_default()
    }

    /// The value of an attribute as the key has it, or else as the request has it.
    pub fn value(&self, attribute: &str) -> Option<Folded<'r>> {
        let at = self.space.scope.iter().position(|one| one == attribute);
        let fold = at.map_or(Fold::NONE, |at| self.fold_at(at));
        self.request.value(attribute).map(|value| fold.of(value))
    }

    /// The first attribute of the scope that the request lacks.
    ///
    /// ```
    /// use slidegate::{OnMissing, Policy, Quota, Request};
    ///
    /// let policy = Policy::new("per-user", Quota::per_minute(5))?.with_scope(["user"]).with_on_missing(OnMissing::OneKey);
    /// let request = Request::new();
    /// let key = policy.key_of(&request).unwrap();
    /// assert_eq!((key.missing(), key.to_string()), (Some("user"), "*".to_owned()));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn missing(&self) -> Option<&'r str> {
        let scope = self.space.scope.iter().map(String::as_str);
        scope.into_iter().find(|attribute| self.request.value(attribute).is_none())
    }

    /// Bytes that are unique within the policy, for stores that outlive this process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.canonical().to_vec()
    }

    /// An unambiguous encoding of this key, on the stack for keys of usual length.
    pub fn canonical(&self) -> SmallVec<[u8; 64]> {
        let mut out = SmallVec::new();
        self.parts().for_each(|part| write_canonical(part.as_ref(), |bytes| out.extend_from_slice(bytes)));
        out
    }

    /// Its identity in tables of this process.
    pub fn id(&self, secret: &HashSeed) -> KeyId {
        let only = if let [attribute] = &*self.space.scope { self.request.value(attribute) } else { None };
        match only {
            Some(value) if self.space.folds.is_empty() => secret.id_of_value(value, self.space.ipv6_prefix),
            Some(value) => secret.id_of_value(self.fold_at(0).of(value).value(), self.space.ipv6_prefix),
            None => secret.hashed(self.parts()),
        }
    }
}

/// Passes an unambiguous encoding of this part to `sink`: its kind, length and content.
pub(crate) fn write_canonical(part: Option<&Folded<'_>>, mut sink: impl FnMut(&[u8])) {
    let mut write = |kind: u8, bytes: &[u8]| {
        sink(&[kind]);
        sink(&bytes.len().to_le_bytes());
        sink(bytes);
    };
    match part.map(Folded::value) {
        Some(Value::Bytes(bytes)) => write(b'b', bytes),
        Some(Value::Address(IpAddr::V4(ip))) => write(b'4', &ip.octets()),
        Some(Value::Address(IpAddr::V6(ip))) => write(b'6', &ip.octets()),
        None => write(b'-', b""),
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.parts().eq(other.parts())
    }
}

impl Eq for Key<'_> {}

/// Equal keys hash alike: for tables that identify keys by hash, without a copy.
impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().for_each(|part| write_canonical(part.as_ref(), |bytes| state.write(bytes)));
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.space.scope.is_empty() {
            return f.write_char('*');
        }
        for (at, part) in self.parts().enumerate() {
            if at > 0 {
                f.write_char(',')?;
            }
            match part.as_ref().map(Folded::value) {
                None => f.write_char('*')?,
                Some(Value::Bytes(bytes)) => Escaped(bytes).fmt(f)?,
                Some(Value::Address(ip)) => write!(f, "{}", Grouped(ip, self.space.ipv6_prefix))?,
            }
        }
        Ok(())
    }
}

/// A value in the text of a key.
struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == b"*" { f.write_str("%2A") } else { write_escaped(f, self.0) }
    }
}

fn write_escaped(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    // Fast path: nearly every key is plain ASCII, and every response contains it.
    let is_plain = |b: &u8| matches!(b, b' '..=b'~') && !matches!(b, b',' | b'%');
    if bytes.iter().all(is_plain)
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        return f.write_str(text);
    }
    let escape =
        |f: &mut fmt::Formatter<'_>, bytes: &[u8]| bytes.iter().try_for_each(|b| write!(f, "%{b:02X}"));
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if matches!(c, ',' | '%') || c.is_control() {
                escape(f, c.encode_utf8(&mut [0; 4]).as_bytes())?;
            } else {
                f.write_char(c)?;
            }
        }
        escape(f, chunk.invalid())?;
    }
    Ok(())
}

/// A store's name for a key in a ticket.
pub type TicketKeyBytes = SmallVec<[u8; 32]>;

/// The identity of a key in a table: 15 bytes and a tag in the last byte, which defines their
/// meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct KeyId(pub [u64; 2]);

impl KeyId {
    /// Keys up to this many bytes are stored as they are.
    const INLINE: usize = 15;
    /// Tags 1 to 16 are the length of an inline key plus 1.
    const V4: u8 = 0x20;
    const V6: u8 = 0x21;
    const HASHED: u8 = 0x22;
    /// The id of malformed bytes.
    const NOBODY: u8 = 0x23;

    const BYTES: usize = 16;

    /// The identity in a ticket's encoding.
    pub fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.0[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.0[1].to_le_bytes());
        bytes
    }

    /// The identity of these bytes. Bytes of another length get one that no key has.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let word = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes.get(from..from + 8)?);
            Some(u64::from_le_bytes(word))
        };
        word(0).zip(word(8)).map_or(Self([0, Self::tag(Self::NOBODY)]), |(low, high)| Self([low, high]))
    }

    /// The text of its key, as far as the key is stored as it is: a short value or an address.
    pub(crate) fn text(self) -> Option<String> {
        let mut bytes = self.bytes();
        match std::mem::take(&mut bytes[Self::INLINE]) {
            len @ 1..=16 => Some(Escaped(&bytes[..usize::from(len) - 1]).to_string()),
            Self::V4 => Some(Ipv4Addr::new(bytes[3], bytes[2], bytes[1], bytes[0]).to_string()),
            Self::V6 => Some(Ipv6Addr::from(bytes).to_string()),
            _ => None,
        }
    }

    #[inline]
    fn of_v4(ip: Ipv4Addr) -> Self {
        Self([u64::from(ip.to_bits()), Self::tag(Self::V4)])
    }

    const fn tag(tag: u8) -> u64 {
        (tag as u64) << 56
    }
}

/// Random numbers of one store, so that outsiders cannot choose keys that collide or share a slot.
/// `Debug` prints `***`.
#[derive(Clone)]
pub struct HashSeed {
    sip: [u64; 2],
    place: [u64; 2],
}

impl fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl HashSeed {
    /// An unpredictable seed.
    pub fn random() -> Self {
        if cfg!(loom) {
            // The model checker replays one run in several orders, so a key must be in the same
            // shard every time.
            return Self { sip: [1, 2], place: [0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7344] };
        }
        // `RandomState` is the only source of randomness in the standard library.
        let word = |n: u64| {
            let mut hasher = RandomState::new().build_hasher();
            hasher.write_u64(n);
            hasher.finish()
        };
        Self { sip: [word(0), word(1)], place: [word(2), word(3)] }
    }

    /// The seed of key identities, as bytes.
    pub fn identity_seed(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.sip[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.sip[1].to_le_bytes());
        bytes
    }

    /// A seed with these key identities. Shards and slots are random.
    pub fn with_identity_seed(bytes: [u8; 16]) -> Self {
        let bits = u128::from_le_bytes(bytes);
        #[allow(clippy::cast_possible_truncation)] // the two halves
        let sip = [bits as u64, (bits >> 64) as u64];
        Self { sip, ..Self::random() }
    }

    /// The identity of a key of one value, as it is in a request.
    #[inline(always)] // copies of an address in memory cost more than the rest
    pub fn id_of_value(&self, value: Value<'_>, ipv6_prefix: Ipv6Prefix) -> KeyId {
        match value {
            Value::Bytes(bytes) => self.id_of(bytes),
            Value::Address(IpAddr::V4(ip)) => KeyId::of_v4(ip),
            Value::Address(IpAddr::V6(ip)) => self.id_of_v6(ip, ipv6_prefix),
        }
    }

    fn id_of_v6(&self, ip: Ipv6Addr, ipv6_prefix: Ipv6Prefix) -> KeyId {
        match group(IpAddr::V6(ip), ipv6_prefix) {
            IpAddr::V4(ip) => KeyId::of_v4(ip),
            IpAddr::V6(ip) if ip.to_bits() & 0xFF == 0 => {
                // The last byte is free for the tag, as in every group up to /120.
                let bits = ip.to_bits().swap_bytes();
                #[allow(clippy::cast_possible_truncation)] // the two halves
                let halves = [bits as u64, (bits >> 64) as u64];
                KeyId([halves[0], halves[1] | KeyId::tag(KeyId::V6)])
            }
            long @ IpAddr::V6(_) => self.hashed([Some(Folded::Same(Value::Address(long)))]),
        }
    }

    /// The identity of a key of one value, as bytes.
    #[inline]
    pub fn id_of(&self, key: &[u8]) -> KeyId {
        // Two overlapping loads, because a copy of variable length costs more than the rest of the
        // lookup.
        let word = |from: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&key[from..from + 8]);
            u64::from_le_bytes(bytes)
        };
        let half = |from: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&key[from..from + 4]);
            u64::from(u32::from_le_bytes(bytes))
        };
        let len = key.len();
        let (low, high) = match len {
            0 => (0, 0),
            1..=3 => {
                let byte = |at: usize| u64::from(key[at]) << (8 * at);
                (byte(0) | byte(len / 2) | byte(len - 1), 0)
            }
            4..=7 => (half(0) | half(len - 4) << (8 * (len - 4)), 0),
            8 => (word(0), 0),
            9..=KeyId::INLINE => (word(0), word(len - 8) >> (8 * (16 - len))),
            _ => return self.hashed([Some(Folded::Same(Value::Bytes(key)))]),
        };
        KeyId([low, high | (len as u64 + 1) << 56])
    }

    /// SipHash-1-3 with 128 bits of output (Aumasson and Bernstein, 2012); the tag replaces 8 of
    /// them.
    fn hashed<'v>(&self, parts: impl IntoIterator<Item = Option<Folded<'v>>>) -> KeyId {
        let mut hasher = SipHasher13::new_with_keys(self.sip[0], self.sip[1]);
        parts.into_iter().for_each(|part| write_canonical(part.as_ref(), |bytes| hasher.write(bytes)));
        let hash = hasher.finish128();
        KeyId([hash.h1, hash.h2 >> 8 | KeyId::tag(KeyId::HASHED)])
    }

    /// A secret key for another purpose. It reveals nothing about identities.
    pub fn key_for(&self, purpose: &[u8]) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_keys(self.sip[0], self.sip[1]);
        hasher.write(purpose);
        hasher.finish128().as_bytes()
    }

    /// A 128-bit hash of a value.
    pub fn hash_of(&self, value: &impl Hash) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(self.sip[0], self.sip[1]);
        value.hash(&mut hasher);
        hasher.finish128().as_u128()
    }

    /// A hash of the key and the policy for its position in a table: the upper bits select a shard,
    /// the lower bits a slot.
    #[inline]
    pub fn place_of(&self, id: KeyId, policy: u32) -> u64 {
        let folded = fold(id.0[0] ^ self.place[0], id.0[1] ^ self.place[1] ^ u64::from(policy) << 24);
        fold(folded ^ self.place[1], 0x9E37_79B9_7F4A_7C15)
    }
}

/// Multiplies two numbers and combines the halves of the product with xor.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    #[allow(clippy::cast_possible_truncation)] // the two halves
    let halves = [product as u64, (product >> 64) as u64];
    halves[0] ^ halves[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identity and text of the key with these values.
    fn key<'v, V: Into<Value<'v>> + Copy>(
        values: &[V],
        ipv6_prefix: Ipv6Prefix,
        secret: &HashSeed,
    ) -> (KeyId, String) {
        let scope: Vec<_> = (0..values.len()).map(|n| n.to_string()).collect();
        let values = values.iter().map(|value| -> Value<'v> { (*value).into() });
        let request = scope.iter().zip(values).fold(Request::new(), |r, (name, value)| r.with(name, value));
        let space = KeySpace {
            policy: "p".to_owned(),
            scope: scope.clone(),
            folds: Box::default(),
            ipv6_prefix,
            in_millionths: false,
            lease: None,
        };
        let key = Key { space: &space, request: &request };
        (key.id(secret), key.to_string())
    }

    fn text(parts: &[&str], secret: &HashSeed) -> (KeyId, String) {
        key(parts, Ipv6Prefix::default(), secret)
    }

    /// The fast loads must read every byte of a short key: a byte that is not read merges 256
    /// users.
    #[test]
    fn every_byte_of_a_short_key_counts() {
        let secret = HashSeed::random();
        for len in 1..40 {
            let base = vec![b'k'; len];
            let id = secret.id_of(&base);
            for at in 0..len {
                let mut other = base.clone();
                other[at] ^= 1;
                assert_ne!(secret.id_of(&other), id, "byte {at} of {len}");
            }
        }
    }

    /// A key of one part is the same key for a `Limiter` and for a policy.
    #[test]
    fn one_part_is_the_key_itself() {
        let secret = HashSeed::random();
        for value in ["", "alice", "a-rather-long-name-of-a-user"] {
            assert_eq!(text(&[value], &secret).0, secret.id_of(value.as_bytes()));
        }
    }

    /// An IPv6 customer has 2^72 addresses; counting each would limit nobody.
    #[test]
    fn addresses_are_counted_by_group_and_written_with_its_prefix() {
        let secret = HashSeed::random();
        let address = |text: &str, prefix| key(&[text.parse::<IpAddr>().unwrap()], prefix, &secret);
        let default = Ipv6Prefix::default();
        let (one, name) = address("2001:db8:1234:5678::1", default);
        assert_eq!(name, "2001:db8:1234:5600::/56");
        assert_eq!(one, address("2001:db8:1234:56ff::2", default).0);
        let (whole, name) = address("2001:db8:1234:5678::1", Ipv6Prefix::OFF);
        assert_eq!(name, "2001:db8:1234:5678::1");
        assert_ne!(whole, address("2001:db8:1234:5678::2", Ipv6Prefix::OFF).0);
        assert_eq!(address("::ffff:1.2.3.4", default), address("1.2.3.4", default));
        assert_ne!(address("1.2.3.4", default).0, text(&["\x04\x03\x02\x01"], &secret).0);
    }

    /// Logs and responses must not contain control characters that a client chose.
    #[test]
    fn the_text_of_a_key_is_printable_and_unambiguous() {
        let secret = HashSeed::random();
        let name = |parts: &[&str]| text(parts, &secret).1;
        assert_eq!(name(&["alice"]), "alice");
        assert_eq!(name(&["zoë", "/login"]), "zoë,/login");
        assert_eq!(name(&["a,b\n%"]), "a%2Cb%0A%25");
        assert_eq!(name(&[]), "*");
        assert_eq!(key(&[&b"\xff\xfe"[..]], Ipv6Prefix::default(), &secret).1, "%FF%FE");
    }
}
