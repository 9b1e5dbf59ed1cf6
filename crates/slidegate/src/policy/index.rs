//! Finds the policies that may apply to a request without testing each one.
//!
//! Every policy is listed under one of its conditions or attributes: the values, networks or prefix
//! required of an attribute, or its presence. The requirement that the fewest policies share is
//! chosen. A request looks up its attribute values and finds all policies that apply to it, and few
//! others.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use smallvec::SmallVec;

use super::Policy;
use super::matcher::Term;
use crate::charge::OnMissing;
use crate::fold::Fold;
use crate::network::canonical;
use crate::request::{Request, Value};

/// Places of policies in their set, in ascending order.
pub(super) type Places = SmallVec<[usize; 16]>;

/// Policies by their requirements.
#[derive(Debug, Clone, Default)]
pub(super) struct PolicyIndex {
    /// Policies without requirements, such as one that counts all requests together.
    always: Vec<usize>,
    /// By attribute and fold.
    attributes: HashMap<String, Vec<(Fold, AttributeIndex)>>,
}

/// The policies that are listed under one attribute.
#[derive(Debug, Clone, Default)]
struct AttributeIndex {
    present: Vec<usize>,
    texts: HashMap<String, Vec<usize>>,
    addresses: HashMap<IpAddr, Vec<usize>>,
    networks: HashMap<IpNet, Vec<usize>>,
    /// Prefix lengths to look up for an address; `true` for IPv4.
    lengths: Vec<(bool, u8)>,
    prefixes: Vec<Prefix>,
}

/// A prefix; they are sorted.
#[derive(Debug, Clone)]
struct Prefix {
    bytes: Vec<u8>,
    /// The longest other prefix that this one begins with.
    parent: Option<usize>,
    policies: Vec<usize>,
}

impl PolicyIndex {
    /// Lists policies by their places, given in ascending order. Takes time proportional to the
    /// number of values in their conditions.
    pub(super) fn new<'p>(policies: impl Iterator<Item = (usize, &'p Policy)> + Clone) -> Self {
        Self::by(policies, |policy| conditions(policy).chain(scope(policy)).collect())
    }

    /// Lists policies by their conditions alone, for requests that lack attributes of their scopes.
    pub(super) fn by_conditions<'p>(policies: impl Iterator<Item = (usize, &'p Policy)> + Clone) -> Self {
        Self::by(policies, |policy| conditions(policy).collect())
    }

    fn by<'p>(
        policies: impl Iterator<Item = (usize, &'p Policy)> + Clone,
        requirements: impl Fn(&'p Policy) -> Vec<Requirement<'p>>,
    ) -> Self {
        let mut sharing: HashMap<(&str, Fold, Term<'_>), usize> = HashMap::new();
        for (attribute, fold, terms) in policies.clone().flat_map(|(_, policy)| requirements(policy)) {
            terms.into_iter().for_each(|term| *sharing.entry((attribute, fold, term)).or_default() += 1);
        }
        let mut index = Self::default();
        for (at, policy) in policies {
            let most_shared = |(attribute, fold, terms): &Requirement<'p>| {
                terms.iter().map(|term| sharing[&(*attribute, *fold, term.clone())]).max()
            };
            match requirements(policy).into_iter().min_by_key(most_shared) {
                None => index.always.push(at),
                Some((attribute, fold, terms)) => {
                    let folded = index.attributes.entry(attribute.to_owned()).or_default();
                    let known = folded.iter().position(|(known, _)| *known == fold).unwrap_or_else(|| {
                        folded.push((fold, AttributeIndex::default()));
                        folded.len() - 1
                    });
                    let listed = &mut folded[known].1;
                    terms.into_iter().for_each(|term| listed.add(term, at));
                }
            }
        }
        index.attributes.values_mut().flatten().for_each(|(_, listed)| listed.link_prefixes());
        index
    }

    /// Adds every policy that applies to the request, and few that do not.
    pub(super) fn find(&self, request: &Request<'_>, found: &mut Places) {
        found.extend_from_slice(&self.always);
        for (nth, (name, value)) in request.attributes().enumerate() {
            // Of two attributes with the same name, the first counts.
            let is_first = || request.attributes().take(nth).all(|(before, _)| before != name);
            for (fold, listed) in self.attributes.get(name).filter(|_| is_first()).into_iter().flatten() {
                listed.find(fold.of(value).value(), found);
            }
        }
        found.sort_unstable();
        // An address may be in several networks of one policy.
        found.dedup();
    }
}

impl AttributeIndex {
    fn add(&mut self, term: Term<'_>, at: usize) {
        match term {
            Term::Present => self.present.push(at),
            Term::Network(network) => {
                let length = (network.addr().is_ipv4(), network.prefix_len());
                if !self.lengths.contains(&length) {
                    self.lengths.push(length);
                }
                self.networks.entry(network).or_default().push(at);
            }
            Term::Text(text) => {
                if let Ok(address) = text.parse() {
                    self.addresses.entry(canonical(address)).or_default().push(at);
                }
                self.texts.entry(text.to_owned()).or_default().push(at);
            }
            Term::Prefix(bytes) => self.prefixes.push(Prefix { bytes, parent: None, policies: vec![at] }),
        }
    }

    /// Sorts the prefixes, merges equal ones, and links each with the longest that it begins with.
    fn link_prefixes(&mut self) {
        self.prefixes.sort_by(|one, other| one.bytes.cmp(&other.bytes));
        self.prefixes.dedup_by(|next, kept| {
            let are_equal = next.bytes == kept.bytes;
            if are_equal {
                kept.policies.append(&mut next.policies);
            }
            are_equal
        });
        // Candidates for the next prefix's parent; each begins with the one before.
        let mut open: Vec<usize> = Vec::new();
        for at in 0..self.prefixes.len() {
            while let Some(last) = open.last() {
                if self.prefixes[at].bytes.starts_with(&self.prefixes[*last].bytes) {
                    break;
                }
                open.pop();
            }
            self.prefixes[at].parent = open.last().copied();
            open.push(at);
        }
    }

    fn find(&self, value: Value<'_>, found: &mut Places) {
        found.extend_from_slice(&self.present);
        let mut add =
            |listed: Option<&Vec<usize>>| found.extend_from_slice(listed.map_or(&[], Vec::as_slice));
        match value {
            Value::Bytes(bytes) => {
                if !self.texts.is_empty() {
                    add(std::str::from_utf8(bytes).ok().and_then(|text| self.texts.get(text)));
                }
                self.find_prefixes(bytes, add);
            }
            Value::Address(address) => {
                let address = canonical(address);
                add(self.addresses.get(&address));
                let of_family = self.lengths.iter().filter(|(is_ipv4, _)| *is_ipv4 == address.is_ipv4());
                for (_, length) in of_family {
                    let network = IpNet::new(address, *length).ok();
                    add(network.and_then(|network| self.networks.get(&network.trunc())));
                }
            }
        }
    }

    /// Whatever sorts between a prefix of a value and the value begins with that prefix. So the last
    /// one that does not sort after the value leads to all of its prefixes.
    fn find_prefixes<'i>(&'i self, value: &[u8], mut add: impl FnMut(Option<&'i Vec<usize>>)) {
        let after = self.prefixes.partition_point(|prefix| prefix.bytes.as_slice() <= value);
        let mut next = after.checked_sub(1);
        while let Some(prefix) = next.map(|at| &self.prefixes[at]) {
            if value.starts_with(&prefix.bytes) {
                add(Some(&prefix.policies));
            }
            next = prefix.parent;
        }
    }
}

/// A policy's requirement on a folded attribute: any of these terms.
type Requirement<'p> = (&'p str, Fold, Vec<Term<'p>>);

fn conditions(policy: &Policy) -> impl Iterator<Item = Requirement<'_>> {
    let conditions = policy.options.conditions.iter();
    conditions
        .filter_map(|(attribute, condition)| Some((attribute.as_str(), condition.fold(), condition.terms()?)))
}

fn scope(policy: &Policy) -> impl Iterator<Item = Requirement<'_>> {
    let scope = policy.keys.scope.iter().filter(|_| policy.options.when_missing() == OnMissing::Skip);
    scope.map(|attribute| (attribute.as_str(), Fold::NONE, vec![Term::Present]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Match;
    use crate::quota::Quota;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    const ATTRIBUTES: [&str; 3] = ["path", "ip", "user"];

    fn texts() -> impl Strategy<Value = String> {
        prop_oneof![
            "[abA/;]{0,4}",
            select(vec!["10.1.2.3".to_owned(), "::ffff:10.1.2.3".into(), "2001:db8::1".into()])
        ]
    }

    fn networks() -> impl Strategy<Value = &'static str> {
        select(vec![
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.2.3",
            "0.0.0.0/0",
            "::/0",
            "2001:db8::/32",
            "::ffff:10.0.0.0/104",
        ])
    }

    fn conditions() -> impl Strategy<Value = Match> {
        prop_oneof![
            texts().prop_map(Match::equals),
            vec(texts(), 0..4).prop_map(Match::one_of),
            texts().prop_map(Match::prefix),
            r"([ab/*?]|\\[ab*]){0,5}".prop_map(|pattern| Match::glob(pattern).unwrap()),
            vec(networks(), 0..3).prop_map(|networks| Match::networks(networks).unwrap()),
            Just(Match::present()),
            Just(Match::absent()),
        ]
    }

    fn folds() -> impl Strategy<Value = Fold> {
        select(vec![Fold::NONE, Fold::CASE, Fold::SLASH, Fold::CASE.and(Fold::SLASH)])
    }

    fn policies() -> impl Strategy<Value = Policy> {
        let when = vec((select(&ATTRIBUTES[..]), conditions(), any::<bool>()), 0..3);
        let scope = vec(select(&ATTRIBUTES[..]), 0..2);
        let on_missing = select(vec![OnMissing::Skip, OnMissing::Deny, OnMissing::OneKey]);
        (when, scope, on_missing, folds()).prop_map(|(when, scope, on_missing, fold)| {
            let policy = Policy::new("p", Quota::per_minute(1)).unwrap().with_scope(scope);
            let policy = policy.with_on_missing(on_missing).with_fold("path", fold);
            when.into_iter().fold(policy, |policy, (attribute, condition, is_opposite)| {
                let condition = if is_opposite { Match::not(condition) } else { condition };
                policy.with_condition(attribute, condition)
            })
        })
    }

    fn values() -> impl Strategy<Value = (&'static str, String, bool)> {
        (select(&ATTRIBUTES[..]), texts(), any::<bool>())
    }

    fn request<'v>(values: &'v [(&'static str, String, bool)]) -> Request<'v> {
        values.iter().fold(Request::new(), |request, (name, text, is_address)| match text.parse::<IpAddr>() {
            Ok(address) if *is_address => request.with(name, address),
            _ => request.with(name, text.as_bytes()),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// A policy that is overlooked limits nobody.
        #[test]
        fn every_policy_that_applies_is_found(policies in vec(policies(), 0..24), values in vec(values(), 0..5)) {
            let index = PolicyIndex::new(policies.iter().enumerate());
            let request = request(&values);
            let mut found = Places::new();
            index.find(&request, &mut found);
            prop_assert!(found.is_sorted_by(|one, other| one < other), "{found:?}");
            let applying = |at: &usize| policies[*at].applies_to(&request);
            let wanted: Vec<_> = (0..policies.len()).filter(applying).collect();
            let kept: Vec<_> = found.into_iter().filter(applying).collect();
            prop_assert_eq!(kept, wanted);
            let skips = |at: &usize| policies[*at].skips(&request);
            let wanted: Vec<_> = (0..policies.len()).filter(skips).collect();
            let mut found = Places::new();
            PolicyIndex::by_conditions(policies.iter().enumerate()).find(&request, &mut found);
            prop_assert_eq!(found.into_iter().filter(skips).collect::<Vec<_>>(), wanted);
        }
    }

    fn found(policies: &[Policy], request: &Request<'_>) -> Vec<usize> {
        let mut found = Places::new();
        PolicyIndex::new(policies.iter().enumerate()).find(request, &mut found);
        found.to_vec()
    }

    /// A service with thousands of routes asks only the policies of one of them.
    #[test]
    fn few_others_are_found() {
        let named =
            |at: usize| Policy::new(format!("p{at}"), Quota::per_minute(1)).unwrap().with_scope(["user"]);
        let request = Request::new().with("method", "GET").with("path", "/route/500/x").with("user", "alice");
        let of =
            |policy: &dyn Fn(usize) -> Policy| found(&(0..1000).map(policy).collect::<Vec<_>>(), &request);
        let get = |at: usize| named(at).with_condition("method", Match::equals("GET"));
        assert_eq!(of(&|at| get(at).with_condition("path", Match::equals(format!("/route/{at}/x")))), [500]);
        assert_eq!(of(&|at| get(at).with_condition("path", Match::prefix(format!("/route/{at}/")))), [500]);
        assert_eq!(
            of(&|at| get(at).with_condition("path", Match::glob(format!("/route/{at}/*")).unwrap())),
            [500]
        );
        assert_eq!(
            of(&|at| named(at).with_condition("user", Match::one_of([format!("u{at}"), "bob".into()]))),
            [0; 0]
        );
        let peer: IpAddr = "10.0.3.7".parse().unwrap();
        let networks = |at: usize| {
            named(at).with_condition("ip", Match::networks([format!("10.0.{}.0/24", at % 250)]).unwrap())
        };
        let policies: Vec<_> = (0..250).map(networks).collect();
        assert_eq!(found(&policies, &request.clone().with("ip", peer)), [3]);
        // Longer prefixes do not hide shorter ones.
        let nested = ["/", "/route/", "/route/500/x", "/route/500/x/y", "/other/"];
        let nested: Vec<_> =
            nested.iter().map(|prefix| named(0).with_condition("path", Match::prefix(*prefix))).collect();
        assert_eq!(found(&nested, &request), [0, 1, 2]);
    }
}
