//! Names derived from descriptors: counter keys, policy names and statistics names.
//!
//! envoyproxy/ratelimit joins keys and values with underscores, so `a` with `b_c` and `a_b` with `c` share a
//! counter. Here no two descriptors do, because separators are escaped. The shared store writes these
//! separators unescaped, so short keys stay readable there.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};

/// Maximum characters of a policy name.
const MAX_NAME: usize = slidegate::Policy::MAX_NAME;
/// Hexadecimal digits of a name's hash: 48 bits. Two of 1024 rules collide once in 500 million configs.
const HASH_DIGITS: usize = 12;
/// Characters that stand for request bytes that are not text. Keys contain them as `\xFF`.
pub(crate) const BYTES_AS_TEXT: std::ops::Range<u32> = 0x10_FF00..0x11_0000;
/// Maximum bytes of a counter key: it appears in responses, events and logs. A longer key becomes its
/// beginning and a hash.
const MAX_COUNTER: usize = 1024;
const KEPT_OF_COUNTER: usize = 256;

/// The start of a counter key: `test-domain`, or `prefix~test-domain`.
pub(super) fn start_key(prefix: &str, domain: &str) -> String {
    let mut key = String::with_capacity(64);
    if !prefix.is_empty() {
        push_escaped(&mut key, prefix, &['~', '\\']);
        key.push('~');
    }
    push_escaped(&mut key, domain, &['~', '\\']);
    key
}

/// Appends an entry to a counter key: `~key=value`.
pub(super) fn push_entry(counter: &mut String, key: &str, value: &str) {
    counter.push('~');
    push_escaped(counter, key, &['~', '\\', '=']);
    counter.push('=');
    push_escaped(counter, value, &['~', '\\']);
}

/// The key that counts a counter's denied hits: `test-domain~key=value~refused`. No other counter has it:
/// after `~`, others have an entry, which contains `=`, or a unit.
pub(crate) fn denied_key(counter: &str) -> String {
    format!("{counter}~refused")
}

/// Shortens an overlong counter key. The result is unique: after a backslash, other keys have a special
/// character or an `x`.
pub(super) fn shorten(counter: &mut String) {
    if counter.len() > MAX_COUNTER {
        let hash = hash(counter.as_bytes());
        let mut kept = KEPT_OF_COUNTER;
        while !counter.is_char_boundary(kept) {
            kept -= 1;
        }
        counter.truncate(kept);
        counter.push_str("\\h");
        counter.push_str(&hash);
    }
}

/// The SHA-256 hash of overlong bytes, in 64 hexadecimal digits.
pub(crate) fn hash(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn push_escaped(out: &mut String, text: &str, special: &[char]) {
    for c in text.chars() {
        if BYTES_AS_TEXT.contains(&u32::from(c)) {
            let _ = write!(out, "\\x{:02X}", u32::from(c) - BYTES_AS_TEXT.start);
            continue;
        }
        if special.contains(&c) {
            out.push('\\');
        }
        out.push(c);
    }
}

/// The name of a descriptor: `key`, or `key_value`.
pub(super) fn node_name(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}

/// The policy name of the limit at the end of a path of keys and values: its statistics name if that is a
/// valid and unique policy name, otherwise a prefix of it and a hash.
///
/// Depends on the path alone, so usage survives a reload.
pub(super) fn policy(domain: &str, path: &[(&str, &str)]) -> String {
    let mut readable = domain.to_owned();
    let mut is_plain = is_plain(domain);
    let mut whole = length_and_text(domain);
    for (key, value) in path {
        let name = node_name(key, value);
        is_plain &= self::is_plain(&name);
        readable.push('.');
        readable += &name;
        whole += &length_and_text(key);
        whole += &length_and_text(value);
    }
    name(&readable, is_plain, &whole)
}

/// The policy name for limits carried by this domain's requests. No other policy has this name: it contains
/// two consecutive dots, or its own hash.
pub(super) fn request_limits_policy(domain: &str) -> String {
    name(&format!("{domain}..own-limits"), is_plain(domain), &length_and_text(domain))
}

/// Whether a part between dots needs no escaping.
fn is_plain(part: &str) -> bool {
    part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

fn length_and_text(text: &str) -> String {
    format!("{}:{text}", text.len())
}

fn name(readable: &str, is_plain: bool, whole: &str) -> String {
    if is_plain && readable.len() <= MAX_NAME {
        return readable.to_owned();
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let head = readable.chars().take(MAX_NAME - 1 - HASH_DIGITS);
    let mut name: String = head.map(|c| if allowed(c) { c } else { '_' }).collect();
    let hash = format!("{:016x}", fnv1a(whole.as_bytes()));
    name.push('-');
    name.push_str(&hash[..HASH_DIGITS]);
    name
}

/// 64-bit FNV-1a. Keys in a shared store must be equal in every instance and release.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

/// The statistics name of a limit: `test-domain.key1_value1.subkey1`. Keeps its parts, which may contain
/// dots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StatKey {
    text: String,
    /// End offsets of the domain, the first key and the second key; the length of `text` if missing.
    ends: [usize; 3],
}

impl StatKey {
    /// The whole name.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The domain, the first key and the second key. Missing ones are empty.
    pub(crate) fn labels(&self) -> [&str; 3] {
        let [domain, first, second] = self.ends;
        let after = |from: usize, to: usize| self.text.get(from + 1..to).unwrap_or_default();
        [&self.text[..domain], after(domain, first), after(first, second)]
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

/// The statistics name of the node at the end of a path.
pub(crate) fn stat_key<'n>(domain: &str, names: impl IntoIterator<Item = &'n str>) -> StatKey {
    let mut text = sanitised(domain);
    let mut ends = [text.len(); 3];
    for (at, name) in names.into_iter().enumerate() {
        text.push('.');
        text += &sanitised(name);
        if let Some(ends) = ends.get_mut(at + 1..) {
            ends.fill(text.len());
        }
    }
    StatKey { text, ends }
}

/// Replaces what a statsd name must not contain: `:`, `|`, control characters, and the dots of IPv4
/// addresses.
pub(crate) fn sanitised(text: &str) -> String {
    let text = text.replace(
        |c: char| matches!(c, ':' | '|') || c.is_control() || BYTES_AS_TEXT.contains(&u32::from(c)),
        "_",
    );
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, tail) = rest.split_at(at);
        out += before;
        let end = tail.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(tail.len());
        let (run, after) = tail.split_at(end);
        let address = run.trim_end_matches('.');
        if address.parse::<std::net::Ipv4Addr>().is_ok() {
            out += &address.replace('.', "_");
            out += &run[address.len()..];
        } else {
            out += run;
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In statsd, a colon starts a value, and an address would become four levels of a tree.
    #[test]
    fn statistics_names_contain_no_reserved_characters() {
        for (text, expected) in [
            ("remote_address_10.0.0.1", "remote_address_10_0_0_1"),
            ("path_/a:b|c\nd", "path_/a_b_c_d"),
            ("host_example.com", "host_example.com"),
            ("version_1.2.3", "version_1.2.3"),
            ("a_10.0.0.1.", "a_10_0_0_1."),
            ("1.2.3.4", "1_2_3_4"),
            ("999.2.3.4", "999.2.3.4"),
        ] {
            assert_eq!(sanitised(text), expected);
        }
    }

    /// Usage is kept by policy name: names must be stable and unique.
    #[test]
    fn a_policy_has_the_name_of_its_statistics_or_a_hash() {
        assert_eq!(policy("test-domain", &[("key1", "value1"), ("sub", "")]), "test-domain.key1_value1.sub");
        assert_eq!(policy("d", &[("wild", "foo*")]), "d.wild_foo_-6de5f375a197");
        assert_eq!(policy("d.e", &[("k", "")]), "d.e.k-f7706ab0f27f");
        assert_ne!(policy("d", &[("a.b", "")]), policy("d", &[("a", ""), ("b", "")]));
        let long = policy("d", &[(&"k".repeat(100), "")]);
        assert_eq!(long.len(), MAX_NAME);
        assert_eq!(request_limits_policy("d"), "d..own-limits");
        assert_eq!(request_limits_policy("d*"), "d_..own-limits-6e2c4a0b6605");
    }

    /// Hits of one client must not be counted for another.
    #[test]
    fn no_two_descriptors_have_one_key() {
        let key = |entries: &[(&str, &str)]| {
            let mut key = start_key("", "d");
            entries.iter().for_each(|(name, value)| push_entry(&mut key, name, value));
            key
        };
        let all = [
            key(&[("a", "b_c")]),
            key(&[("a_b", "c")]),
            key(&[("a", "b"), ("c", "")]),
            key(&[("a", "b~c=")]),
            key(&[("a", "b\\~c=")]),
            key(&[("a=b", "c")]),
            key(&[("a", "b=c")]),
            key(&[("a", "=b")]),
            key(&[("a", "")]),
            key(&[]),
        ];
        let mut different = all.to_vec();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), all.len(), "{all:?}");
        assert_eq!(all[0], "d~a=b_c");
        assert_eq!(all[3], "d~a=b\\~c=");
        assert_eq!(start_key("p", "d"), "p~d");
        assert_ne!(start_key("p~d", "e"), start_key("p", "d~e"));
    }
}
