//! Names: what a descriptor is counted under, what its policy and its statistics are called.
//!
//! The reference joins keys and values by underscores, so that `a` with `b_c` and `a_b` with `c` share a counter. Here
//! no two descriptors do: what separates the parts is escaped within them. They are joined by what a shared store writes
//! into its keys as it is, so that short ones can be read there.

use super::matcher::{Level, Node, Walk};

/// Most characters of a policy's name.
const MAX_NAME: usize = slidegate::Policy::MAX_NAME;
/// Hexadecimal digits of a name's hash: 48 bits, by which two of 1024 rules meet once in 500 million configurations.
const HASH_DIGITS: usize = 12;

/// Begins a counter's key: `test-domain`, or `prefix~test-domain`.
pub(super) fn start_key(prefix: &str, domain: &str) -> String {
    let mut key = String::with_capacity(64);
    if !prefix.is_empty() {
        push_escaped(&mut key, prefix, &['~', '\\']);
        key.push('~');
    }
    push_escaped(&mut key, domain, &['~', '\\']);
    key
}

/// Adds an entry to a counter's key: `~key=value`.
pub(super) fn push_entry(counter: &mut String, key: &str, value: &str) {
    counter.push('~');
    push_escaped(counter, key, &['~', '\\', '=']);
    counter.push('=');
    push_escaped(counter, value, &['~', '\\']);
}

/// What the refused hits of a counter are counted under: `test-domain~key=value~refused`. It is no other counter's key, as
/// those go on with an entry, which has a `=`, or with a unit.
pub(crate) fn refused_key(counter: &str) -> String {
    format!("{counter}~refused")
}

fn push_escaped(out: &mut String, text: &str, special: &[char]) {
    for c in text.chars() {
        if special.contains(&c) {
            out.push('\\');
        }
        out.push(c);
    }
}

/// The name of the policy that counts the rule at the end of a path of keys and values: what its statistics are called
/// where a policy's name may be that and no other rule has it, else some of it and a hash.
///
/// It depends on the path alone, since usage is kept by it when files change.
pub(super) fn policy(domain: &str, path: &[(&str, &str)]) -> String {
    let mut readable = domain.to_owned();
    let mut is_plain = is_plain(domain);
    let mut whole = length_and_text(domain);
    for (key, value) in path {
        let name = Level::name_of(key, value);
        is_plain &= self::is_plain(&name);
        readable.push('.');
        readable += &name;
        whole += &length_and_text(key);
        whole += &length_and_text(value);
    }
    name(&readable, is_plain, &whole)
}

/// The name of the policy that counts limits which requests of this domain bring along. No rule's policy has it: what it
/// ends in has two dots, or a hash of its own.
pub(super) fn own_limits_policy(domain: &str) -> String {
    name(&format!("{domain}..own-limits"), is_plain(domain), &length_and_text(domain))
}

/// Whether it can stand between dots as it is.
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

/// FNV-1a, 64 bits: the same in every instance and release, as a shared store's keys have to be.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

/// What statistics are called: `test-domain.key1_value1.subkey1`. Known by its parts as well, which may have dots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StatKey {
    text: String,
    /// Where the domain ends in it, the first key, and the second: its end where there are fewer.
    ends: [usize; 3],
}

impl StatKey {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The domain, the first key and the second, each empty if there is none.
    pub(crate) fn labels(&self) -> [&str; 3] {
        let [domain, first, second] = self.ends;
        let after = |from: usize, to: usize| self.text.get(from + 1..to).unwrap_or_default();
        [&self.text[..domain], after(domain, first), after(first, second)]
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

/// What the statistics of the node at the end of a path are called.
pub(super) fn stat_key<'n>(domain: &str, names: impl IntoIterator<Item = &'n str>) -> StatKey {
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

/// What the statistics of one request's limit are called, where that depends on its values.
pub(super) fn stat_key_of(
    domain: &str,
    walk: &Walk<'_>,
    entries: &[(&str, &str)],
    detailed: bool,
) -> StatKey {
    let found = walk.steps.iter().filter_map(|step| step.found).zip(entries);
    let names: Vec<_> = found
        .map(|((node, _), (key, value))| match node {
            Node { shares: true, name, .. } => name.clone(),
            _ if detailed || node.value_to_metric => Level::name_of(key, value),
            Node { name, .. } => name.clone(),
        })
        .collect();
    stat_key(domain, names.iter().map(String::as_str))
}

/// Without what a name in statsd may not have: `:` and `|`, and the dots of IPv4 addresses. Nor what would end its line.
pub(super) fn sanitised(text: &str) -> String {
    let text = text.replace(|c: char| matches!(c, ':' | '|') || c.is_control(), "_");
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

    /// A colon would begin a value in statsd, and an address would be four levels of a tree.
    #[test]
    fn statistics_are_called_what_their_readers_can_read() {
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

    /// Usage is kept by the name of a policy: it must stay, and no two rules may have one.
    #[test]
    fn a_policy_is_called_what_its_statistics_are_where_that_can_be() {
        assert_eq!(policy("test-domain", &[("key1", "value1"), ("sub", "")]), "test-domain.key1_value1.sub");
        assert_eq!(policy("d", &[("wild", "foo*")]), "d.wild_foo_-6de5f375a197");
        assert_eq!(policy("d.e", &[("k", "")]), "d.e.k-f7706ab0f27f");
        assert_ne!(policy("d", &[("a.b", "")]), policy("d", &[("a", ""), ("b", "")]));
        let long = policy("d", &[(&"k".repeat(100), "")]);
        assert_eq!(long.len(), MAX_NAME);
        assert_eq!(own_limits_policy("d"), "d..own-limits");
        assert_eq!(own_limits_policy("d*"), "d_..own-limits-6e2c4a0b6605");
    }

    /// What one client sends must not be counted for another.
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
