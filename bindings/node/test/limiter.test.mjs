import assert from "node:assert/strict";
import { test } from "node:test";

import { Decision, Gate, Limiter, ManualClock, SlidegateError } from "slidegate";

function limiter(quota, options) {
  const clock = new ManualClock();
  return { clock, limiter: new Limiter(quota, { clock, ...options }) };
}

// The first thing that anybody tries.
test("allows the limit and denies what is beyond it", () => {
  const { limiter: limit, clock } = limiter("3/1m");
  for (let i = 0; i < 3; i++) assert.equal(limit.allows("alice"), true);
  assert.equal(limit.allows("alice"), false);
  assert.equal(limit.allows("bob"), true);
  clock.advance(60_000);
  assert.equal(limit.allows("alice"), true);
});

// What a handler shows to its client.
test("a decision has all numbers", () => {
  const { limiter: limit, clock } = limiter("10/1m");
  const allowed = limit.check("alice", 9);
  assert.ok(allowed instanceof Decision);
  assert.deepEqual({ ...allowed }, {
    allowed: true, limit: 10, used: 9, remaining: 1, cost: 9, retryAfterMs: 0, resetAfterMs: 60_000, reason: null,
  });
  clock.advance(1500);
  const denied = limit.check("alice", 2);
  assert.deepEqual({ ...denied }, {
    allowed: false, limit: 10, used: 9, remaining: 1, cost: 0, retryAfterMs: 58_500, resetAfterMs: 58_500, reason: "over_limit",
  });
  assert.equal(denied.status, 429);
  assert.match(denied.problem.detail, /10\/1m.*has used 9 of 10.*Retry in 59 seconds/);
  assert.equal(limit.check("alice", 11).retryAfterMs, null);
});

// Waits that are too short make clients ask in vain; too long ones waste their time.
test("the wait is exact to the microsecond", () => {
  for (const algorithm of ["sliding-log", "sliding-window", "fixed-window", "token-bucket"]) {
    const { limiter: limit, clock } = limiter("7/1s", { algorithm });
    limit.check("alice", 7);
    const { retryAfterMs, allowed } = limit.check("alice");
    assert.equal(allowed, false, algorithm);
    clock.advance(retryAfterMs - 1);
    assert.equal(limit.peek("alice").allowed, false, algorithm);
    clock.advance(1);
    assert.equal(limit.peek("alice").allowed, true, algorithm);
  }
});

test("peek charges nothing, refund returns, penalize exceeds, reset forgets", () => {
  const { limiter: limit } = limiter("10/1m");
  assert.equal(limit.peek("a", 10).remaining, 10);
  limit.check("a", 4);
  const refunded = limit.refund("a", 6);
  assert.deepEqual([refunded.cost, refunded.remaining], [4, 10]);
  assert.equal(limit.penalize("a", 25).used, 25);
  assert.equal(limit.allows("a"), false);
  assert.equal(limit.reset("a"), true);
  assert.equal(limit.reset("a"), false);
  assert.equal(limit.peek("a").used, 0);
});

test("configure keeps what was used", () => {
  const { limiter: limit } = limiter("10/1m");
  limit.check("a", 10);
  limit.configure("12/1m");
  assert.equal(limit.peek("a").remaining, 2);
  assert.equal(limit.quota, "12/1m");
  assert.throws(() => limit.configure("12/0s"), { code: "invalid_quota" });
  assert.equal(limit.quota, "12/1m");
});

/** The exact definition: what was charged in (now - window, now]. */
class Oracle {
  #charges = new Map();

  constructor(limit, windowUs) {
    this.limit = limit;
    this.windowUs = windowUs;
  }

  check(key, cost, now) {
    const charges = (this.#charges.get(key) ?? []).filter((one) => one.at > now - this.windowUs);
    this.#charges.set(key, charges);
    const used = charges.reduce((sum, one) => sum + one.cost, 0);
    const allowed = cost === 0 || used + cost <= this.limit;
    if (allowed && cost > 0) charges.push({ at: now, cost });
    return { allowed, used: used + (allowed ? cost : 0), remaining: this.limit - used - (allowed ? cost : 0) };
  }
}

/** Reproducible: mulberry32. */
function random(seed) {
  return (below) => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) % below;
  };
}

// Whether numbers or keys are mixed up on the way to the native part and back.
test("random histories agree with the definition of the exact window", () => {
  for (let seed = 1; seed <= 30; seed++) {
    const next = random(seed);
    const [limit, windowMs] = [1 + next(20), 1 + next(5000)];
    const { limiter: tested, clock } = limiter(`${limit}/${windowMs}ms`);
    const oracle = new Oracle(limit, windowMs * 1000);
    const keys = ["a", "ä", "日本", "😀", "x".repeat(123), "x".repeat(124), "x".repeat(500), ""];
    let now = 0;
    for (let step = 0; step < 400; step++) {
      const ms = next(3) === 0 ? 0 : next(windowMs);
      clock.advance(ms);
      now += ms * 1000;
      const [key, cost] = [keys[next(keys.length)], next(limit + 2)];
      const expected = oracle.check(key, cost, now);
      const { allowed, used, remaining } = tested.check(key, cost);
      assert.deepEqual({ allowed, used, remaining }, expected, `seed ${seed}, step ${step}, ${key.length} ${cost}`);
    }
  }
});

// Fields of a limiter are written in JavaScript; those of gates by the library.
test("header fields are those of a gate with the same quota", () => {
  for (const [quota, algorithm] of [["3/1m", "sliding-log"], ["3/250ms", "sliding-log"], ["4/1500ms", "sliding-window"], ["5/2s", "token-bucket"], ["2/1h", "fixed-window"], ["0/1m", "sliding-log"]]) {
    const clock = new ManualClock();
    const one = new Limiter(quota, { clock, algorithm, name: "per-user" });
    const gate = new Gate([{ name: "per-user", scope: ["user"], quota, algorithm }], { clock });
    for (let step = 0; step < 12; step++) {
      const cost = step % 4;
      const [fromLimiter, fromGate] = [one.check("a", cost), gate.check({ user: "a" }, cost)];
      assert.deepEqual(fromLimiter.headers, fromGate.headers, `${quota} ${algorithm} ${step}`);
      const { retryAfterMs, resetAfterMs, used, remaining, reason } = fromGate;
      assert.deepEqual({ retryAfterMs, resetAfterMs, used, remaining, reason }, { retryAfterMs: fromLimiter.retryAfterMs, resetAfterMs: fromLimiter.resetAfterMs, used: fromLimiter.used, remaining: fromLimiter.remaining, reason: fromLimiter.reason });
      clock.advance(377);
    }
  }
});

// A name that no header field can carry must not end the field or begin another.
test("any name makes a well-formed field", () => {
  const one = new Limiter("5/1m", { name: 'a"b\\c\r\nx: y' });
  assert.equal(one.check("a").headers[0][1], '"a_b_c__x: y";q=5;w=60');
});

test("keys are opaque: no two different ones are the same", () => {
  const { limiter: limit } = limiter("1/1m");
  const keys = ["", "\0", "a", "a\0", "a\0b", "__proto__", "constructor", "\ufffd", "\u{10ffff}", "é", "e\u0301", "x".repeat(127), "x".repeat(128), "x".repeat(129), `${"x".repeat(127)}é`, "y".repeat(1 << 20), `${"y".repeat(1 << 20)}z`, "\uffef", "ï"];
  for (const key of keys) assert.equal(limit.allows(key), true, JSON.stringify(key.slice(0, 20)));
  for (const key of keys) assert.equal(limit.allows(key), false, JSON.stringify(key.slice(0, 20)));
});

test("a lone surrogate is no key: encoded, different ones would become one", () => {
  const { limiter: limit } = limiter("1/1m");
  for (const key of ["\ud800", "a\udfff", `${"x".repeat(200)}\ud800`, "\ud800\ud800\udc00"]) {
    assert.throws(() => limit.allows(key), (error) => error instanceof SlidegateError && error.code === "invalid_request" && /lone surrogate/.test(error.message));
  }
});

test("invalid arguments are rejected and charge nothing", () => {
  const { limiter: limit } = limiter("5/1m");
  for (const cost of [-1, 1.5, NaN, Infinity, 2 ** 53, "1", null, 1n, {}, { valueOf: () => 1 }]) {
    assert.throws(() => limit.check("a", cost), { code: "invalid_request", field: "cost" });
  }
  for (const key of [undefined, null, 1, {}, ["a"], Symbol("a"), { toString: () => "a" }]) {
    assert.throws(() => limit.allows(key), { code: "invalid_request", field: "key" });
  }
  assert.equal(limit.peek("a").used, 0);
  assert.equal(limit.check("a", -0).allowed, true);
  assert.equal(limit.check("a", Number.MAX_SAFE_INTEGER).retryAfterMs, null);
});

test("errors say what is invalid and how to fix it", () => {
  assert.throws(() => new Limiter("100"), { name: "SlidegateError", code: "invalid_quota", message: "invalid quota `100`: no window; write `limit/window`, for example `100/1m`" });
  assert.throws(() => new Limiter("1/1m", { algorithm: "leaky" }), { code: "invalid_quota" });
  assert.throws(() => new Limiter(5), { code: "invalid_quota", message: /must be text such as "100\/1m"/ });
  assert.throws(() => new Limiter("1/1m", { maxKeys: -1 }), { code: "invalid_options" });
  assert.throws(() => new Limiter("1/1m", { burst: 1.5 }), { code: "invalid_options" });
  assert.equal(new Limiter({ limit: 5, window: "30s" }).quota, "5/30s");
});

// A process that makes limiters for each tenant must not grow forever.
test("limiters are freed with their objects", async () => {
  const { setFlagsFromString } = await import("node:v8");
  const { runInNewContext } = await import("node:vm");
  setFlagsFromString("--expose-gc");
  const gc = runInNewContext("gc");
  const make = () => {
    for (let i = 0; i < 3000; i++) new Limiter("5/1m").check("a");
  };
  const rss = async () => {
    for (let i = 0; i < 5; i++) {
      gc();
      await new Promise((resolve) => setImmediate(resolve));
    }
    return process.memoryUsage().rss;
  };
  make();
  const before = await rss();
  for (let i = 0; i < 5; i++) {
    make();
    await rss();
  }
  const grown = (await rss()) - before;
  assert.ok(grown < 30 << 20, `grew by ${grown} bytes`);
});
