import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

import { SharedGate } from "slidegate";

import { freePort, startRedis, startService } from "./support.mjs";

const policies = (onStoreError = "local") => [
  { name: "per-user", scope: ["user"], quota: "10/1m", on_store_error: onStoreError },
  { name: "tokens", scope: ["team"], quota: "1000/1m", on_store_error: onStoreError },
];
// A busy machine needs longer than the default of 50 ms.
const patient = { deadlineMs: 5000 };
const redis = await startRedis();

test("gates, processes and the service share one limit", async () => {
  const service = await startService(`
policies:
  - {name: per-user, scope: [user], quota: 10/1m}
store: { redis: "${redis.url}", deadline: 5s }
`);
  const [one, two] = [new SharedGate(redis.url, policies(), patient), new SharedGate(redis.url, policies(), patient)];
  const decisions = [];
  for (let i = 0; i < 4; i++) decisions.push(await one.check({ user: "alice" }), await two.check({ user: "alice" }));
  assert.deepEqual(decisions.map((decision) => decision.used), [1, 2, 3, 4, 5, 6, 7, 8]);
  const other = await (await fetch(`${service.url}/v1/check?user=alice`)).json();
  assert.equal(other.used, 9);
  const program = `import { SharedGate } from "slidegate"; const gate = new SharedGate(${JSON.stringify(redis.url)}, ${JSON.stringify(policies())}, { deadlineMs: 5000 }); console.log((await gate.check({ user: "alice" })).used)`;
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program], { cwd: new URL("..", import.meta.url) });
  assert.equal(stdout.trim(), "10");
  const denied = await one.check({ user: "alice" });
  assert.deepEqual([denied.allowed, denied.source, denied.error], [false, "store", null]);
  assert.equal((await one.check({ user: "alice" })).source, "cached");
});

test("many checks at once never exceed the limit", async () => {
  const gate = new SharedGate(redis.url, policies(), patient);
  const decisions = await Promise.all(Array.from({ length: 100 }, () => gate.check({ user: "herd" })));
  assert.equal(decisions.filter((one) => one.allowed).length, 10);
});

test("peek, refund, penalize, reset, configure and reservations", async () => {
  const gate = new SharedGate(redis.url, policies(), patient);
  assert.equal((await gate.peek({ user: "bob" })).used, 0);
  await gate.check({ user: "bob" }, 5);
  assert.equal((await gate.refund({ user: "bob" }, 2)).used, 3);
  assert.equal((await gate.penalize({ user: "bob" }, 20)).used, 23);
  assert.equal(await gate.reset({ user: "bob" }), true);
  const reservation = await gate.reserve({ team: "a" }, 400);
  assert.equal((await gate.peek({ team: "a" })).held, 400);
  assert.equal((await reservation.settleSoFar(100)).outcome, "changed");
  const elsewhere = new SharedGate(redis.url, policies(), patient);
  assert.equal((await elsewhere.settle(reservation.ticket, 150)).outcome, "changed");
  assert.deepEqual([(await gate.peek({ team: "a" })).used, (await gate.peek({ team: "a" })).held], [150, 0]);
  const left = await gate.reserve({ team: "a" }, 400);
  await left[Symbol.asyncDispose]();
  assert.equal((await gate.peek({ team: "a" })).held, 0);
  gate.configure([{ name: "per-user", scope: ["user"], quota: "1/1m" }]);
  assert.equal((await gate.check({ user: "carol" }, 2)).retryAfterMs, null);
});

test("what is invalid rejects", async () => {
  const gate = new SharedGate(redis.url, policies(), patient);
  await assert.rejects(gate.check({ user: "\ud800" }), { code: "invalid_request" });
  await assert.rejects(gate.check({ user: "a" }, -1), { code: "invalid_request" });
  await assert.rejects(gate.check({ user: "a" }, 1, { policy: "nobody" }), { code: "unknown_policy" });
  await assert.rejects(gate.settle("made up", 1), { code: "invalid_ticket" });
  assert.throws(() => new SharedGate("http://x", policies()), (error) => error.name === "SlidegateError");
  assert.throws(() => new SharedGate(redis.url, policies(), { clock: 1 }), { code: "invalid_options" });
});

// A Redis that hangs must not hang its callers.
test("a paused server costs no more than the deadline, and each policy decides", async () => {
  const paused = await startRedis();
  const gate = new SharedGate(paused.url, policies(), { deadlineMs: 100 });
  const strict = new SharedGate(paused.url, policies("deny"), { deadlineMs: 100 });
  await gate.check({ user: "warm" });
  await strict.check({ user: "warm" });
  await paused.pause();
  const start = performance.now();
  const local = await gate.check({ user: "alice" });
  const denied = await strict.check({ user: "alice" });
  const took = performance.now() - start;
  assert.ok(took >= 190, `${took} ms`);
  assert.deepEqual([local.allowed, local.source], [true, "local"]);
  assert.equal(local.error.code, "store");
  assert.deepEqual([denied.allowed, denied.status, denied.source, denied.reason], [false, 503, "deny", "store_unavailable"]);
  paused.resume();
});

test("after a restart of the server, it decides again", async () => {
  const port = await freePort();
  const first = await startRedis({ port });
  const gate = new SharedGate(first.url, policies(), { deadlineMs: 1000 });
  assert.equal((await gate.check({ user: "a" })).source, "store");
  await first.stop();
  assert.equal((await gate.check({ user: "a" })).source, "local");
  await startRedis({ port });
  for (let attempt = 0; ; attempt++) {
    const { source } = await gate.check({ user: "b" });
    if (source === "store") break;
    assert.ok(attempt < 200, "never came back");
    await sleep(50);
  }
});

test("without a server, checks are decided, and nothing is started until then", async () => {
  const program = `
    import { readFileSync } from "node:fs";
    import { SharedGate } from "slidegate";
    const names = () => Number(/Threads:\\s+(\\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]);
    const before = names();
    const gate = new SharedGate("redis://127.0.0.1:1", ${JSON.stringify(policies())});
    const made = names();
    const decision = await gate.check({ user: "a" });
    console.log(JSON.stringify({ source: decision.source, started: made - before, running: names() - made }));
  `;
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program], { cwd: new URL("..", import.meta.url) });
  assert.deepEqual(JSON.parse(stdout), { source: "local", started: 0, running: 1 });
});

test("process.exit with calls in flight ends the process", async () => {
  const program = `
    import { SharedGate } from "slidegate";
    const gate = new SharedGate(${JSON.stringify(redis.url)}, ${JSON.stringify(policies())}, { deadlineMs: 5000 });
    for (let i = 0; i < 50; i++) gate.check({ user: "exit" + i });
    setImmediate(() => process.exit(7));
  `;
  const ended = promisify(execFile)(process.execPath, ["--input-type=module", "-e", program], { cwd: new URL("..", import.meta.url), timeout: 20_000 });
  await assert.rejects(ended, { code: 7 });
});
