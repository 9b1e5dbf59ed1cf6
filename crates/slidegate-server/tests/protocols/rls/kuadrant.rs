//! Kuadrant's service, with a client that Google's protoc generates from the definition in `proto/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use slidegate_testkit::TempDir;
use slidegate_testkit::process::command;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{self, Server, installed, text};

use super::client::grpc_url;

const OURS: &str = "kuadrant/service/ratelimit/v1/ratelimit.proto";

/// Generates the client and the descriptors of our definition.
const GENERATE: &str = "
import os, sys
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
envoy, proto, ours, out = sys.argv[1:]
known = descriptor_pb2.FileDescriptorSet.FromString(open(envoy, 'rb').read())
names = [file.name for file in known.file if not file.name.startswith('google/protobuf/')]
common = ['', '--descriptor_set_in=' + envoy, '-I' + proto]
assert protoc.main(common + ['--python_out=' + out, '--grpc_python_out=' + out] + names + [ours]) == 0
assert protoc.main(common + ['--descriptor_set_out=' + out + '/kuadrant.binpb', ours]) == 0
# The wheel of Envoy has a package named envoy too, which would be found before a folder without this.
for folder, _, _ in os.walk(out):
    if folder != out:
        open(folder + '/__init__.py', 'w').close()
";

/// What every script begins with.
const PRELUDE: &str = "
import sys, time
generated, address, token = sys.argv[1:]
sys.path.insert(0, generated)
import grpc
from google.protobuf.duration_pb2 import Duration
from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from kuadrant.service.ratelimit.v1.ratelimit_pb2 import ReserveRequest, CommitRequest
from kuadrant.service.ratelimit.v1.ratelimit_pb2_grpc import RateLimitServiceStub

OK, OVER, UNKNOWN = (RateLimitResponse.Code.Value(name) for name in ('OK', 'OVER_LIMIT', 'UNKNOWN'))
stub = RateLimitServiceStub(grpc.insecure_channel(address))
headers = [('authorization', 'Bearer ' + token)] if token else []

def descriptors(entries):
    one = lambda key, value: RateLimitDescriptor.Entry(key=key, value=value)
    return [RateLimitDescriptor(entries=[one(*pair)]) for pair in entries]

def call(method, message):
    return getattr(stub, method)(message, timeout=20, metadata=headers)

def hits(method, entries, addend=0, domain='web'):
    message = RateLimitRequest(domain=domain, descriptors=descriptors(entries), hits_addend=addend)
    return call(method, message)

def check(*entries, addend=0):
    return hits('CheckRateLimit', entries, addend).overall_code

def report(*entries, addend=0):
    return hits('Report', entries, addend).overall_code

def reserve(*entries, amount=0, ttl=None, domain='web'):
    ttl = None if ttl is None else Duration(nanos=round(ttl % 1 * 1e9), seconds=int(ttl // 1))
    return call('Reserve', ReserveRequest(domain=domain, descriptors=descriptors(entries), amount=amount, ttl=ttl))

def commit(ticket, amount, *entries, domain='web'):
    message = CommitRequest(
        domain=domain, descriptors=descriptors(entries), reservation_id=ticket, actual_amount=amount)
    return call('Commit', message).reservation_released

def refusal(run):
    try:
        run()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError('it was not refused')

def until(what, holds):
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError(what)

alice = ('user', 'alice')
";

fn crate_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn python() -> Command {
    command(installed("python/bin/python"))
}

/// The folder of the generated client.
fn generated() -> &'static str {
    // Made once and kept: a static is not dropped.
    const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/kuadrant-generated");
    static GENERATED: LazyLock<()> = LazyLock::new(|| {
        std::fs::create_dir_all(FOLDER).unwrap();
        let mut command = python();
        command.args(["-c", GENERATE]).arg(crate_folder().join("src/grpc/descriptors.binpb"));
        let output = command.arg(crate_folder().join("proto")).args([OURS, FOLDER]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    });
    LazyLock::force(&GENERATED);
    FOLDER
}

/// Runs a script of the generated client against a server.
fn run_with(server: &Server, token: &str, script: &str) {
    let address = grpc_url(server);
    let address = address.strip_prefix("http://").unwrap();
    let script = format!("{PRELUDE}{script}");
    let output = python().args(["-c", &script, generated(), address, token]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn run(server: &Server, script: &str) {
    run_with(server, "", script);
}

/// A server with this config, in memory or over this Redis.
fn serve(folder: &TempDir, config: &str, redis: Option<&RedisServer>, args: &[&str]) -> Server {
    // The default deadline of 50 ms is short for a busy machine.
    let store = redis
        .map_or_else(String::new, |redis| format!("store: {{redis: '{}', deadline: 10s}}\n", redis.url()));
    let file = folder.file("slidegate.yaml", format!("{store}{config}"));
    Server::start(&[&["--grpc", "127.0.0.1:0", "--config", &file], args].concat())
}

/// Both kinds of store.
fn stores() -> [Option<RedisServer>; 2] {
    [None, Some(RedisServer::start())]
}

const TOKENS: &str = "policies: [{name: tokens, scope: [user], quota: 100/1h, estimate: 40}]\n";

/// Tools without our files, and the gateway itself, must see what the definition says.
#[test]
fn the_descriptors_are_those_of_the_definition() {
    let fresh = std::fs::read(Path::new(generated()).join("kuadrant.binpb")).unwrap();
    let ours = std::fs::read(crate_folder().join("src/grpc/kuadrant.binpb")).unwrap();
    assert!(
        fresh == ours,
        "run in crates/slidegate-server: protoc --descriptor_set_in=src/grpc/descriptors.binpb -Iproto \
         --descriptor_set_out=src/grpc/kuadrant.binpb {OURS}"
    );
}

/// A gateway that gets no response commits again; its users must not pay for that.
#[test]
fn a_commit_that_is_retried_three_times_charges_once() {
    for redis in &stores() {
        let folder = TempDir::new("kuadrant-commit");
        let server = serve(&folder, TOKENS, redis.as_ref(), &[]);
        run(
            &server,
            "
held = reserve(alice, amount=60)
assert held.code == OK and held.reservation_id, held
denied = reserve(alice, amount=50)
assert (denied.code, denied.reservation_id) == (OVER, ''), denied
assert commit(held.reservation_id, 20, alice) is True
for _ in range(3):
    assert commit(held.reservation_id, 20, alice) is False
rest = reserve(alice, amount=80)
assert rest.code == OK, rest
assert reserve(alice, amount=1).code == OVER
# The true cost counts, also where it is above what was held.
assert commit(rest.reservation_id, 95, alice) is True
assert check(alice) == OVER
assert check(('user', 'bob')) == OK
",
        );
        let key = server.get("/v1/keys/tokens/alice").json();
        assert_eq!((&key["used"], &key["held"]), (&115.into(), &0.into()), "{key}");
        let metrics = server.get("/metrics").body;
        for line in [
            r#"slidegate_reservations_total{policy="tokens",outcome="reserved"} 2"#,
            r#"slidegate_reservations_total{policy="tokens",outcome="settled"} 2"#,
            r#"slidegate_reservations_total{policy="tokens",outcome="already_settled"} 3"#,
        ] {
            assert!(metrics.contains(line), "{line} is not in {metrics}");
        }
    }
}

/// A hold that was shortened, or a ticket that was ignored, would limit nothing without a word.
#[test]
fn what_cannot_be_reserved_or_committed_is_refused_with_the_reason() {
    let folder = TempDir::new("kuadrant-refused");
    let server = serve(&folder, TOKENS, None, &[]);
    run(
        &server,
        r#"
much = 'extend the hold, or settle it in parts, if the request takes longer'
assert refusal(lambda: reserve(alice, amount=1, ttl=3600.5)) == (
    'INVALID_ARGUMENT', f'invalid ttl `3600.5s`: must be 1ms to 1h; {much}')
assert refusal(lambda: reserve(alice, amount=1, ttl=0)) == (
    'INVALID_ARGUMENT', f'invalid ttl `0s`: must be 1ms to 1h; {much}')
assert refusal(lambda: reserve(alice, amount=1, ttl=-5)) == (
    'INVALID_ARGUMENT', 'invalid ttl of -5 seconds and 0 nanoseconds: must be 1ms to 1h')
assert reserve(alice, amount=1, ttl=3600).code == OK
assert refusal(lambda: commit('42', 1, alice)) == (
    'INVALID_ARGUMENT',
    'reservation_id: invalid ticket `42`: must be the text that a reservation returned, unchanged')
held = reserve(alice, amount=1).reservation_id
for at in range(0, len(held), 3):
    forged = held[:at] + ('B' if held[at] == 'A' else 'A') + held[at + 1:]
    assert refusal(lambda: commit(forged, 1, alice))[0] in ('INVALID_ARGUMENT', 'NOT_FOUND'), at
assert refusal(lambda: commit(held, 2**53, alice)) == (
    'INVALID_ARGUMENT', 'invalid actual_amount `9007199254740992`: must be at most 9007199254740991')
assert refusal(lambda: reserve(amount=1)) == (
    'INVALID_ARGUMENT', 'rate limit descriptor list must not be empty')
assert refusal(lambda: call('Reserve', ReserveRequest(domain='web', descriptors=[
    RateLimitDescriptor(limit=RateLimitDescriptor.RateLimitOverride(requests_per_unit=1, unit=2))]))) == (
    'INVALID_ARGUMENT', 'descriptors[0]: cost is held under configured limits only; leave `limit` out')
# As from Limitador.
for method in ('CheckRateLimit', 'Report'):
    assert hits(method, [alice], domain='').overall_code == UNKNOWN
assert reserve(alice, amount=1, domain='').code == UNKNOWN
assert commit(held, 1, alice, domain='') is False
assert commit(held, 1, alice) is True
"#,
    );
}

/// Token limits of gateways without reservations: a check before, a report after.
#[test]
fn a_check_charges_nothing_and_a_report_denies_nothing() {
    for redis in &stores() {
        let folder = TempDir::new("kuadrant-report");
        let server = serve(&folder, TOKENS, redis.as_ref(), &[]);
        run(
            &server,
            "
for _ in range(3):
    # One hit is asked for, whatever the call says.
    assert check(alice, addend=1000) == OK
assert report(alice) == OK
assert report(alice, addend=98) == OK
assert check(alice) == OK
# Without a reservation, a commit is a report.
assert commit('', 30, alice) is False
assert check(alice) == OVER
assert report(alice, addend=71) == OK
denied = hits('CheckRateLimit', [alice])
assert [status.code for status in denied.statuses] == [OVER]
",
        );
        let key = server.get("/v1/keys/tokens/alice").json();
        assert_eq!(key["used"], 200, "{key}");
    }
}

/// A gateway that crashes must not use up its users' limits, unless their operator says so.
#[test]
fn a_reservation_that_is_not_committed_is_dropped_unless_the_policy_says_otherwise() {
    for redis in &stores() {
        let folder = TempDir::new("kuadrant-lost");
        let policies = "policies:
- {name: drops, when: {kind: drops}, scope: [kind], quota: 100/1h, estimate: 250}
- {name: keeps, when: {kind: keeps}, scope: [kind], quota: 100/1h, unsettled: charge}
";
        let server = serve(&folder, policies, redis.as_ref(), &[]);
        run(
            &server,
            "
drops, keeps = ('kind', 'drops'), ('kind', 'keeps')
assert reserve(keeps, amount=100, ttl=0.001).code == OK
# No amount: the estimate, lowered to the limit.
lost = reserve(drops, ttl=0.001)
assert lost.code == OK
until('the hold ends', lambda: check(drops) == OK)
assert check(keeps) == OVER
# A late commit is charged, once.
assert commit(lost.reservation_id, 60, drops) is False
assert commit(lost.reservation_id, 60, drops) is False
assert reserve(drops, amount=41).code == OVER
assert reserve(drops, amount=40).code == OK
",
        );
    }
}

/// Kuadrant's limits are matched as those of Envoy's calls are: one full limit must hold nothing on
/// the others.
#[test]
fn descriptors_are_matched_against_the_same_files_and_reserved_together() {
    const FILES: &str = "
domain: web
descriptors:
- key: user
  metadata: {slidegate: {estimate: 30, unsettled: charge}}
  rate_limit: {unit: hour, requests_per_unit: 100}
- key: model
  rate_limit: {unit: hour, requests_per_unit: 50}
- {key: free, rate_limit: {unlimited: true}}
";
    for redis in &stores() {
        let (folder, rules) = (TempDir::new("kuadrant-files"), TempDir::new("kuadrant-rules"));
        rules.file("web.yaml", FILES);
        let server = serve(&folder, "", redis.as_ref(), &["--envoy-config", rules.as_str()]);
        run(
            &server,
            "
model, other = ('model', 'small'), ('model', 'large')
both = reserve(alice, model, amount=40)
assert both.code == OK
assert reserve(alice, model, amount=11).code == OVER
# Nothing was held under the limit that had room.
assert reserve(alice, amount=60).code == OK
assert commit(both.reservation_id, 5, alice, model) is True
assert commit(both.reservation_id, 5, alice, model) is False
assert reserve(model, amount=46).code == OVER
assert reserve(model, amount=45).code == OK
# The same limit twice is held and charged once.
twice = reserve(other, other, amount=50)
assert twice.code == OK
assert commit(twice.reservation_id, 50, other, other) is True
assert check(other) == OVER
# The estimate of the file.
bob = ('user', 'bob')
assert [reserve(bob).code for _ in range(4)] == [OK, OK, OK, OVER]
# What is not limited has nothing to commit.
for free in [('free', 'x'), ('unknown', 'x')]:
    nothing = reserve(free, amount=10)
    assert (nothing.code, nothing.reservation_id) == (OK, ''), nothing
    assert commit('', 10, free) is False
",
        );
        let metrics = server.get("/metrics").body;
        let denied = metrics.lines().find(|line| line.contains("model") && line.contains("over_limit"));
        assert!(denied.is_some(), "denials are in the statistics: {metrics}");
    }
}

/// A client without the right to decide must not be able to reserve, or to charge other clients' keys.
#[test]
fn every_call_needs_the_token_that_decisions_need() {
    let folder = TempDir::new("kuadrant-token");
    let created = service::run(&["token", "new", "--name", "gateway", "--scope", "decide"]);
    let created = text(&created.stdout);
    let after = |word: &str| {
        let line = created.lines().find_map(|line| line.strip_prefix(word));
        line.unwrap_or_else(|| panic!("no {word}: {created}")).trim()
    };
    let token = after("token");
    let admin = after("configuration").replacen("{", "{decisions: token, ", 1);
    let config = format!("{admin}\n{TOKENS}");
    let server = serve(&folder, &config, None, &[]);
    run(
        &server,
        "
for run in [
    lambda: check(alice), lambda: report(alice), lambda: reserve(alice, amount=1), lambda: commit('', 1, alice)]:
    assert refusal(run)[0] == 'UNAUTHENTICATED', refusal(run)
",
    );
    run_with(&server, token, "assert reserve(alice, amount=1).code == OK");
}
