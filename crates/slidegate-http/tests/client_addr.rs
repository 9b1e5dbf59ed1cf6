//! Client addresses: who sent a request, whatever headers it came with and whichever proxies it
//! came through.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use slidegate::network::{Grouped, Ipv6Prefix};
use slidegate_http::client_addr::{
    ClientAddr, Found, MAX_ENTRIES, MAX_LINES, MAX_NETWORKS, Source, Trust, TrustedProxies,
};

const PROXY: &str = "10.0.0.1";
const STRANGER: &str = "198.51.100.9";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(bits: u8) -> Ipv6Prefix {
    Ipv6Prefix::new(bits).unwrap()
}

/// A rule that trusts 10.0.0.0/8.
fn trusting_ten(source: Source) -> ClientAddr {
    ClientAddr::new(source, Trust::Networks(TrustedProxies::new(["10.0.0.0/8"]).unwrap()))
}

fn single() -> Source {
    Source::Single("X-Real-IP".to_owned())
}

/// What `rule` makes of these lines of whichever header it reads: the address, empty for none, and
/// how it was found.
fn resolve<L: AsRef<[u8]>>(rule: &ClientAddr, peer: Option<&str>, lines: &[L]) -> (String, Found) {
    let headers = ["X-FORWARDED-FOR", "FORWARDED", "X-REAL-IP"]
        .into_iter()
        .flat_map(|name| lines.iter().map(move |line| (name, line.as_ref())));
    let other = [("host", &b"1.1.1.1"[..])];
    let resolved = rule.resolve(peer.map(ip), other.into_iter().chain(headers));
    (resolved.addr.map(|addr| addr.to_string()).unwrap_or_default(), resolved.found)
}

#[track_caller]
fn assert_client(source: Source, lines: &[&str], client: &str) {
    let resolved = resolve(&trusting_ten(source), Some(PROXY), lines);
    assert_eq!(resolved, (client.to_owned(), Found::Header), "{lines:?}");
}

#[track_caller]
fn assert_peer(source: Source, lines: &[&str], found: Found) {
    let resolved = resolve(&trusting_ten(source), Some(PROXY), lines);
    assert_eq!(resolved, (PROXY.to_owned(), found), "{lines:?}");
}

fn for_all<S: Strategy>(strategy: S, test: impl Fn(S::Value)) {
    let config = Config { failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::default());
    TestRunner::new_with_rng(config, rng)
        .run(&strategy, |value| {
            test(value);
            Ok(())
        })
        .unwrap();
}

/// A client that sends the header itself must not become somebody else.
#[test]
fn a_spoofed_leftmost_address_is_not_believed() {
    assert_client(Source::XForwardedFor, &["6.6.6.6, 203.0.113.7"], "203.0.113.7");
    assert_client(Source::XForwardedFor, &["6.6.6.6, 10.0.0.9, 203.0.113.7, 10.0.0.2"], "203.0.113.7");
    assert_client(Source::Forwarded, &["for=6.6.6.6, for=203.0.113.7, for=10.0.0.2"], "203.0.113.7");
}

/// Anyone can open a connection; only proxies may speak for others. The service warns on
/// `Untrusted`.
#[test]
fn a_header_from_an_untrusted_peer_is_not_read() {
    for source in [Source::XForwardedFor, single()] {
        let rule = trusting_ten(source);
        let is_stranger = |found| (STRANGER.to_owned(), found);
        assert_eq!(resolve(&rule, Some(STRANGER), &["203.0.113.7"]), is_stranger(Found::Untrusted));
        assert_eq!(resolve(&rule, Some(STRANGER), &[""; 0]), is_stranger(Found::Peer));
    }
    let nobody = ClientAddr::default();
    assert_eq!(resolve(&nobody, Some(PROXY), &["203.0.113.7"]), (PROXY.to_owned(), Found::Untrusted));
}

/// Proxies differ in whether they extend the line or add one; both are one list.
#[test]
fn several_lines_are_one_list() {
    assert_client(Source::XForwardedFor, &["6.6.6.6", "203.0.113.7", "10.0.0.3, 10.0.0.2"], "203.0.113.7");
    assert_client(Source::Forwarded, &["for=6.6.6.6", "for=203.0.113.7", "for=10.0.0.2"], "203.0.113.7");
    assert_client(Source::XForwardedFor, &["203.0.113.7", "", " , ,"], "203.0.113.7");
}

/// A request from inside has only proxies in its chain and still comes from one address.
#[test]
fn the_leftmost_is_the_client_when_all_are_trusted() {
    assert_client(Source::XForwardedFor, &["10.0.0.4, 10.0.0.3", "10.0.0.2"], "10.0.0.4");
    assert_client(Source::Forwarded, &["for=10.0.0.4", "for=10.0.0.2"], "10.0.0.4");
}

/// What stands left of a broken entry was written by nobody we know.
#[test]
fn a_malformed_entry_on_the_walk_gives_the_peer() {
    let broken = [
        "203.0.113.7, unknown, 10.0.0.2",
        "203.0.113.7 10.0.0.2",
        "010.0.0.1",
        "1.2.3",
        "1.2.3.4:",
        "1.2.3.4:123456",
        "1.2.3.4:8x",
        "[1.2.3.4]",
        "[2001:db8::1",
        "[2001:db8::1]80",
        "[2001:db8::1]:",
        "fe80::1%eth0",
        "\"",
        ":",
        "[",
        "::ffff:1.2.3.4.5",
        "example.com",
    ];
    for line in broken {
        assert_peer(Source::XForwardedFor, &[line], Found::Malformed);
    }
    assert_peer(single(), &["1.2.3.4, 5.6.7.8"], Found::Malformed);
    assert_eq!(resolve(&trusting_ten(single()), Some(PROXY), &[b"\xff\xfe"]).1, Found::Malformed);
    // Left of the client nothing is read, so nothing there can be broken.
    assert_client(Source::XForwardedFor, &["rubbish\", 203.0.113.7"], "203.0.113.7");
}

/// Health checks of the load balancer carry no header, and must not fail.
#[test]
fn an_absent_or_empty_header_gives_the_peer() {
    assert_peer(Source::XForwardedFor, &[], Found::Absent);
    assert_peer(Source::XForwardedFor, &[" , ", ""], Found::Absent);
    assert_peer(Source::Forwarded, &[], Found::Absent);
    assert_peer(single(), &[], Found::Absent);
}

/// Azure sends ports: a new port per connection was a new key per connection.
#[test]
fn ports_and_brackets_are_not_part_of_the_address() {
    let forms = [
        ("1.2.3.4:51234", "1.2.3.4"),
        ("  1.2.3.4\t", "1.2.3.4"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("[::ffff:1.2.3.4]:1", "1.2.3.4"),
    ];
    for (line, client) in forms {
        assert_client(Source::XForwardedFor, &[line], client);
        assert_client(single(), &[line], client);
        assert_client(Source::Forwarded, &[&format!("for=\"{}\"", line.trim())], client);
    }
}

/// RFC 7239 as proxies write it: any case, any order, quotes with commas and semicolons inside.
#[test]
fn forwarded_elements_are_read_as_the_standard_says() {
    let forms = [
        r#"For="[2001:db8:cafe::17]:4711""#,
        r#"proto=https;FOR="[2001:db8:cafe::17]";by=203.0.113.43"#,
        r#"for="[2001:db8:cafe::17]:_hidden-1";host="a,b;for=6.6.6.6""#,
        r#"for="\[2001:db8:cafe\:\:17]""#,
        r#"host="\"";for="[2001:db8:cafe::17]" ; proto=http;"#,
        r#"host="a,for=6.6.6.6;b\\\"";for="[2001:db8:cafe::17]""#,
        r#"for=6.6.6.6 , for="[2001:db8:cafe::17]";x="\\""#,
        "for=[2001:db8:cafe::17]:80",
    ];
    for line in forms {
        assert_client(Source::Forwarded, &[line], "2001:db8:cafe::17");
    }
}

/// A proxy that hides its client leaves nobody to count but the proxy.
#[test]
fn forwarded_without_an_address_gives_the_peer() {
    let long = format!("for=\"{}\"", "1".repeat(65));
    let forms = [
        "for=unknown",
        "for=_gazonk",
        r#"for="_gazonk:80""#,
        "proto=https",
        "for=",
        r#"for="""#,
        "for",
        ";",
        "for=1.2.3.4;for=5.6.7.8",
        r#"for="1.2.3.4"#,
        r#"for=1.2.3.4""#,
        r#"for="1.2.3.4"5"#,
        r#"for="1.2.3.4\""#,
        r#"for="1.2"3.4""#,
        "for=1.2.3.4;proto",
        &long,
    ];
    for line in forms {
        assert_peer(Source::Forwarded, &[line], Found::Malformed);
    }
}

/// With a fixed number of proxies their addresses may change at will.
#[test]
fn hops_count_from_the_right() {
    let rule = |hops| ClientAddr::new(Source::XForwardedFor, Trust::Hops(hops));
    let lines = ["6.6.6.6, 203.0.113.7", "not-read"];
    let resolved = |hops, lines: &[&str]| resolve(&rule(hops), Some(STRANGER), lines);
    let is_stranger = |found| (STRANGER.to_owned(), found);
    assert_eq!(resolved(2, &lines), ("203.0.113.7".to_owned(), Found::Header));
    assert_eq!(resolved(0, &lines), is_stranger(Found::Untrusted));
    assert_eq!(resolved(1, &lines), is_stranger(Found::Malformed));
    assert_eq!(resolved(4, &lines), is_stranger(Found::TooFew));
    assert_eq!(resolved(1, &[]), is_stranger(Found::Absent));
    let single = ClientAddr::new(single(), Trust::Hops(3));
    assert_eq!(resolve(&single, None, &["203.0.113.7"]), ("203.0.113.7".to_owned(), Found::Header));
}

/// Two contradicting headers identify no client.
#[test]
fn several_lines_of_a_single_address_header_give_the_peer() {
    assert_client(single(), &["203.0.113.7"], "203.0.113.7");
    assert_peer(single(), &["203.0.113.7", "203.0.113.7"], Found::TooMany);
}

/// A Unix socket has no address; that must be no error, and no free pass either.
#[test]
fn a_peer_without_an_address_is_believed_only_when_told_so() {
    let rule = |entries: &[&str]| {
        ClientAddr::new(Source::XForwardedFor, Trust::Networks(TrustedProxies::new(entries).unwrap()))
    };
    assert_eq!(resolve(&rule(&["private"]), None, &["203.0.113.7"]), (String::new(), Found::Untrusted));
    assert_eq!(resolve(&rule(&["private"]), None, &[""; 0]), (String::new(), Found::Peer));
    assert_eq!(resolve(&rule(&["unix"]), None, &["203.0.113.7"]), ("203.0.113.7".to_owned(), Found::Header));
    assert_eq!(resolve(&rule(&["unix"]), None, &["junk"]), (String::new(), Found::Malformed));
    assert_eq!(resolve(&rule(&["unix"]), Some(PROXY), &["203.0.113.7"]).1, Found::Untrusted);
}

/// The plain case costs nothing and reads nothing.
#[test]
fn the_peer_source_reads_no_header() {
    let rule = ClientAddr::new(Source::Peer, Trust::Hops(1));
    assert_eq!(resolve(&rule, Some("::ffff:1.2.3.4"), &["6.6.6.6"]), ("1.2.3.4".to_owned(), Found::Peer));
}

/// A header of a thousand lines or entries must cost no more than a long one, and never give a
/// wrong client.
#[test]
fn a_huge_header_is_read_to_its_bound_only() {
    let trusted = vec!["10.0.0.2"; MAX_LINES];
    assert_client(Source::XForwardedFor, &trusted, "10.0.0.2");
    assert_peer(Source::XForwardedFor, &[&["10.0.0.2"], &trusted[..]].concat(), Found::TooMany);
    assert_client(Source::XForwardedFor, &[&["6.6.6.6"; 1000], &["203.0.113.7"][..]].concat(), "203.0.113.7");

    let entries = |count| vec!["10.0.0.2"; count].join(",");
    assert_client(Source::XForwardedFor, &[&entries(MAX_ENTRIES)], "10.0.0.2");
    assert_peer(Source::XForwardedFor, &[&entries(MAX_ENTRIES + 1)], Found::TooMany);
    assert_peer(Source::XForwardedFor, &[&",".repeat(100_000)], Found::TooMany);
    assert_client(Source::XForwardedFor, &[&(",".repeat(100_000) + "203.0.113.7")], "203.0.113.7");
    assert_peer(Source::XForwardedFor, &[&"1".repeat(100_000)], Found::Malformed);
    let most = ClientAddr::new(Source::XForwardedFor, Trust::Hops(u8::MAX));
    assert_eq!(resolve(&most, None, &[entries(255)]).1, Found::Header);
}

/// The trust rests on this: whatever a client sends, what a proxy appends reads the same.
#[test]
fn no_bytes_of_a_client_change_what_a_proxy_appended() {
    let byte = prop_oneof![Just(b'"'), Just(b'\\'), Just(b','), Just(b';'), Just(b'='), any::<u8>()];
    for_all((vec(vec(byte, 0..24), 1..20), any::<bool>()), |(sent, own_line)| {
        let appended = [
            (Source::XForwardedFor, "2001:db8::7, 10.0.0.2"),
            (Source::Forwarded, r#"for="[2001:db8::7]:1";host="a,\";for=6.6.6.6\\", for=10.0.0.2"#),
        ];
        for (source, right) in appended {
            let mut lines = sent.clone();
            if own_line {
                lines.push(right.into());
            } else if let Some(last) = lines.last_mut() {
                last.extend([b", ", right.as_bytes()].concat());
            }
            let client = ("2001:db8::7".to_owned(), Found::Header);
            assert_eq!(resolve(&trusting_ten(source), Some(PROXY), &lines), client);
        }
    });
}

/// Headers are the enemy's to write: any bytes must give an answer, and what is not in the header
/// is the peer's.
#[test]
fn random_bytes_never_panic() {
    let piece = prop_oneof![
        Just(b"10.0.0.2".to_vec()),
        Just(b"for=".to_vec()),
        Just(b"[2001:db8::1]:4".to_vec()),
        Just(b", ".to_vec()),
        Just(b";".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"\\".to_vec()),
        vec(any::<u8>(), 0..6),
    ];
    let line = vec(piece, 0..12).prop_map(|pieces| pieces.concat());
    for_all((vec(line, 0..20), any::<u8>()), |(lines, hops)| {
        for source in [Source::XForwardedFor, Source::Forwarded, single()] {
            for rule in [trusting_ten(source.clone()), ClientAddr::new(source.clone(), Trust::Hops(hops))] {
                let (client, found) = resolve(&rule, Some(PROXY), &lines);
                assert!(found == Found::Header || client == PROXY);
            }
        }
    });
}

/// The walk without collecting gives what the obvious one gives.
#[test]
fn the_walk_agrees_with_the_rule_written_plainly() {
    let entry = prop_oneof![
        4 => Just("10.0.0.2"),
        2 => Just("10.9.9.9:80"),
        1 => Just("203.0.113.7"),
        1 => Just("[2001:db8::1]:9"),
        1 => Just("?"),
        1 => Just(" "),
    ];
    for_all(vec(vec(entry, 1..5), 1..6), |lines| {
        let entries: Vec<_> = lines.iter().flatten().filter(|entry| **entry != " ").collect();
        let client = match entries.iter().rposition(|entry| !entry.starts_with("10.")) {
            _ if entries.is_empty() => (PROXY, Found::Absent),
            Some(at) if *entries[at] == "?" => (PROXY, Found::Malformed),
            Some(at) if *entries[at] == "203.0.113.7" => ("203.0.113.7", Found::Header),
            Some(_) => ("2001:db8::1", Found::Header),
            None => (entries[0].trim_end_matches(":80"), Found::Header),
        };
        let lines: Vec<_> = lines.iter().map(|entries| entries.join(",")).collect();
        let resolved = resolve(&trusting_ten(Source::XForwardedFor), Some(PROXY), &lines);
        assert_eq!(resolved, (client.0.to_owned(), client.1));
    });
}

/// Dual-stack sockets show IPv4 proxies as mapped addresses; a list that misses them trusts nobody,
/// silently.
#[test]
fn mapped_addresses_and_networks_are_ipv4() {
    let rule = trusting_ten(Source::XForwardedFor);
    let client = ("203.0.113.7".to_owned(), Found::Header);
    assert_eq!(resolve(&rule, Some("::ffff:10.0.0.1"), &["::ffff:203.0.113.7, ::ffff:a00:2"]), client);
    let mapped = TrustedProxies::new(["::ffff:10.0.0.0/104", "::ffff:192.0.2.1"]).unwrap();
    assert!(mapped.contains(ip("10.1.2.3")) && mapped.contains(ip("192.0.2.1")));
    assert!(!mapped.contains(ip("11.1.2.3")) && !mapped.contains(ip("192.0.2.2")));
}

/// A translated client could embed any IPv4 address; it must not become a proxy by that.
#[test]
fn a_nat64_address_is_not_the_proxy_it_embeds() {
    let proxies = TrustedProxies::new(["10.0.0.0/8"]).unwrap();
    assert!(!proxies.contains(ip("64:ff9b::10.0.0.1")));
    assert!(TrustedProxies::new(["64:ff9b::/96"]).unwrap().contains(ip("64:ff9b::10.0.0.1")));
}

/// The words are what most configurations will say; each range in them is a promise.
#[test]
fn words_stand_for_their_networks() {
    let private = TrustedProxies::new([" private "]).unwrap();
    for addr in
        ["10.0.0.1", "172.31.255.255", "192.168.0.1", "fd00::1", "169.254.1.1", "fe80::1", "127.0.0.1", "::1"]
    {
        assert!(private.contains(ip(addr)), "{addr}");
    }
    for addr in ["172.32.0.0", "203.0.113.7", "2001:db8::1", "100.64.0.1", "::"] {
        assert!(!private.contains(ip(addr)), "{addr}");
    }
    let loopback = TrustedProxies::new(["loopback"]).unwrap();
    assert!(
        loopback.contains(ip("127.0.0.53"))
            && loopback.contains(ip("::1"))
            && !loopback.contains(ip("10.0.0.1"))
    );
}

/// A list that trusts the world hands every client its own choice of address.
#[test]
fn a_list_that_trusts_everyone_says_so() {
    let trusts_everyone = |entry| TrustedProxies::new([entry]).unwrap().trusts_everyone();
    assert!(trusts_everyone("0.0.0.0/0") && trusts_everyone("::/0") && trusts_everyone("::ffff:0:0/96"));
    assert!(!trusts_everyone("0.0.0.0") && !trusts_everyone("private"));
}

/// Who mistypes a network must read which one and what to write.
#[test]
fn errors_name_the_value_and_the_way_out() {
    let proxies = |entry| TrustedProxies::new([entry]).unwrap_err().to_string();
    for entry in ["10.0.0/8", "10.0.0.0/33", "", "privat", "10.0.0.1:80", "a\\nb"] {
        let expected = "must be an address or a network, for example `10.0.0.0/8`";
        assert_eq!(proxies(entry), format!("invalid trusted proxy `{}`: {expected}", entry.escape_debug()));
    }
    assert_eq!(
        TrustedProxies::new(vec!["10.0.0.0/8"; MAX_NETWORKS + 1]).unwrap_err().to_string(),
        "too many trusted proxy networks: 1025, must be at most 1024; join them into wider ones"
    );
    assert_eq!(
        "X-Real-IP:".parse::<Source>().unwrap_err().to_string(),
        "invalid client address source `X-Real-IP:`: must be `peer` or a header name, for example `x-forwarded-for`"
    );
    for bits in [0, 31, 129, 255] {
        let error = format!("invalid IPv6 prefix length {bits}: must be 32 to 128, for example 56");
        assert_eq!(Ipv6Prefix::new(bits).unwrap_err().to_string(), error);
    }
}

/// A configuration names the source in text.
#[test]
fn a_source_parses_from_its_name_in_any_case() {
    assert_eq!("Peer".parse(), Ok(Source::Peer));
    assert_eq!("FORWARDED".parse(), Ok(Source::Forwarded));
    assert_eq!("X-Forwarded-For".parse(), Ok(Source::XForwardedFor));
    assert_eq!("X-Real-IP".parse(), Ok(single()));
    assert!("".parse::<Source>().is_err() && "x real".parse::<Source>().is_err());
}

/// One client, one key: spelling must not multiply keys, nor the prefix merge what it should not.
#[test]
fn groups_are_decided_by_bits() {
    let text = |addr, bits| Grouped(ip(addr), prefix(bits)).to_string();
    for same in ["::ffff:1.2.3.4", "::ffff:102:304", "1.2.3.4", "0:0:0:0:0:ffff:102:304"] {
        assert_eq!(text(same, 56), "1.2.3.4");
    }
    assert_eq!(text("2001:db8:1234:5678::1.2.3.4", 56), "2001:db8:1234:5600::/56");
    assert_eq!(text("0123:4567:89ab:cdef:0123:4567:89ab:cdef", 63), "123:4567:89ab:cdee::/63");
    assert_eq!(text("0123:4567:89ab:cdef:0123:4567:89ab:cdef", 128), "123:4567:89ab:cdef:123:4567:89ab:cdef");
    assert_eq!(text("2001:db8:ffff::1", 32), "2001:db8::/32");
    assert_eq!(text("::1.2.3.4", 128), "::102:304", "deprecated compatible addresses are not mapped ones");
    assert_eq!((Ipv6Prefix::default(), Ipv6Prefix::OFF), (prefix(56), prefix(128)));
    assert_eq!(prefix(64).bits(), 64);
}

/// Cut to 56 bits, the whole IPv4 internet behind NAT64 would be one key.
#[test]
fn nat64_clients_are_told_apart() {
    let text = |addr| Grouped(ip(addr), Ipv6Prefix::default()).to_string();
    assert_eq!(text("64:ff9b::1.2.3.4"), "1.2.3.4");
    assert_eq!(text("64:ff9b::1.2.3.5"), "1.2.3.5");
    assert_eq!(text("64:ff9b:1::1.2.3.4"), "64:ff9b:1::/56", "RFC 8215 leaves open where the address is");
    assert_client(Source::XForwardedFor, &["64:ff9b::203.0.113.7"], "203.0.113.7");
}
