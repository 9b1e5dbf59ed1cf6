//! Overrides of a policy, for one key or for all keys with addresses in networks.
//!
//! To find a network, a key's addresses are cut to each prefix length in use, longest first. So a
//! look-up takes as long with one network as with a thousand.

use std::collections::HashMap;
use std::fmt;

use ipnet::IpNet;
use smallvec::SmallVec;

use crate::fold::Folded;
use crate::key::{Key, write_canonical};
use crate::network::Network;
use crate::quota::Quota;
use crate::request::{OwnedValue, Value};

/// The part of an override for one attribute of the scope: a value or a network.
///
/// Convert with `From` from anything that converts to [`Value`], or from a [`Network`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverridePart(PartKind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PartKind {
    Value(OwnedValue),
    Network(IpNet),
}

impl<'v, V: Into<Value<'v>>> From<V> for OverridePart {
    fn from(value: V) -> Self {
        Self(PartKind::Value(value.into().into()))
    }
}

impl From<Network> for OverridePart {
    fn from(network: Network) -> Self {
        Self(PartKind::Network(network.0))
    }
}

impl OverridePart {
    /// The value, or the first address of the network.
    pub(super) fn value(&self) -> Value<'_> {
        match &self.0 {
            PartKind::Value(value) => value.value(),
            PartKind::Network(network) => Value::Address(network.addr()),
        }
    }

    pub(super) fn network(&self) -> Option<IpNet> {
        match &self.0 {
            PartKind::Value(_) => None,
            PartKind::Network(network) => Some(*network),
        }
    }
}

/// An override.
#[derive(Debug, Clone)]
pub(super) struct Override {
    /// One part per attribute of the scope.
    pub(super) key: Vec<OverridePart>,
    /// `None`: unlimited.
    pub(super) quota: Option<Quota>,
}

impl Override {
    pub(super) fn values(&self) -> impl ExactSizeIterator<Item = Value<'_>> {
        self.key.iter().map(OverridePart::value)
    }

    /// Whether it is for one key.
    pub(super) fn is_exact(&self) -> bool {
        self.key.iter().all(|part| part.network().is_none())
    }
}

/// Written like keys: `alice`, `10.0.0.0/8`.
impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.key.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            match (part.network(), part.value()) {
                (Some(network), _) => write!(f, "{network}")?,
                (None, Value::Address(ip)) => write!(f, "{ip}")?,
                (None, Value::Bytes(bytes)) => write!(f, "{}", bytes.escape_ascii())?,
            }
        }
        Ok(())
    }
}

/// The overrides of a policy by the canonical bytes of their keys. `None` is unlimited.
#[derive(Debug, Clone, Default)]
pub(super) struct Overrides {
    exact: QuotasByKey,
    /// Network overrides by prefix lengths, longest first.
    networks: Vec<(Prefixes, QuotasByKey)>,
    /// Whether an override is unlimited.
    pub(super) exempts: bool,
}

/// By the canonical bytes of keys; `None` is unlimited.
type QuotasByKey = HashMap<Box<[u8]>, Option<Quota>>;

/// Per attribute of a scope: the prefix length, and whether it is IPv4; `None` for a value. The
/// first attribute is compared first.
type Prefixes = SmallVec<[Option<(u8, bool)>; 2]>;

impl Overrides {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.networks.is_empty()
    }

    /// Adds an override. Returns whether its key already had one.
    pub(super) fn add(&mut self, one: &Override, key: &Key<'_>) -> bool {
        self.exempts |= one.quota.is_none();
        let prefix = |part: &OverridePart| part.network().map(|net| (net.prefix_len(), net.addr().is_ipv4()));
        let prefixes: Prefixes = one.key.iter().map(prefix).collect();
        let Some(bytes) = cut(key, &prefixes).map(SmallVec::into_boxed_slice) else { return false };
        let table = if one.is_exact() {
            &mut self.exact
        } else {
            let at = self.networks.iter().position(|(known, _)| *known == prefixes).unwrap_or_else(|| {
                // A value sorts above any prefix.
                let length = |prefixes: &Prefixes| -> Vec<u8> {
                    prefixes.iter().map(|prefix| prefix.map_or(u8::MAX, |(length, _)| length)).collect()
                };
                let at = self.networks.partition_point(|(known, _)| length(known) > length(&prefixes));
                self.networks.insert(at, (prefixes, HashMap::new()));
                at
            });
            &mut self.networks[at].1
        };
        table.insert(bytes, one.quota).is_some()
    }

    /// The exact override of a key. `Some(None)` is unlimited.
    pub(super) fn exact(&self, canonical: &[u8]) -> Option<Option<&Quota>> {
        self.exact.get(canonical).map(Option::as_ref)
    }

    /// The override of the smallest networks that contain the key.
    pub(super) fn of_networks(&self, key: &Key<'_>) -> Option<Option<&Quota>> {
        let mut tables = self.networks.iter();
        tables.find_map(|(prefixes, table)| table.get(&*cut(key, prefixes)?)).map(Option::as_ref)
    }
}

/// The canonical bytes of a key with its addresses cut to these prefixes; `None` if one has no such
/// address.
fn cut(key: &Key<'_>, prefixes: &Prefixes) -> Option<SmallVec<[u8; 64]>> {
    let mut bytes = SmallVec::new();
    for (part, prefix) in key.parts().zip(prefixes) {
        let part = match (prefix, part) {
            (None, part) => part,
            (Some((length, is_ipv4)), Some(Folded::Same(Value::Address(ip)))) if ip.is_ipv4() == *is_ipv4 => {
                Some(Folded::Same(Value::Address(IpNet::new(ip, *length).ok()?.trunc().addr())))
            }
            _ => return None,
        };
        write_canonical(part.as_ref(), |part| bytes.extend_from_slice(part));
    }
    Some(bytes)
}
