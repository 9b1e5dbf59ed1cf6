//! Layout: the very bytes that a release leaves in Redis, which the next one has to read.

use std::time::Duration;

use slidegate::{Algorithm, Policy, PolicySet, Quota, RedisOptions, Request, SharedGate};

use crate::support::server::{Conn, Reply, Server};

const NOW_US: u64 = 1_700_000_000_000_000;

/// Numbers and their widths, as docs/redis-layout.md lists them.
fn bytes(fields: &[(u64, usize)]) -> Vec<u8> {
    fields.iter().flat_map(|(number, width)| number.to_le_bytes()[..*width].to_vec()).collect()
}

fn stored(server: &Server, key: &str) -> Vec<u8> {
    let mut conn = Conn::tcp(server.port(), Duration::from_secs(10)).unwrap();
    match conn.call(&["GET", key]).unwrap() {
        Reply::Bytes(bytes) => bytes,
        other => panic!("{key} holds {other}"),
    }
}

/// A byte that moves unnoticed is a limit that is misread by every instance still running the release before.
#[test]
fn every_byte_is_where_the_documentation_says() {
    let server = Server::builder().with_clock().start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let policies = Algorithm::ALL.map(|algorithm| {
        let quota = Quota::per_minute(100).with_algorithm(algorithm);
        Policy::new(algorithm.name(), quota).unwrap().scope(["user"])
    });
    let options = RedisOptions::new(&server.url_as_user()).unwrap().deadline(Duration::from_secs(10));
    let gate = SharedGate::new(PolicySet::new(policies).unwrap(), options).unwrap();
    runtime.block_on(async {
        for (after_us, cost) in [(0, 1), (7, 300), (9, 2)] {
            server.clock().stand(NOW_US + after_us);
            let request = Request::new().with("user", "alice").cost(cost);
            let charged = if cost > 100 { gate.penalize(&request).await } else { gate.check(&request).await };
            assert_eq!(charged.is_allowed(), cost != 2, "{charged:?}");
            if cost == 2 {
                gate.penalize(&request).await;
            }
        }
    });
    let (window, end) = (60_000_000, NOW_US / 60_000_000 * 60_000_000 + 60_000_000);
    assert_eq!(
        stored(&server, "sg1:fixed-window:alice"),
        bytes(&[(0x11, 1), (window, 6), (end, 7), (303, 7)])
    );
    assert_eq!(
        stored(&server, "sg1:sliding-window:alice"),
        bytes(&[(0x12, 1), (window, 6), (end, 7), (0, 7), (303, 7)])
    );
    // 100 per minute drain 900 millionths of a minute's cost in 9 microseconds.
    assert_eq!(
        stored(&server, "sg1:token-bucket:alice"),
        bytes(&[(0x13, 1), (window, 6), (NOW_US + 9, 7), (302, 7), (window - 900, 6)])
    );
    let low = |stamp: u64| stamp % (1 << 32);
    let mut log = bytes(&[(0x14, 1), (0, 1), (303, 7), (NOW_US + 9, 7), (NOW_US, 7)]);
    // Stamps of 4 bytes and costs of 2; the first of two runs, with room for seven; the newest of cost 2.
    log.extend(bytes(&[(0x42, 1), (0, 2), (2, 2), (7, 2), (2, 7), (0, 6)]));
    let lives_until_s = (NOW_US + 9 + 2 * window + 4_000_000).div_ceil(1000) * 1000 / 1_000_000;
    log.extend(bytes(&[(lives_until_s, 5)]));
    log.extend(bytes(&[
        (low(NOW_US), 4),
        (1, 2),
        (low(NOW_US + 7), 4),
        (300, 2),
        (0, 6),
        (0, 6),
        (0, 6),
        (0, 6),
        (0, 6),
    ]));
    assert_eq!(stored(&server, "sg1:sliding-log:alice"), log);
    for algorithm in Algorithm::ALL {
        let lives: u64 = server.admin(&["PTTL", &format!("sg1:{algorithm}:alice")]).trim().parse().unwrap();
        let most = if algorithm == Algorithm::TokenBucket { 303 * 600 + 5000 } else { 125_000 };
        assert!(lives <= most && lives > 5000, "{algorithm} lives {lives} ms");
    }
}
