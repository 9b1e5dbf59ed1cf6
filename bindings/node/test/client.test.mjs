import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { createServer as createTcpServer } from "node:net";
import { test } from "node:test";

import { Client } from "slidegate/client";

import { listen, startService } from "./support.mjs";

const POLICIES = `
policies:
  - {name: per-user, scope: [user], quota: 5/1m}
  - {name: tokens, scope: [team], quota: 1000/1m, counts: tokens}
  - {name: streams, scope: [team], in_flight: 2, lease: 30s}
`;
const service = await startService(POLICIES);
const client = new Client(service.url, { timeoutMs: 2000 });

// The timeout of the tests is long, as their machine may be busy; the default is for a service nearby.
test("checks, peeks, refunds, penalizes and resets", async () => {
  const first = await client.check({ user: "alice" }, 4);
  assert.deepEqual([first.allowed, first.policy, first.key, first.used, first.remaining, first.retryAfterMs], [true, "per-user", "alice", 4, 1, 0]);
  assert.equal(first.error, null);
  assert.match(Object.fromEntries(first.headers).ratelimit, /^"per-user";r=1/);

  const denied = await client.check({ user: "alice" }, 2);
  assert.deepEqual([denied.allowed, denied.status, denied.reason, denied.used], [false, 429, "over_limit", 4]);
  assert.ok(denied.retryAfterMs > 50_000 && denied.retryAfterMs <= 60_000, String(denied.retryAfterMs));
  assert.deepEqual(denied.problem["violated-policies"], ["per-user"]);
  assert.ok(Object.fromEntries(denied.headers)["retry-after"] > 50);
  assert.equal((await client.check({ user: "alice" }, 6)).retryAfterMs, null);

  assert.equal((await client.peek({ user: "alice" })).used, 4);
  assert.equal((await client.refund({ user: "alice" }, 3)).used, 1);
  assert.equal((await client.penalize({ user: "alice" }, 10)).used, 11);
  assert.equal(await client.reset({ user: "alice" }), true);
  assert.equal(await client.reset({ user: "alice" }), false);
});

test("one policy of several can decide, and costs have names", async () => {
  const decision = await client.check({ user: "u1", team: "t1" }, { tokens: 30 }, { policy: "tokens" });
  assert.deepEqual([decision.policy, decision.used, decision.policies.length], ["tokens", 30, 1]);
  assert.equal((await client.check({ user: "u1" }, 1, { policy: "none" })).status, 500);
});

test("a check with an idempotency key is charged once", async () => {
  const once = () => client.check({ user: "idem" }, 1, { idempotencyKey: "order-1" });
  assert.equal((await once()).used, 1);
  assert.equal((await once()).used, 1);
  assert.equal((await client.peek({ user: "idem" })).used, 1);
  assert.equal((await client.check({ user: "idem" }, 1, { idempotencyKey: "a b" })).status, 400);
});

test("the timeout of a call that waits is that of the wait and of a call", async () => {
  const asked = [];
  const url = await otherServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    asked.push([request.url, JSON.parse(body)]);
    setTimeout(() => response.end('{"allowed":true}'), 300);
  });
  const impatient = new Client(url, { timeoutMs: 100 });
  assert.equal((await impatient.acquire({ user: "a" }, { cost: 2, policy: "p", timeoutMs: 5000.5 })).source, null);
  assert.equal((await impatient.acquire({ user: "a" })).error, null);
  assert.equal((await impatient.acquire({ user: "a" }, { timeoutMs: 0 })).error.code, "timeout");
  assert.deepEqual(asked[0], ["/v1/acquire", { attributes: { user: "a" }, cost: 2, policy: "p", timeout_ms: 5001 }]);
  assert.equal(asked[1][1].timeout_ms, 10_000);
});

test("calls that wait leave the connections of the others free", async () => {
  const narrow = new Client(service.url, { timeoutMs: 2000, maxConnections: 1 });
  await narrow.check({ user: "narrow" }, 5);
  const controller = new AbortController();
  const waiting = narrow.acquire({ user: "narrow" }, { timeoutMs: 60_000, signal: controller.signal });
  assert.equal((await narrow.check({ user: "narrow-2" })).source, "store");
  controller.abort();
  await assert.rejects(waiting, { name: "AbortError" });
});

test("a batch is decided in order", async () => {
  const requests = Array.from({ length: 7 }, () => ({ attributes: { user: "batch" } }));
  const decisions = await client.checkBatch(requests);
  assert.deepEqual(decisions.map((one) => one.allowed), [true, true, true, true, true, false, false]);
  assert.deepEqual(await client.checkBatch([]), []);
  const tooMany = await client.checkBatch(Array(1001).fill({ attributes: {} }));
  assert.deepEqual([tooMany.length, tooMany[0].allowed, tooMany[0].error.code], [1001, false, "invalid_request"]);
});

test("a reservation is held, settled in part, extended and settled", async () => {
  const reservation = await client.reserve({ team: "r1" }, { tokens: 400 });
  assert.equal(reservation.allowed, true);
  const held = async () => (await client.peek({ team: "r1" }, { tokens: 0 }, { policy: "tokens" })).policies[0].held;
  assert.equal(await held(), 400);
  assert.equal((await reservation.settleSoFar({ tokens: 100 })).outcome, "changed");
  assert.equal(await held(), 300);
  assert.equal((await reservation.extend({ hold: { tokens: 2000 } })).outcome, "denied");
  assert.equal((await reservation.extend({ ttlMs: 5000 })).outcome, "changed");
  const settled = await reservation.settle({ tokens: 150 });
  assert.equal(settled.outcome, "changed");
  assert.equal(settled.policies.find((one) => one.policy === "tokens").used, 150);
  assert.equal((await reservation.settle({ tokens: 150 })).outcome, "none");
  assert.equal((await client.settle(reservation.ticket, { tokens: 150 })).outcome, "already_settled");
});

// Whatever way a handler is left, nothing stays held.
test("a reservation that is left settles what was recorded, or cancels", async () => {
  const used = async (team) => (await client.peek({ team }, { tokens: 0 }, { policy: "tokens" })).policies[0];
  const recorded = await client.reserve({ team: "left" }, { tokens: 400 });
  recorded.record({ tokens: 70 });
  await recorded[Symbol.asyncDispose]();
  assert.deepEqual([(await used("left")).used, (await used("left")).held], [70, 0]);
  const unused = await client.reserve({ team: "left" }, { tokens: 400 });
  await unused.close();
  assert.deepEqual([(await used("left")).used, (await used("left")).held], [70, 0]);
  const permits = [await client.reserve({ team: "left" }), await client.reserve({ team: "left" }), await client.reserve({ team: "left" })];
  assert.deepEqual(permits.map((one) => one.allowed), [true, true, false]);
  assert.equal(permits[2].ticket, null);
  for (const permit of permits) await permit.close();
  assert.equal((await client.reserve({ team: "left" })).allowed, true);
});

test("a ticket that the store does not know is an error", async () => {
  const other = new Client((await startService(POLICIES)).url, { timeoutMs: 2000 });
  const { ticket } = await other.reserve({ team: "a" });
  await assert.rejects(client.settle(ticket, 1), { name: "SlidegateError", status: 404, code: "not_found" });
  await assert.rejects(client.settle("made up", 1), { code: "invalid_request" });
});

// A client must not lift its limit with a value that is rejected.
test("what cannot be counted is denied, whatever onFailure says", async () => {
  for (const attributes of [{ user: "\ud800" }, { user: {} }, { user: () => 1 }, null, "alice", ["alice"], { user: "x".repeat(70_000) }]) {
    const decision = await client.check(attributes);
    assert.deepEqual([decision.allowed, decision.status, decision.source, decision.error.code], [false, 400, "invalid", "invalid_request"], JSON.stringify(attributes)?.slice(0, 50));
  }
  for (const cost of [-1, 1.5, NaN, 2 ** 53, "1", {}, { tokens: -1 }]) {
    const decision = await client.check({ user: "cost" }, cost);
    assert.deepEqual([decision.allowed, decision.status], [false, 500]);
  }
});

test("names of attributes are data, and errors of getters are the caller's", async () => {
  const attributes = JSON.parse('{"__proto__": "x", "constructor": "y", "user": "proto"}');
  assert.equal((await client.check(attributes)).key, "proto");
  const thrower = { get user() { throw new TypeError("mine"); } };
  await assert.rejects(client.check(thrower), { name: "TypeError", message: "mine" });
});

test("a token is sent, and without it the error says so", async () => {
  const token = "a token that is long enough for anybody";
  const sha256 = createHash("sha256").update(token).digest("hex");
  const secured = await startService(`${POLICIES}\nadmin: { decisions: token, tokens: [{ name: app, scope: decide, sha256: ${sha256} }] }`);
  const allowed = await new Client(secured.url, { token, timeoutMs: 2000 }).check({ user: "a" });
  assert.equal(allowed.source, "store");
  const refused = await new Client(secured.url, { timeoutMs: 2000 }).check({ user: "a" });
  assert.deepEqual([refused.allowed, refused.source, refused.error.code], [true, "fail_open", "unauthorized"]);
});

/** A server that is not slidegate. */
async function otherServer(handle) {
  return listen(createServer(handle));
}

test("an outage is decided by onFailure", async () => {
  const url = await listen(createTcpServer((socket) => socket.destroy()));
  const asking = (options) => new Client(url, { timeoutMs: 2000, ...options });
  const open = await asking().check({ user: "a" });
  assert.deepEqual([open.allowed, open.source, open.error.code], [true, "fail_open", "unavailable"]);
  const closed = await asking({ onFailure: "deny" }).check({ user: "a" });
  assert.deepEqual([closed.allowed, closed.status, closed.source], [false, 503, "fail_closed"]);
  assert.match(closed.problem.type, /temporary-reduced-capacity$/);
  assert.ok(Number(Object.fromEntries(closed.headers)["retry-after"]) >= 1);
  assert.equal((await asking({ onFailure: "deny" }).acquire({ user: "a" })).source, "fail_closed");
  await assert.rejects(asking().refund({ user: "a" }), { code: "unavailable" });
});

test("a service that does not answer costs no more than the timeout", async () => {
  const url = await otherServer(() => {});
  const start = performance.now();
  // Longer than the default, so that it is this one that ends the call.
  const decision = await new Client(url, { timeoutMs: 500 }).check({ user: "a" });
  const took = performance.now() - start;
  assert.deepEqual([decision.allowed, decision.error.code], [true, "timeout"]);
  assert.ok(took >= 495, `${took} ms`);
});

test("a body that drips does not stretch the timeout", async () => {
  const url = await otherServer((_, response) => {
    response.writeHead(200, { "content-type": "application/json" });
    const timer = setInterval(() => response.write(" "), 10);
    response.on("close", () => clearInterval(timer));
  });
  const decision = await new Client(url, { timeoutMs: 100 }).check({ user: "a" });
  assert.equal(decision.error.code, "timeout");
});

// A host that the service's name now leads to must not get the token, nor fill the memory.
test("redirects are not followed and large bodies are cut", async () => {
  const asked = [];
  const elsewhere = await otherServer((request, response) => {
    asked.push(request.headers.authorization);
    response.end("{}");
  });
  const redirecting = await otherServer((_, response) => response.writeHead(307, { location: elsewhere }).end());
  const decision = await new Client(redirecting, { token: "secret", timeoutMs: 2000 }).check({ user: "a" });
  assert.deepEqual([decision.error.code, asked], ["invalid_response", []]);
  const large = await otherServer((_, response) => response.end(" ".repeat(3 << 20)));
  assert.equal((await new Client(large, { timeoutMs: 2000 }).check({ user: "a" })).error.code, "invalid_response");
});

test("what is not slidegate's answer is a failure of the service", async () => {
  for (const body of ["", "null", "[]", '"x"', "{}", '{"allowed":"yes"}', "<html>"]) {
    const url = await otherServer((_, response) => response.end(body));
    const decision = await new Client(url, { timeoutMs: 2000 }).check({ user: "a" });
    assert.deepEqual([decision.source, decision.error.code], ["fail_open", "invalid_response"], body);
  }
});

test("a settlement is repeated until the service answers, though the clock is set", async (t) => {
  let attempts = 0;
  const clock = Date.now;
  t.mock.method(Date, "now", () => clock() + attempts * 3_600_000);
  const url = await otherServer((_, response) => {
    attempts += 1;
    if (attempts < 3) return response.writeHead(503).end();
    return response.end('{"outcome":"changed","policies":[],"ticket":null}');
  });
  assert.equal((await new Client(url, { timeoutMs: 2000 }).settle("t", 1)).outcome, "changed");
  assert.equal(attempts, 3);
  const never = new Client(await otherServer((_, response) => response.writeHead(503).end()), { timeoutMs: 500, settleTimeoutMs: 200 });
  await assert.rejects(never.settle("t", 1), { code: "unavailable" });
});

test("connections are kept", async () => {
  let connections = 0;
  const server = createServer((_, response) => response.end('{"existed":true}'));
  server.on("connection", () => (connections += 1));
  const kept = new Client(await listen(server), { timeoutMs: 2000 });
  for (let i = 0; i < 20; i++) await kept.reset({ user: "a" });
  assert.equal(connections, 1);
  kept.close();
});

test("options are checked", () => {
  for (const url of ["", "localhost:7979", "ftp://x", "http://user:secret@x", "http://x?q", "unix://"]) {
    assert.throws(() => new Client(url), (error) => error.code === "invalid_options" && !error.message.includes("secret"), url);
  }
  for (const options of [{ timeoutMs: 0 }, { timeoutMs: "1" }, { onFailure: "maybe" }, { token: "a\nb" }, { maxConnections: -1 }]) {
    assert.throws(() => new Client("http://127.0.0.1:1", options), { code: "invalid_options" });
  }
});
