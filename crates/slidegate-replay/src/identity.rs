//! Identities of keys: 128-bit hashes, so that a log's lines are decided without copies of keys.
//!
//! A value is hashed once, whatever number of policies, scenarios and values of a sweep count by
//! it; the identity of a key with several values is a hash of theirs. The seed is random, so that
//! nobody who can write to a log knows which values collide: among 10^9 keys, any two do with a
//! probability of 10^-20.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;

use slidegate::{Key, Value};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The identity of a value, or of a key among those of its policy.
pub(crate) type Identity = u128;

/// The same for all batches and stores of this process, which share identities.
static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// No value, and no key.
pub(crate) const NONE: Identity = 0;
/// The identity of every key without values: such a policy has one key.
const NO_VALUES: Identity = 1;
/// Added to the bits of an IPv4 address, which are not hashed.
const V4: Identity = 1 << 96;

/// Of text as it is.
#[inline]
pub(crate) fn of_text(text: &[u8]) -> Identity {
    xxh3_128_with_seed(text, *SEED)
}

/// Of an address that was truncated to its group.
#[inline]
pub(crate) fn of_group(ip: IpAddr) -> Identity {
    match ip {
        IpAddr::V4(ip) => V4 | Identity::from(ip.to_bits()),
        // Another seed, as sixteen bytes of text are not an address.
        IpAddr::V6(ip) => xxh3_128_with_seed(&ip.octets(), !*SEED),
    }
}

/// Of a key, by the identities of its values in the order of the scope.
#[inline]
pub(crate) fn of_values(values: impl IntoIterator<Item = Identity>) -> Identity {
    let mut values = values.into_iter();
    let Some(first) = values.next() else { return NO_VALUES };
    values.fold(first, |known, next| {
        let mut both = [0; 32];
        both[..16].copy_from_slice(&known.to_le_bytes());
        both[16..].copy_from_slice(&next.to_le_bytes());
        xxh3_128_with_seed(&both, *SEED)
    })
}

/// Of a key of a decision: the same as [`of_values`] of its values.
pub(crate) fn of_key(key: &Key<'_>) -> Identity {
    of_values(key.parts().map(|part| match part {
        Value::Address(ip) => of_group(ip),
        Value::Bytes(bytes) => of_text(bytes),
        _ => unreachable!("values are addresses or bytes"),
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Two clients on one counter would deny the one for what the other did.
    #[test]
    fn different_keys_have_different_identities() {
        let v4: IpAddr = "1.2.3.4".parse().unwrap();
        let v6: IpAddr = "2001:db8::".parse().unwrap();
        let IpAddr::V6(octets) = v6 else { unreachable!() };
        let values = [
            of_group(v4),
            of_group(v6),
            of_text(b"1.2.3.4"),
            of_text(&octets.octets()),
            of_text(b""),
            of_text(&[0; 16]),
            of_text(b"a"),
            of_text(b"ab"),
        ];
        let mut keys = vec![of_values([])];
        for (at, one) in values.iter().enumerate() {
            keys.push(of_values([*one]));
            keys.extend(values.iter().map(|other| of_values([*one, *other])));
            keys.push(of_values([*one, values[0], values[at]]));
        }
        let mut seen = HashMap::new();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(seen.insert(key, at), None, "{at}");
        }
    }
}
