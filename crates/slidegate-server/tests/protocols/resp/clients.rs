//! Clients that people have: redis-cli, redis-benchmark, redis-py, ioredis.

use slidegate_testkit::TempDir;
use slidegate_testkit::process::command;
use slidegate_testkit::service::{installed, text};

use super::{cli, client, port, serve, succeed};

/// The client at everyone's hand, in both versions of the protocol.
#[test]
fn redis_cli_and_redis_benchmark_are_served() {
    let folder = TempDir::new("resp-cli");
    let server = serve(&folder, "");
    assert_eq!(cli(&server, &["RL.CHECK", "per-user", "alice"]), "1\n5\n4\n0\n3600000\nstore\n\n");
    let named = cli(&server, &["-3", "RL.CHECK", "per-user", "bob"]);
    assert!(
        named.starts_with("allowed true\nlimit 5\nremaining 4\n") || named.contains("remaining"),
        "{named}"
    );
    assert_eq!(cli(&server, &["CL.THROTTLE", "user123", "15", "30", "60"]), "0\n16\n15\n-1\n2\n");
    assert_eq!(cli(&server, &["COMMAND", "COUNT"]), "26\n");
    assert!(
        cli(&server, &["COMMAND", "DOCS", "rl.check"])
            .contains("Checks one policy; takes one key per attribute of its scope.")
    );
    assert!(cli(&server, &["INFO", "replication"]).contains("role:master"));
    let benchmark = client("redis-benchmark", "redis-tools")
        .args(["-p", port(&server), "-n", "2000", "-c", "10", "-P", "16", "-r", "1000", "-q"])
        .args(["RL.CHECK", "per-user", "key:__rand_int__"])
        .output()
        .unwrap();
    let report = succeed(&benchmark);
    assert!(
        report.contains("requests per second") && !text(&benchmark.stderr).contains("Error from server"),
        "{report}"
    );
}

/// The client of most Python programs, as they use it.
#[test]
fn redis_py_is_served() {
    let folder = TempDir::new("resp-python");
    let server = serve(&folder, "  password: sesame\n");
    let script = "
import redis, sys
port = int(sys.argv[1])
for protocol in (2, 3):
    client = redis.Redis('127.0.0.1', port, password='sesame', protocol=protocol, client_name='tests', health_check_interval=1)
    assert client.ping()
    key = f'alice{protocol}'
    answer = client.execute_command('RL.CHECK', 'per-user', key)
    if protocol == 2:
        assert answer in ([1, 5, 4, 0, 3600000, b'store', None], [1, 5, 4, 0, 3600000, 'store', None]), answer
    else:
        answer = {k.decode(): v for k, v in answer.items()}
        assert answer['allowed'] is True and answer['remaining'] == 4, answer
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(6):
            pipeline.execute_command('CL.THROTTLE', key, 3, 1, 3600)
        answers = pipeline.execute()
    assert [answer[0] for answer in answers] == [0, 0, 0, 0, 1, 1], answers
    # The default pipeline is a transaction.
    with client.pipeline() as pipeline:
        for _ in range(6):
            pipeline.execute_command('CL.THROTTLE', key + 'tx', 3, 1, 3600)
        pipeline.echo('x')
        answers = pipeline.execute()
    assert [answer[0] for answer in answers[:6]] == [0, 0, 0, 0, 1, 1], answers
    assert answers[6] in ('x', b'x'), answers
    # What is refused when it is queued charges nothing.
    with client.pipeline() as pipeline:
        pipeline.execute_command('CL.THROTTLE', key + 'ab', 0, 1, 3600)
        pipeline.execute_command('INCR', 'counter')
        try:
            pipeline.execute()
            raise SystemExit('an unknown command passed')
        except redis.ResponseError as error:
            assert 'INCR' in str(error), error
    assert client.execute_command('CL.THROTTLE', key + 'ab', 0, 1, 3600)[0] == 0
    # An error of one command is its own, and the others are carried out.
    with client.pipeline() as pipeline:
        pipeline.execute_command('RL.CHECK', 'nobody', 'x')
        pipeline.execute_command('CL.THROTTLE', key + 'ab', 0, 1, 3600)
        answers = pipeline.execute(raise_on_error=False)
    assert isinstance(answers[0], redis.ResponseError) and answers[1][0] == 1, answers
    with client.pipeline() as pipeline:
        try:
            pipeline.watch('x')
            raise SystemExit('a key was watched')
        except redis.ResponseError as error:
            assert 'RL.REQUEST' in str(error), error
    assert client.client_getname() in ('tests', b'tests')
    assert client.client_id() > 0
    assert client.info('replication')['role'] == 'master'
    assert client.echo(b'\\0\\xff') == b'\\0\\xff'
    try:
        client.execute_command('RL.CHECK', 'nobody', 'x')
        raise SystemExit('an unknown policy passed')
    except redis.ResponseError as error:
        assert 'nobody' in str(error), error
    client.close()
try:
    redis.Redis('127.0.0.1', port, password='wrong').ping()
    raise SystemExit('a wrong password passed')
except redis.AuthenticationError:
    pass
print('served')
";
    let output =
        command(installed("python/bin/python")).args(["-c", script, port(&server)]).output().unwrap();
    assert_eq!(succeed(&output), "served\n", "{}", text(&output.stderr));
}

/// The client of most programs on Node.js, as they use it.
#[test]
fn ioredis_is_served() {
    let folder = TempDir::new("resp-node");
    let server = serve(&folder, "  password: sesame\n");
    let script = "
const { Redis } = require('ioredis');
const assert = require('assert');
(async () => {
  const client = new Redis({ host: '127.0.0.1', port: Number(process.argv[1]), password: 'sesame', connectionName: 'tests', db: 0, maxRetriesPerRequest: 2 });
  await new Promise((done, fail) => { client.once('ready', done); client.once('error', fail); });
  // It speaks RESP3 and hands maps on as pairs in one list.
  const pairs = await client.call('RL.CHECK', 'per-user', 'alice');
  assert.deepStrictEqual(pairs.filter((_, at) => at % 2), [1, 5, 4, 0, 3600000, 'store', null]);
  assert.strictEqual(pairs[4], 'remaining');
  const pipeline = client.pipeline();
  for (let at = 0; at < 6; at++) pipeline.call('CL.THROTTLE', 'alice', 3, 1, 3600);
  const answers = await pipeline.exec();
  assert.deepStrictEqual(answers.map(([error, answer]) => [error, answer[0]]), [0, 0, 0, 0, 1, 1].map(n => [null, n]));
  const multi = client.multi();
  for (let at = 0; at < 6; at++) multi.call('CL.THROTTLE', 'bob', 3, 1, 3600);
  const replies = await multi.exec();
  assert.deepStrictEqual(replies.map(([error, answer]) => [error, answer[0]]), [0, 0, 0, 0, 1, 1].map(n => [null, n]));
  await assert.rejects(client.multi().call('INCR', 'x').exec(), /EXECABORT/);
  assert.strictEqual(await client.client('GETNAME'), 'tests');
  await assert.rejects(client.call('RL.CHECK', 'nobody', 'x'), /nobody/);
  await client.quit();
  console.log('served');
})().catch(error => { console.error(error); process.exit(1); });
";
    let output = client("node", "nodejs")
        .args(["-e", script, port(&server)])
        .env("NODE_PATH", installed("node/node_modules"))
        .output()
        .unwrap();
    assert_eq!(succeed(&output), "served\n", "{}", text(&output.stderr));
}
