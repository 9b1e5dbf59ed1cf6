//! Which requests a policy is for and which key they have: folded values, opposites, missing
//! attributes, and overrides of networks.

use std::net::IpAddr;

use slidegate::network::Network;
use slidegate::{Block, Fold, Gate, Match, MemoryStore, OnMissing, Policy, PolicySet, clock::ManualClock};
use slidegate::{Quota, Reason, Request, clock::Timestamp, verb::Verb};

fn gate(policies: impl IntoIterator<Item = Policy>) -> Gate {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let store = MemoryStore::builder().clock(clock).build();
    Gate::with_memory(PolicySet::new(policies).unwrap(), store)
}

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_minute(5)).unwrap()
}

/// Sets of one policy are asked one by one, larger ones by an index.
fn sets(policy: &Policy) -> [Vec<Policy>; 2] {
    let other = |n: usize| {
        let other = self::policy(&format!("other-{n}"));
        other.with_condition("path", Match::equals(format!("/other/{n}"))).with_scope([format!("other{n}")])
    };
    [vec![policy.clone()], (0..20).map(other).chain([policy.clone()]).collect()]
}

fn path<'v>(value: &'v str) -> Request<'v> {
    Request::new().with("path", value)
}

/// Whoever finds a spelling that a server routes alike must not find a way around its limit.
#[test]
fn folded_conditions_meet_every_spelling_of_a_path() {
    let both = Fold::CASE.and(Fold::SLASH);
    let glob = |pattern| Match::glob(pattern).unwrap();
    for (condition, fold, met, not_met) in [
        (
            Match::equals("/login"),
            both,
            &["/login", "/login/", "/LOGIN", "/login;x", "/Login;a=1/"][..],
            &["/logins", "/a/login"][..],
        ),
        (Match::equals("/Login/"), both, &["/login", "/LOGIN/"], &["/log"]),
        (Match::equals("/login"), Fold::CASE, &["/LOGIN"], &["/login/", "/login;x"]),
        (Match::equals("/login"), Fold::SLASH, &["/login/", "/login;x"], &["/LOGIN"]),
        (Match::equals("/login"), Fold::NONE, &["/login"], &["/LOGIN", "/login/", "/login;x"]),
        (Match::one_of(["/A", "/b/"]), both, &["/a/", "/B"], &["/c"]),
        (Match::prefix("/Api/"), both, &["/api/x", "/API", "/api/", "/api;v=1/x"], &["/apis"]),
        (Match::prefix("/api"), both, &["/API", "/apis"], &["/ap"]),
        (glob("/V*/users/*"), both, &["/v2/USERS/7", "/v2/users/"], &["/v2/orders/7"]),
        (
            Match::not(Match::equals("/Healthz")),
            both,
            &["/login", "/healthz/x"],
            &["/HEALTHZ/", "/healthz;x"],
        ),
    ] {
        // Folded before or after the condition is added.
        let before = policy("p").with_fold("path", fold).with_condition("path", condition.clone());
        let after = policy("p").with_condition("path", condition.clone()).with_fold("path", fold);
        for policy in [before, after] {
            for set in sets(&policy) {
                let gate = gate(set);
                let is_met = |value: &&&str| !gate.peek(&path(value)).is_empty();
                assert_eq!(met.iter().filter(is_met).count(), met.len(), "{condition} {fold}: {met:?}");
                assert_eq!(not_met.iter().find(is_met), None, "{condition} {fold}");
            }
        }
    }
}

/// An address of mail in another case is the same customer: one limit, one override, one block.
#[test]
fn folded_values_are_one_key() {
    let per_user = policy("per-user").with_fold("user", Fold::CASE).with_scope(["user"]);
    let gate_of = |policy: Policy| gate([policy]);
    let user = |name| Request::new().with("user", name);
    let plain = gate_of(per_user.clone());
    for name in ["zoe@example.org", "Zoe@Example.org", "ZOE@EXAMPLE.ORG"] {
        let request = user(name);
        let decisions = plain.check(&request);
        assert_eq!(decisions.iter().next().unwrap().key().to_string(), "zoe@example.org");
    }
    assert_eq!(plain.peek(&user("zoe@example.org")).strictest().unwrap().decision().used(), 3);
    assert_eq!(plain.peek(&user("zoé@example.org")).strictest().unwrap().decision().used(), 0);

    let special = gate_of(per_user.clone().with_override(["Alice"], Quota::per_minute(9)));
    assert_eq!(special.peek(&user("aLICE")).strictest().unwrap().decision().limit(), 9);
    let blocked = gate_of(per_user.clone().with_block(["MALLORY"], Block::forever()));
    assert_eq!(
        blocked.check(&user("mallory")).strictest().unwrap().decision().reason(),
        Some(Reason::Blocked)
    );
    let twice = per_user
        .clone()
        .with_override(["A"], Quota::per_minute(1))
        .with_override(["a"], Quota::per_minute(2));
    assert_eq!(
        PolicySet::new([twice]).unwrap_err().to_string(),
        "policy `per-user`: duplicate override `a`: must be given once; remove one"
    );
    let tiers = per_user.with_tiers("plan", [("Pro", Quota::per_minute(50))]).with_fold("plan", Fold::CASE);
    assert_eq!(
        gate_of(tiers).peek(&user("x").with("plan", "PRO")).strictest().unwrap().decision().limit(),
        50
    );
    // Of several attributes, each by its own.
    let both = policy("p").with_scope(["user", "path"]).with_fold("path", Fold::SLASH);
    let request = Request::new().with("user", "A").with("path", "/x/");
    assert_eq!(both.key_of(&request).unwrap().to_string(), "A,/x");
}

/// "Everything but health checks" is also what has no path.
#[test]
fn the_opposite_of_a_condition_holds_where_it_does_not() {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let all = [None, Some("/healthz"), Some("/readyz"), Some("/login")];
    for (condition, words, met) in [
        (Match::equals("/healthz"), "is not `/healthz`", [true, false, true, true]),
        (
            Match::one_of(["/healthz", "/readyz"]),
            "is not `/healthz` or `/readyz`",
            [true, false, false, true],
        ),
        (Match::prefix("/healthz"), "does not begin with `/healthz`", [true, false, true, true]),
        (Match::glob("/*z").unwrap(), "does not look like `/*z`", [true, false, false, true]),
        (Match::present(), "is absent", [true, false, false, false]),
        (Match::absent(), "is present", [false, true, true, true]),
        (Match::not(Match::equals("/healthz")), "is `/healthz`", [false, true, false, false]),
    ] {
        let opposite = Match::not(condition);
        assert_eq!(opposite.to_string(), words);
        for set in sets(&policy("p").with_condition("path", opposite)) {
            let gate = gate(set);
            let is_met = |value: Option<&str>| {
                let request =
                    value.into_iter().fold(Request::new(), |request, value| request.with("path", value));
                !gate.peek(&request).is_empty()
            };
            assert_eq!(all.map(is_met), met, "{words}");
        }
    }
    let strangers = Match::not(Match::networks(["10.0.0.0/8"]).unwrap());
    assert_eq!(strangers.to_string(), "is not in 10.0.0.0/8");
    assert!(strangers.holds(Some(ip("192.0.2.1").into())) && !strangers.holds(Some(ip("10.1.1.1").into())));
}

/// A limit that lacks its only attribute must be what its owner chose, and seen.
#[test]
fn a_missing_attribute_is_skipped_counted_as_one_or_denied() {
    let request = |user: Option<&'static str>| {
        let request = Request::new().with("path", "/x");
        user.into_iter().fold(request, |request, user| request.with("user", user))
    };
    for (then, applies, key, denied, skipped) in [
        (None, false, "", false, 1),
        (Some(OnMissing::Skip), false, "", false, 1),
        (Some(OnMissing::OneKey), true, "*,/x", false, 0),
        (Some(OnMissing::Deny), true, "*,/x", true, 0),
    ] {
        let policy = policy("p").with_condition("path", Match::equals("/x")).with_scope(["user", "path"]);
        let policy = then.into_iter().fold(policy, Policy::with_on_missing);
        for set in sets(&policy) {
            let gate = gate(set);
            let lacking = request(None);
            let decisions = gate.check(&lacking);
            assert_eq!(decisions.is_empty(), !applies, "{then:?}");
            assert_eq!(decisions.error().map(|error| error.to_string()), None, "{then:?}: it is decided");
            assert_eq!(decisions.is_denied(), denied, "{then:?}");
            assert!(
                decisions
                    .iter()
                    .all(|one| one.key().to_string() == key && one.key().missing() == Some("user"))
            );
            assert_eq!(gate.policies().skipped(&lacking).count(), skipped, "{then:?}");
            // Other requests, and those that the policy is not for, are not concerned.
            let whole = request(Some("*"));
            assert_eq!(gate.check(&whole).iter().next().unwrap().key().to_string(), "%2A,/x");
            assert_eq!(gate.policies().skipped(&whole).count(), 0);
            assert_eq!(gate.policies().skipped(&path("/y")).count(), 0);
            // A policy that is named is under the same rule, but is never left out silently.
            let named = lacking.clone().under("p");
            let decisions = gate.check(&named);
            assert_eq!(
                (decisions.error().is_some(), decisions.is_denied()),
                (!applies, !applies || denied),
                "{then:?}"
            );
        }
    }
    // The key of those that lack it is nobody else's.
    let gate = gate([policy("p").with_scope(["a", "b"]).with_on_missing(OnMissing::OneKey)]);
    let requests = [
        Request::new(),
        Request::new().with("a", "x"),
        Request::new().with("b", "x"),
        Request::new().with("a", "x").with("b", ""),
        Request::new().with("a", "").with("b", "x"),
        Request::new().with("a", "*").with("b", "x"),
    ];
    for request in &requests {
        assert_eq!(gate.check(request).strictest().unwrap().decision().used(), 1, "{request:?}");
    }
    // A shadow policy reports and denies nothing, and what costs nothing is allowed.
    let denying = policy("p").with_scope(["user"]).with_on_missing(OnMissing::Deny);
    let shadow = self::gate([denying.clone().with_enforced(false)]);
    assert!(shadow.check(&Request::new()).is_allowed());
    let gate = self::gate([denying]);
    assert!(gate.check(&Request::new().with_cost(0)).is_allowed());
    assert_eq!(gate.apply(&[Request::new().with_verb(Verb::Peek)]).strictest().unwrap().decision().used(), 0);
}

/// A partner with a network and a robot in it has agreements for both.
#[test]
fn the_longest_network_binds_and_a_key_of_its_own_more_than_any() {
    let network = |text: &str| -> Network { text.parse().unwrap() };
    let quota = Quota::per_minute;
    let exact: IpAddr = "10.1.2.3".parse().unwrap();
    let policy = policy("per-ip")
        .with_scope(["ip"])
        .with_override([network("10.0.0.0/8")], quota(8))
        .with_override([network("10.1.2.0/24")], quota(24))
        .with_override([network("10.1.0.0/16")], quota(16))
        .with_override([network("2001:db8::/32")], quota(32))
        .with_unlimited([network("192.0.2.0/24")])
        .with_override([network("192.0.2.128/25")], quota(25))
        .with_override([exact], quota(3))
        .with_unlimited(["203.0.113.9".parse::<IpAddr>().unwrap()]);
    let gate = gate([policy.clone()]);
    for (ip, limit) in [
        ("10.9.9.9", Some(8)),
        ("::ffff:10.9.9.8", Some(8)),
        ("10.1.9.9", Some(16)),
        ("10.1.2.9", Some(24)),
        ("10.1.2.3", Some(3)),
        ("11.0.0.1", Some(5)),
        ("2001:db8:7::1", Some(32)),
        ("2001:db9::1", Some(5)),
        ("192.0.2.1", None),
        ("192.0.2.129", Some(25)),
        ("203.0.113.9", None),
        ("203.0.113.8", Some(5)),
    ] {
        let ip: IpAddr = ip.parse().unwrap();
        let request = Request::new().with("ip", ip);
        assert_eq!(gate.peek(&request).strictest().map(|one| one.decision().limit()), limit, "{ip}");
        // Every key in a network counts by itself, up to that limit.
        let allowed = (0..40).take_while(|_| gate.check(&request).is_allowed()).count() as u64;
        assert_eq!(allowed, limit.unwrap_or(40), "{ip}");
    }
    let text = Request::new().with("ip", "10.9.9.9");
    assert_eq!(gate.peek(&text).strictest().unwrap().decision().limit(), 5, "text is no address");
    // An unlimited key that is blocked is blocked.
    let blocked =
        self::gate([policy.clone().with_block(["192.0.2.1".parse::<IpAddr>().unwrap()], Block::forever())]);
    let of = |ip: &str| Request::new().with("ip", ip.parse::<IpAddr>().unwrap());
    assert!(blocked.check(&of("192.0.2.1")).is_denied() && blocked.check(&of("192.0.2.2")).is_empty());
    // Taking the override of a key away leaves those of its networks.
    let left = self::gate([policy.without_override([exact])]);
    assert_eq!(left.peek(&of("10.1.2.3")).strictest().unwrap().decision().limit(), 24);
    // Beside other attributes.
    let both = self::policy("p")
        .with_scope(["user", "ip"])
        .with_override([slidegate::OverridePart::from("alice"), network("10.0.0.0/8").into()], quota(8));
    let both = self::gate([both]);
    let limit = |user, ip| both.peek(&of(ip).with("user", user)).strictest().unwrap().decision().limit();
    assert_eq!((limit("alice", "10.1.1.1"), limit("bob", "10.1.1.1"), limit("alice", "11.1.1.1")), (8, 5, 5));
}

/// An override that can never bind, or binds in two ways, is a mistake.
#[test]
fn networks_that_fit_no_key_are_refused() {
    let of = |network: &str| {
        policy("p")
            .with_scope(["ip"])
            .with_override([network.parse::<Network>().unwrap()], Quota::per_minute(1))
    };
    let error = |policy: Policy| PolicySet::new([policy]).unwrap_err().to_string();
    assert_eq!(
        error(of("2001:db8::/64")),
        "policy `p`: invalid override `2001:db8::/64`: the policy counts IPv6 addresses by their first 56 bits; write a \
         network of at most these, or a longer `ipv6_prefix`"
    );
    assert_eq!(
        error(of("10.0.0.0/8").with_unlimited(["10.9.9.9/8".parse::<Network>().unwrap()])),
        "policy `p`: duplicate override `10.0.0.0/8`: must be given once; remove one"
    );
}
