//! Running out of file descriptors.

use std::net::Shutdown;
use std::process::Command;

use crate::victim::{Protocol, Victim, until_closed};

/// Idle RESP clients under `ulimit -n 256` once took HTTP down.
#[test]
fn under_a_low_limit_of_descriptors_the_budget_shrinks_and_all_are_served() {
    let victim = Victim::start_with_descriptors("hostile-ulimit", 256);
    let max = victim.connections("/max");
    assert!((8..200).contains(&max), "{max}");
    assert_eq!(victim.connections("/descriptors/limit"), 256);
    assert!(victim.connections("/max_per_peer") < max);
    let idle: Vec<_> = (0..363).map(|_| victim.connect(Protocol::Resp)).collect();
    victim.assert_served();
    assert!(victim.descriptors() < 256, "{}", victim.descriptors());
    drop(idle);
    victim.assert_served();
}

/// When other parts of the process use up the descriptors, a waiting connection must neither hang
/// nor make the accept loop spin, and the service must recover.
#[test]
fn without_any_descriptor_connections_are_refused_until_there_are_some_again() {
    let victim = Victim::start_with_descriptors("hostile-emfile", 512);
    let limit = |descriptors: usize| {
        let (pid, limit) = (victim.server.pid().to_string(), format!("--nofile={descriptors}:512"));
        let set = Command::new("prlimit").args(["--pid", &pid, &limit]).status();
        assert!(set.expect("the Debian package `util-linux` is installed").success());
    };
    // The budget of connections, counted at the start, stays above what is left.
    limit(80);
    for protocol in Protocol::ALL {
        let mut refused: Vec<_> = (0..120).map(|_| victim.connect(protocol)).collect();
        for stream in &mut refused {
            // One that was let in ends with its client; one that still waits to be accepted does
            // not.
            let _ = stream.shutdown(Shutdown::Write);
            until_closed(stream);
        }
    }
    limit(512);
    victim.assert_served();
    assert!(victim.connections("/protocols/resp/refused") > 0);
}
