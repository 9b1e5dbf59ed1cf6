//! Client addresses: nothing that a client sends changes what its proxies appended.

#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use slidegate::network::canonical;
use slidegate_http::client_addr::{ClientAddr, Found, Source, Trust, TrustedProxies};

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    /// What the client sent, in one or several lines.
    sent: Vec<&'a [u8]>,
    /// What each proxy appended: the address that it saw.
    seen: Vec<Seen>,
    hops: Option<u8>,
    is_forwarded: bool,
}

#[derive(Debug, Arbitrary)]
struct Seen {
    address: Address,
    port: Option<u16>,
    on_new_line: bool,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Address {
    /// Of a network that is trusted.
    Proxy(u8),
    V4([u8; 4]),
    V6([u8; 16]),
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        match address {
            Address::Proxy(host) => Ipv4Addr::new(10, 0, 0, host).into(),
            Address::V4(octets) => Ipv4Addr::from(octets).into(),
            Address::V6(octets) => Ipv6Addr::from(octets).into(),
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let proxies = TrustedProxies::new(["10.0.0.0/24"]).unwrap();
    let trust = match input.hops {
        Some(hops) => Trust::Hops(hops),
        None => Trust::Networks(proxies.clone()),
    };
    let (source, header) = if input.is_forwarded {
        (Source::Forwarded, "Forwarded")
    } else {
        (Source::XForwardedFor, "X-Forwarded-For")
    };
    let rule = ClientAddr::new(source, trust);
    let peer = Some(IpAddr::from([10, 0, 0, 1]));

    let raw = input.sent.iter().map(|line| (header, *line));
    let alone = rule.resolve(peer, raw);
    assert_eq!(alone.addr, alone.addr.map(canonical));
    let single = ClientAddr::new(Source::Single(header.into()), Trust::Hops(1));
    let _ = single.resolve(peer, input.sent.iter().map(|line| (header, *line)));

    // The same with what proxies append: the first few of them, as real chains are short.
    let mut lines: Vec<Vec<u8>> = input.sent.iter().take(8).map(|line| line.to_vec()).collect();
    let seen = &input.seen[..input.seen.len().min(8)];
    for one in seen {
        let entry = written(one, input.is_forwarded);
        match lines.last_mut().filter(|_| !one.on_new_line) {
            Some(line) => {
                line.extend_from_slice(b", ");
                line.extend_from_slice(entry.as_bytes());
            }
            None => lines.push(entry.into_bytes()),
        }
    }
    let found = rule.resolve(peer, lines.iter().map(|line| (header, &line[..])));
    let addresses: Vec<IpAddr> = seen.iter().map(|one| one.address.into()).collect();
    let expected = match input.hops {
        Some(0) => None,
        Some(hops) => addresses.iter().rev().nth(usize::from(hops) - 1),
        None => addresses.iter().rev().find(|address| !proxies.contains(**address)),
    };
    if let Some(expected) = expected {
        assert_eq!((found.addr, found.found), (Some(canonical(*expected)), Found::Header));
    }
});

fn written(seen: &Seen, is_forwarded: bool) -> String {
    let address = IpAddr::from(seen.address);
    let node = match (address, seen.port) {
        (IpAddr::V4(address), Some(port)) => format!("{address}:{port}"),
        (IpAddr::V6(address), Some(port)) => format!("[{address}]:{port}"),
        (IpAddr::V6(address), None) if is_forwarded => format!("[{address}]"),
        (address, None) => address.to_string(),
    };
    if is_forwarded { format!("for=\"{node}\";proto=https") } else { node }
}
