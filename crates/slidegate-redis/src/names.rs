//! Names: the Redis keys of policies.
//!
//! `sg1:policy:alice` for short plain ids; otherwise `sg1:policy:#` and 22 characters of a keyed
//! hash. So no id, whatever its bytes, collides with another key or chooses its cluster slot.

use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr};

use redis_once::slot;
use siphasher::sip128::{Hasher128, SipHasher24};
use slidegate::internal::Folded;
use slidegate::{Key, Secret, Value};

/// The maximum length of an id that is not hashed, in bytes.
const MAX_PLAIN_BYTES: usize = 64;
/// Prefix of every key: the project and the layout of the names.
const PREFIX: &str = "sg1:";
/// Prefix of stored first replies. No policy's key has it: an id with a brace is hashed.
const ONCE: &str = "sg1:once:{";
/// Prefix of the usage of keys with holds. No policy's key has it.
const USAGE: &str = "sg1:usage:{";
/// Prefix of the quotas of keys that depend on requests. No policy's key has it.
const QUOTA: &str = "sg1:quota:{";
/// Marks the id of a key whose usage is in millionths of a unit. No id starts with it.
const MILLIONTHS: u8 = b'%';
/// Characters of a hash in a name.
const HASH_CHARS: usize = 22;
/// Starts the first part of the store's internal names. Policy names cannot contain it.
const INTERNAL: char = '~';

/// How keys are named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    /// The key of the hash of ids; the same in every instance.
    pub(crate) secret: Secret<[u8; 16]>,
    /// Whether every id is hashed, not only long ones and those that are not plain.
    pub(crate) always_hashed: bool,
    /// The attribute whose value puts all keys of a request in one cluster slot.
    pub(crate) hash_tag: Option<String>,
}

impl Names {
    /// The hash key if none is configured. It is public.
    pub(crate) const NO_SECRET: Secret<[u8; 16]> = Secret::new([0; 16]);

    /// The hash key of a configured secret.
    pub(crate) fn secret_of(text: &str) -> Secret<[u8; 16]> {
        let mut hasher = SipHasher24::new_with_keys(0, 0);
        hasher.write(text.as_bytes());
        Secret::new(hasher.finish128().as_bytes())
    }

    /// The name of a key. It is unique across all policies.
    pub(crate) fn name(&self, key: &Key<'_>) -> Vec<u8> {
        let policy = &key.space.policy;
        let mut name = Vec::with_capacity(PREFIX.len() + policy.len() + 32);
        name.extend_from_slice(PREFIX.as_bytes());
        if let Some(value) = self.hash_tag.as_deref().and_then(|attribute| key.value(attribute)) {
            // Always hashed: otherwise a client could choose its slot.
            name.push(b'{');
            push_hash(&mut name, self.hash(&canonical_of(value.value())));
            name.extend_from_slice(b"}:");
        }
        name.extend_from_slice(policy.as_bytes());
        name.push(b':');
        if key.space.in_millionths {
            name.push(MILLIONTHS);
        }
        let start = name.len();
        if self.always_hashed && !key.space.scope.is_empty() || !push_plain(&mut name, key) {
            name.truncate(start);
            name.push(b'#');
            push_hash(&mut name, self.hash(&key.canonical()));
        }
        name
    }

    /// The policy and the id in a name, without the hash tag.
    pub(crate) fn untagged(name: &[u8]) -> &[u8] {
        let name = name.strip_prefix(PREFIX.as_bytes()).unwrap_or(name);
        let tagged = name.strip_prefix(b"{").and_then(|tagged| tagged.get(HASH_CHARS..)?.strip_prefix(b"}:"));
        tagged.unwrap_or(name)
    }

    /// The text of the key of a policy with this name. `None` if the name has a hash instead.
    pub(crate) fn text(policy: &str, name: &[u8]) -> Option<String> {
        Self::shown(policy, name).map(|(id, _)| id).filter(|id| !id.starts_with('#'))
    }

    /// The [text](Self::text), or `#` and the hash, and whether usage is in millionths.
    pub(crate) fn shown(policy: &str, name: &[u8]) -> Option<(String, bool)> {
        let id = Self::untagged(name).strip_prefix(policy.as_bytes())?.strip_prefix(b":")?;
        let without_mark = id.strip_prefix(&[MILLIONTHS]);
        let id = std::str::from_utf8(without_mark.unwrap_or(id)).ok()?;
        let values = id.split(',').map(|value| match value.strip_prefix('@') {
            Some(ip) => match u128::from_str_radix(ip, 16).ok().filter(|_| ip.len() == 32) {
                Some(bits) => Ipv6Addr::from_bits(bits).to_string(),
                None => ip.to_owned(),
            },
            None => value.to_owned(),
        });
        Some((values.collect::<Vec<_>>().join(","), without_mark.is_some()))
    }

    /// The name of the usage of a key while it has holds, in the slot of the key.
    pub(crate) fn usage(name: &[u8]) -> Vec<u8> {
        Self::beside(USAGE, name)
    }

    /// The name of the quota under which a key was last charged, in the slot of the key.
    pub(crate) fn last_quota(name: &[u8]) -> Vec<u8> {
        Self::beside(QUOTA, name)
    }

    /// A name in the slot of a key, with this prefix, which opens the tag.
    fn beside(prefix: &str, name: &[u8]) -> Vec<u8> {
        let tag = slot::tag(name);
        // The part after a tag in braces; empty if the whole name is the tag.
        let rest = if tag.len() == name.len() {
            &[][..]
        } else {
            let end = name.iter().position(|byte| *byte == b'}').unwrap_or(name.len() - 1);
            &name[end + 1..]
        };
        [prefix.as_bytes(), tag, b"}", rest].concat()
    }

    /// The key of the seals of tickets, if a secret is configured.
    pub(crate) fn ticket_key(&self) -> Option<Secret<[u8; 16]>> {
        (self.secret != Self::NO_SECRET).then(|| Secret::new(self.hash(b"tickets")))
    }

    /// The key of the stored first reply to an idempotency key, in the slot of the keys. Other keys
    /// or another `what` lead to another name.
    pub(crate) fn once(&self, keys: &[Vec<u8>], what: &[u8], id: &str) -> Vec<u8> {
        let tag = keys.first().map_or(&[][..], |key| slot::tag(key));
        let mut name = [ONCE.as_bytes(), tag, b"}:"].concat();
        let mut request = what.to_vec();
        for part in keys.iter().map(Vec::as_slice).chain([id.as_bytes()]) {
            request.extend_from_slice(&part.len().to_le_bytes());
            request.extend_from_slice(part);
        }
        push_hash(&mut name, self.hash(&request));
        name
    }

    /// The name of one of the keys by which [`examine`](crate::RedisStore::examine) notices lost
    /// history.
    pub(crate) fn canary(number: usize) -> String {
        format!("{PREFIX}{INTERNAL}canary:{number}")
    }

    /// The name of the table of instances.
    pub(crate) fn instances() -> Vec<u8> {
        format!("{PREFIX}{INTERNAL}instances").into_bytes()
    }

    /// The name of the record of an instance, in the slot of the table.
    pub(crate) fn instance(id: &str) -> Vec<u8> {
        format!("{PREFIX}{INTERNAL}instance:{{{PREFIX}{INTERNAL}instances}}:{id}").into_bytes()
    }

    /// The name of a claim on `what`, which it does not reveal.
    pub(crate) fn claim(&self, what: &[u8]) -> Vec<u8> {
        let mut name = format!("{PREFIX}{INTERNAL}claim:").into_bytes();
        push_hash(&mut name, self.hash(&[b"claim", what].concat()));
        name
    }

    /// The name of a key that one run of the [self-test](crate::RedisStore::self_test) uses.
    pub(crate) fn self_test(run: u64, number: usize) -> Vec<u8> {
        format!("{PREFIX}{INTERNAL}test:{run:016x}:{number}").into_bytes()
    }

    /// Whether a key that looks like a policy's is one. First replies look like keys of a policy
    /// named `once`, usage beside holds like those of one named `usage`, and quotas of keys like those of one
    /// named `quota`, but have a brace after it.
    fn is_key(name: &[u8]) -> bool {
        ![ONCE, USAGE, QUOTA].iter().any(|prefix| name.starts_with(prefix.as_bytes()))
    }

    /// A pattern that matches the names of a policy's keys, with and without a hash tag, and some
    /// names of other policies: check each with [`is_of`](Self::is_of).
    pub(crate) fn pattern(policy: &str) -> String {
        format!("{PREFIX}*{policy}:*")
    }

    /// Whether this is the name of a key of the policy.
    pub(crate) fn is_of(policy: &str, name: &[u8]) -> bool {
        if !Self::is_key(name) {
            return false;
        }
        let Some(name) = name.strip_prefix(PREFIX.as_bytes()) else { return false };
        let name = match name.strip_prefix(b"{") {
            Some(tagged) => match tagged.get(HASH_CHARS..HASH_CHARS + 2) {
                Some(b"}:") => &tagged[HASH_CHARS + 2..],
                _ => return false,
            },
            None => name,
        };
        name.strip_prefix(policy.as_bytes()).is_some_and(|rest| rest.starts_with(b":"))
    }

    /// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012).
    fn hash(&self, bytes: &[u8]) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(self.secret.expose());
        hasher.write(bytes);
        hasher.finish128().as_bytes()
    }
}

/// Unique bytes for a value: an address differs from its text.
fn canonical_of(value: Value<'_>) -> Vec<u8> {
    match value {
        Value::Bytes(bytes) => [b"b", bytes].concat(),
        Value::Address(ip) => format!("a{ip}").into_bytes(),
    }
}

/// Writes the values joined by commas if all are plain and short; `*` without a scope, addresses
/// with a leading `@`.
fn push_plain(name: &mut Vec<u8>, key: &Key<'_>) -> bool {
    let start = name.len();
    if key.space.scope.is_empty() {
        name.push(b'*');
        return true;
    }
    for (at, part) in key.parts().enumerate() {
        if at > 0 {
            name.push(b',');
        }
        match part.as_ref().map(Folded::value) {
            Some(Value::Bytes(bytes)) if bytes.iter().copied().all(is_plain) => name.extend_from_slice(bytes),
            Some(Value::Bytes(_)) | None => return false,
            Some(Value::Address(IpAddr::V4(ip))) => name.extend_from_slice(format!("@{ip}").as_bytes()),
            Some(Value::Address(IpAddr::V6(ip))) => {
                name.extend_from_slice(format!("@{:032x}", ip.to_bits()).as_bytes());
            }
        }
        if name.len() - start > MAX_PLAIN_BYTES {
            return false;
        }
    }
    true
}

/// Letters, digits and punctuation that is common in ids, but nothing that separates parts, marks a
/// hash or opens a hash tag.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.+=~/".contains(&byte)
}

/// 22 characters of base64 in the alphabet of RFC 4648, section 5.
fn push_hash(name: &mut Vec<u8>, hash: [u8; 16]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = u128::from_be_bytes(hash);
    for at in 0..22u32 {
        let sextet = if at == 21 { bits << 4 } else { bits >> (122 - 6 * at) };
        name.push(ALPHABET[(sextet & 63) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use slidegate::Request;
    use slidegate::internal::KeySpace;

    use super::*;
    use slidegate::network::Ipv6Prefix;

    fn names(always_hashed: bool) -> Names {
        Names { secret: Names::secret_of("secret"), always_hashed, hash_tag: None }
    }

    /// The name of the key that these values form.
    fn name<'v, V: Into<Value<'v>> + Copy>(names: &Names, values: &[V]) -> Vec<u8> {
        let scope: Vec<_> = (0..values.len()).map(|n| n.to_string()).collect();
        let values = values.iter().map(|value| -> Value<'v> { (*value).into() });
        let request = scope.iter().zip(values).fold(Request::new(), |r, (name, value)| r.with(name, value));
        let (policy, ipv6_prefix) = ("p".to_owned(), Ipv6Prefix::default());
        let mut space = KeySpace {
            policy,
            scope: scope.clone(),
            folds: Box::default(),
            ipv6_prefix,
            in_millionths: false,
            lease: None,
        };
        let name = names.name(&Key { space: &space, request: &request });
        space.in_millionths = true;
        let in_millionths = names.name(&Key { space: &space, request: &request });
        let id = name.iter().position(|byte| *byte == b'%');
        assert_eq!(id, None, "no id begins with the mark of millionths");
        assert!(in_millionths.contains(&b'%') && Names::is_of("p", &in_millionths));
        name
    }

    /// Two users with one name would share a limit; an id that opens a hash tag would choose its
    /// slot.
    #[test]
    fn every_id_has_a_name_of_its_own_and_none_chooses_its_slot() {
        let long = "x".repeat(10_000);
        let mut ids: Vec<Vec<&str>> =
            vec![vec![], vec![""], vec!["", ""], vec!["*"], vec!["a,b"], vec!["a", "b"]];
        ids.extend([
            vec!["{a}"],
            vec!["a:b"],
            vec!["\0"],
            vec!["\0\0"],
            vec!["\n"],
            vec!["@1.2.3.4"],
            vec!["1.2.3.4"],
        ]);
        ids.extend([
            vec![long.as_str()],
            vec![&long[1..]],
            vec!["#"],
            vec!["a", ""],
            vec!["", "a"],
            vec!["zoë"],
        ]);
        for names in [names(false), names(true)] {
            let mut seen = HashMap::new();
            for id in &ids {
                let name = name(&names, id);
                assert!(name.len() < 100, "{id:?}");
                assert!(!name.iter().any(|byte| b"{}\0\n ".contains(byte)), "{id:?}");
                assert_eq!(seen.insert(name, id), None, "{id:?}");
            }
            let address: IpAddr = "1.2.3.4".parse().unwrap();
            assert_eq!(seen.get(&name(&names, &[address])), None);
        }
    }

    /// Operators look users up with redis-cli, unless they configured that names are not readable.
    #[test]
    fn short_plain_ids_are_readable_unless_all_are_hashed() {
        let text = |names: &Names, id: &str| String::from_utf8(name(names, &[id])).unwrap();
        assert_eq!(text(&names(false), "alice@example.com"), "sg1:p:#s6nn88MWInjZCMZrWpXqkQ");
        assert_eq!(text(&names(false), "user-1_a.b+c=d~e/f"), "sg1:p:user-1_a.b+c=d~e/f");
        assert!(text(&names(true), "alice").starts_with("sg1:p:#"));
        assert_eq!(name::<&str>(&names(true), &[]), b"sg1:p:*");
        let ip: IpAddr = "2001:db8:1:2345::1".parse().unwrap();
        assert_eq!(name(&names(false), &[ip]), b"sg1:p:@20010db8000123000000000000000000");
        // Such names are read back, and others are not guessed.
        let read = |name: &[u8]| Names::text("p", name);
        assert_eq!(read(&name(&names(false), &[ip])).unwrap(), "2001:db8:1:2300::");
        let v4: IpAddr = "192.0.2.7".parse().unwrap();
        assert_eq!(read(&name(&names(false), &[v4])).unwrap(), "192.0.2.7");
        assert_eq!(read(&name(&names(false), &["a", "b=c"])).unwrap(), "a,b=c");
        assert_eq!(read(b"sg1:{0123456789abcdefghijkl}:p:%alice").unwrap(), "alice");
        assert_eq!(read(&name(&names(true), &["alice"])), None);
        assert_eq!(read(b"sg1:q:alice"), None);
    }

    /// Instances that hash differently would not share limits.
    #[test]
    fn the_same_secret_gives_the_same_names_everywhere() {
        let of = |secret: &str| Names { secret: Names::secret_of(secret), ..names(true) };
        assert_eq!(name(&of("a"), &["alice"]), name(&of("a"), &["alice"]));
        assert_ne!(name(&of("a"), &["alice"]), name(&of("b"), &["alice"]));
    }

    /// A client whose key had an internal name would change the store's own data.
    #[test]
    fn no_policy_can_have_a_name_of_the_stores_own() {
        for internal in [
            Names::canary(0).into_bytes(),
            Names::instances(),
            Names::instance("00000000000000ab"),
            names(false).claim(b"what"),
            Names::self_test(1, 0),
        ] {
            let internal = String::from_utf8(internal).unwrap();
            let first_part = internal.strip_prefix(PREFIX).unwrap().split(':').next().unwrap();
            assert!(
                slidegate::Policy::new(first_part, slidegate::Quota::per_second(1)).is_err(),
                "{first_part}"
            );
        }
        assert_eq!(slot::of(&Names::instance("00000000000000ab")), slot::of(&Names::instances()));
        let once = names(false).once(&[name(&names(false), &["alice"])], &[1], "id");
        assert!(!Names::is_key(&once));
        for id in ["{", "{sg1:p:alice}", "alice", "*", ""] {
            let key = String::from_utf8(name(&names(false), &[id])).unwrap().replace(":p:", ":once:");
            assert!(Names::is_key(key.as_bytes()), "{key}");
        }
    }

    /// A reset that deletes another policy's keys would lift that policy's limits.
    #[test]
    fn names_tell_their_policy() {
        let plain = names(false);
        let tagged = Names { hash_tag: Some("0".to_owned()), ..names(true) };
        for names in [&plain, &tagged] {
            for values in [&["alice"][..], &["p:alice", "x"], &["a,b"]] {
                let name = name(names, values);
                let text = String::from_utf8_lossy(&name);
                assert!(Names::is_of("p", &name), "{text}");
                assert!(!Names::is_of("pp", &name) && !Names::is_of("", &name), "{text}");
            }
        }
        for other in [
            "sg1:pp:alice",
            "sg1:q:p:alice",
            "sg2:p:alice",
            "sg1:p",
            "sg1:{short}:p:alice",
            "p:alice",
            "sg1:{",
        ] {
            assert!(!Names::is_of("p", other.as_bytes()), "{other}");
        }
        let once = plain.once(&[name(&plain, &["alice"])], &[1], "id");
        assert!(!Names::is_of("once", &once) && Names::is_of("once", b"sg1:once:alice"));
    }

    /// All keys of a request have to lie in one slot, and a client must not choose which.
    #[test]
    fn a_hash_tag_is_the_hash_of_the_attributes_value() {
        let names = Names { hash_tag: Some("0".to_owned()), ..names(false) };
        let named = name(&names, &["alice", "x"]);
        let other = name(&names, &["alice", "y"]);
        assert!(named.starts_with(b"sg1:{") && named.ends_with(b"}:p:alice,x"));
        assert_eq!(slot::of(&named), slot::of(&other));
        assert_eq!(slot::of(&names.once(std::slice::from_ref(&named), &[1], "id")), slot::of(&named));
    }
}
