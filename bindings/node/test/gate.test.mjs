import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { Gate, ManualClock, SlidegateError } from "slidegate";

import { folder } from "./support.mjs";

const POLICIES = [
  { name: "per-user", scope: ["user"], limit: 5, window: "1m", overrides: { vip: 50 } },
  { name: "login", when: { path: "/login" }, scope: ["ip"], quota: "2/1m" },
  { name: "tried", scope: ["user"], quota: "1/1m", mode: "shadow" },
];

function gate(policies = POLICIES, options) {
  const clock = new ManualClock();
  return { clock, gate: new Gate(policies, { clock, ...options }) };
}

// A request that one policy denies must not be charged by the others.
test("a request is charged under all of its policies or under none", () => {
  const { gate: g, clock } = gate();
  const login = { user: "alice", ip: "192.0.2.7", path: "/login" };
  assert.equal(g.check(login).allowed, true);
  assert.equal(g.check(login).allowed, true);
  const denied = g.check(login);
  assert.deepEqual([denied.allowed, denied.status, denied.policy, denied.key, denied.reason], [false, 429, "login", "192.0.2.7", "over_limit"]);
  assert.deepEqual(denied.policies.map((one) => [one.policy, one.allowed, one.enforced, one.used]), [["per-user", true, true, 2], ["login", false, true, 2], ["tried", false, false, 1]]);
  assert.match(denied.why, /Policy `login` \(2\/1m\) would be exceeded: key `192.0.2.7` has used 2 of 2/);
  assert.deepEqual(denied.problem["violated-policies"], ["login"]);
  assert.equal(Object.fromEntries(denied.headers)["retry-after"], "60");
  assert.equal(g.check({ user: "alice" }).used, 3);
  clock.advance(60_000);
  assert.equal(g.check(login).allowed, true);
});

test("policies are a list, YAML, or a file of it", () => {
  const yaml = "policies:\n  - {name: per-user, scope: [user], quota: 1/1m}\n";
  const file = join(folder(), "limits.yaml");
  writeFileSync(file, yaml);
  for (const one of [new Gate(yaml), Gate.fromFile(file), new Gate({ policies: [{ name: "per-user", scope: ["user"], quota: "1/1m" }] })]) {
    assert.equal(one.check({ user: "a" }).allowed, true);
    assert.equal(one.check({ user: "a" }).allowed, false);
  }
  writeFileSync(file, "policies:\n  - {name: per-user, scope: [user], quota: 1/0s}\n");
  assert.throws(() => Gate.fromFile(file), (error) => error instanceof SlidegateError && error.code === "invalid_policy" && error.message.startsWith(`${file}:2: policy \`per-user\``));
  assert.throws(() => new Gate([{ name: "x", quota: "1/1m", scoope: [] }]), { code: "invalid_policy", message: /scoope.*did you mean `scope`/ });
  assert.throws(() => new Gate(5), { code: "invalid_policy" });
  assert.throws(() => new Gate([], { unknown: 1 }), { code: "invalid_options", message: /unknown option "unknown"/ });
  assert.throws(() => new Gate(POLICIES, { headers: { draft: "draft-99" } }), { code: "invalid_headers" });
});

test("peek, refund, penalize, reset, overrides and configure", () => {
  const { gate: g } = gate();
  assert.equal(g.peek({ user: "a" }).remaining, 5);
  g.check({ user: "a" }, 3);
  assert.equal(g.refund({ user: "a" }, 2).used, 1);
  assert.equal(g.penalize({ user: "a" }, 9).used, 10);
  assert.equal(g.check({ user: "a" }).allowed, false);
  assert.equal(g.reset({ user: "a" }), true);
  assert.equal(g.reset({ user: "a" }), false);
  assert.equal(g.check({ user: "vip" }, 50).allowed, true);
  g.check({ user: "a" }, 5);
  g.configure([{ name: "per-user", scope: ["user"], quota: "7/1m" }]);
  assert.equal(g.peek({ user: "a" }).remaining, 2);
  assert.throws(() => g.configure([{ name: "per-user", quota: "x" }]), { code: "invalid_policy" });
  assert.equal(g.peek({ user: "a" }).remaining, 2);
});

test("IPv6 clients are counted by network", () => {
  const { gate: g } = gate([{ name: "ip", scope: ["ip"], quota: "1/1m" }]);
  assert.equal(g.check({ ip: "2001:db8:0:1::1" }).allowed, true);
  assert.equal(g.check({ ip: "2001:db8:0:2::9" }).allowed, false);
  assert.equal(g.check({ ip: "::ffff:192.0.2.1" }).allowed, true);
  assert.equal(g.check({ ip: "192.0.2.1" }).allowed, false);
});

test("an idempotency key makes a check safe to repeat", () => {
  const { gate: g } = gate();
  for (let i = 0; i < 3; i++) assert.equal(g.check({ user: "a" }, 1, { idempotencyKey: "order-1" }).used, 1);
  assert.throws(() => g.check({ user: "a" }, 1, { idempotencyKey: "" }), { code: "invalid_request" });
});

test("a request that is subject to no policy is allowed, and says so", () => {
  const { gate: g } = gate();
  const decision = g.check({ path: "/other" });
  assert.deepEqual([decision.allowed, decision.policy, decision.policies, decision.headers, decision.status], [true, null, [], [], 200]);
});

test("what is invalid throws and charges nothing", () => {
  const { gate: g } = gate();
  assert.throws(() => g.check({ user: "a" }, 1, { policy: "nobody" }), { code: "unknown_policy" });
  assert.throws(() => g.check({ path: "/" }, 1, { policy: "per-user" }), { code: "missing_attribute" });
  for (const cost of [-1, 0.5, NaN, 2 ** 53, "1", {}, { a: -1 }]) assert.throws(() => g.check({ user: "a" }, cost), { code: "invalid_request" });
  for (const attributes of [undefined, null, 1, "a", [], { user: {} }, { user: "\udead" }, { "\udead": "a" }, { user: Symbol("a") }]) {
    assert.throws(() => g.check(attributes), { code: "invalid_request" });
  }
  assert.throws(() => g.check({ get user() { throw new RangeError("mine"); } }), { name: "RangeError", message: "mine" });
  assert.equal(g.peek({ user: "a" }).used, 0);
});

test("names are data", () => {
  const { gate: g } = gate([{ name: "odd", scope: ["__proto__"], quota: "1/1m" }]);
  const odd = (value) => JSON.parse(`{"__proto__": ${JSON.stringify(value)}}`);
  assert.equal(g.check(odd("a")).key, "a");
  assert.equal(g.check(odd("a")).allowed, false);
  assert.equal(g.check(odd("b")).allowed, true);
  assert.equal(g.check(Object.assign(Object.create({ user: "inherited" }), {})).policy, null);
  assert.equal({}.polluted, undefined);
});

test("huge values are counted as they are", () => {
  const { gate: g } = gate([{ name: "u", scope: ["user"], quota: "1/1m" }]);
  const huge = "x".repeat(1 << 20);
  assert.equal(g.check({ user: huge }).allowed, true);
  assert.equal(g.check({ user: `${huge}y` }).allowed, true);
  assert.equal(g.check({ user: huge }).allowed, false);
});

/** Reproducible: mulberry32. */
function random(seed) {
  return (below) => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) % below;
  };
}

test("random histories agree with the definition, all or nothing", () => {
  for (let seed = 1; seed <= 15; seed++) {
    const next = random(seed);
    const limits = { user: 1 + next(10), team: 1 + next(20) };
    const windows = { user: 1 + next(3000), team: 1 + next(3000) };
    const policies = ["user", "team"].map((name) => ({ name, scope: [name], quota: `${limits[name]}/${windows[name]}ms` }));
    const { gate: g, clock } = gate(policies);
    const charges = [];
    let now = 0;
    for (let step = 0; step < 300; step++) {
      const ms = next(4) === 0 ? 0 : next(700);
      clock.advance(ms);
      now += ms;
      const attributes = { user: `u${next(3)}`, team: `t${next(2)}` };
      const cost = next(5);
      const used = (name) => charges.filter((one) => one[name] === attributes[name] && one.at > now - windows[name]).reduce((sum, one) => sum + one.cost, 0);
      const expected = cost === 0 || ["user", "team"].every((name) => used(name) + cost <= limits[name]);
      const decision = g.check(attributes, cost);
      assert.equal(decision.allowed, expected, `seed ${seed}, step ${step}`);
      if (expected) charges.push({ ...attributes, cost, at: now });
      for (const one of decision.policies) assert.equal(one.used, used(one.policy), `seed ${seed}, step ${step}, ${one.policy}`);
    }
  }
});

const TOKENS = [
  { name: "tokens", scope: ["user"], quota: "1000/1m" },
  { name: "streams", scope: ["user"], in_flight: 2, lease: "30s" },
];

test("a reservation is held, settled in part, extended and settled", () => {
  const { gate: g } = gate(TOKENS);
  const tokens = () => g.peek({ user: "a" }, 1, { policy: "tokens" });
  const reservation = g.reserve({ user: "a" }, 400);
  assert.equal(reservation.allowed, true);
  assert.deepEqual([tokens().used, tokens().held, tokens().remaining], [0, 400, 600]);
  assert.equal(reservation.settleSoFar(100).outcome, "changed");
  assert.deepEqual([tokens().used, tokens().held], [100, 300]);
  assert.equal(reservation.extend({ hold: 2000 }).outcome, "denied");
  assert.equal(reservation.extend({ ttlMs: 5000 }).outcome, "changed");
  const settled = reservation.settle(150);
  assert.deepEqual([settled.outcome, settled.policies.map((one) => [one.policy, one.used, one.held])], ["changed", [["tokens", 150, 0], ["streams", 0, 0]]]);
  assert.equal(reservation.settle(999).outcome, "none");
  assert.equal(g.settle(reservation.ticket, 150).outcome, "already_settled");
  assert.throws(() => g.settle("made up", 1), { code: "invalid_ticket" });
  assert.throws(() => g.settle(5, 1), { code: "invalid_ticket" });
});

test("what is not settled ends by its time", () => {
  const { gate: g, clock } = gate(TOKENS);
  g.reserve({ user: "a" }, 400, { ttlMs: 5000 });
  clock.advance(5000);
  assert.deepEqual([g.peek({ user: "a" }, 1, { policy: "tokens" }).used, g.peek({ user: "a" }, 1, { policy: "tokens" }).held], [400, 0]);
  assert.throws(() => g.reserve({ user: "a" }, 1, { ttlMs: 4e6 }), SlidegateError);
  assert.throws(() => g.reserve({ user: "a" }, 1, { ttlMs: NaN }), { code: "invalid_request" });
});

// `using` is syntax of newer Node and of TypeScript, which compiles it to this.
test("a reservation that is left settles what was recorded, or cancels", () => {
  const { gate: g } = gate(TOKENS);
  const state = () => {
    const { used, held } = g.peek({ user: "a" }, 1, { policy: "tokens" });
    return { used, held };
  };
  const leave = (body) => {
    const reservation = g.reserve({ user: "a" }, 400);
    try {
      body(reservation);
    } finally {
      reservation[Symbol.dispose]();
    }
  };
  leave((reservation) => reservation.record(30));
  assert.deepEqual(state(), { used: 30, held: 0 });
  leave(() => {});
  assert.deepEqual(state(), { used: 30, held: 0 });
  assert.throws(() => leave((reservation) => {
    reservation.settleSoFar(50);
    throw new Error("the stream broke");
  }), /the stream broke/);
  assert.deepEqual(state(), { used: 80, held: 0 });
  leave((reservation) => reservation.settle(20));
  assert.deepEqual(state(), { used: 100, held: 0 });
  assert.equal(g.reserve({ user: "a" }, 901).allowed, false);
  assert.equal(g.reserve({ user: "a" }, 901).ticket, null);
});
