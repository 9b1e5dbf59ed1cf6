import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Gate, Limiter, ManualClock, SharedGate } from "slidegate";
import { Client } from "slidegate/client";

import { startRedis, startService } from "./support.mjs";

const redis = await startRedis();
// A busy machine needs longer than the default of 50 ms.
const patient = { deadlineMs: 5000 };
const HOUR = 3_600_000;
/** Ends what a failed test leaves in a queue. */
const end = new AbortController();
after(() => end.abort());

let keys = 0;

/** The service lets nobody wait for longer than a minute, so its window is shorter. */
const service = await startService(`
policies:
${[1, 2, 3, 5].map((limit) => `  - {name: at-most-${limit}, when: {limit: "${limit}"}, scope: [user], quota: ${limit}/15s}`).join("\n")}
  - {name: jobs, scope: [team], in_flight: 1, lease: 10m}
`);

/**
 * Who limits one key, within a window that is longer than a test: turns come by what is refunded. `subject` is how calls
 * name the key, and `longest` the longest wait.
 */
const ROWS = {
  limiter(limit, options) {
    const one = new Limiter(`${limit}/10m`, options);
    return { one, key: "alice", subject: { key: "alice" }, windowMs: 600_000, longest: HOUR };
  },
  gate(limit, options) {
    const one = new Gate([{ name: "per-user", scope: ["user"], quota: `${limit}/10m` }], options);
    const key = { user: "alice" };
    return { one, key, subject: { attributes: key }, windowMs: 600_000, longest: HOUR };
  },
  "shared gate"(limit, options) {
    const policies = [{ name: "per-user", scope: ["user"], quota: `${limit}/10m` }];
    const one = new SharedGate(redis.url, policies, { ...patient, ...options });
    const key = { user: `user-${keys++}` };
    return { one, key, subject: { attributes: key }, windowMs: 600_000, longest: HOUR };
  },
  client(limit, options) {
    const one = new Client(service.url, { timeoutMs: 5000, ...options });
    const key = { user: `user-${keys++}`, limit };
    return { one, key, subject: { attributes: key }, windowMs: 15_000, longest: 60_000 };
  },
};

/** One test for each row. A call that never gets its turn would keep it from its end. */
function each(name, run, rows = Object.keys(ROWS)) {
  for (const row of rows) {
    test(`${row}: ${name}`, { timeout: 60_000 }, () => run((limit, options) => {
      const place = ROWS[row](limit, options);
      const { one, key, longest } = place;
      const order = [];
      return {
        ...place,
        order,
        /** Waits for a turn, and notes under this name who got it. */
        queue: async (who, options) => {
          const decision = await one.acquire(key, { timeoutMs: longest, signal: end.signal, ...options });
          order.push(who);
          return decision;
        },
        used: async () => (await one.peek(key)).used,
      };
    }));
  }
}

/** Enough for a call that nothing holds back. Whoever gets a turn too early does so meanwhile. */
const aWhile = () => sleep(50);

each("whoever finds room is served at once, and charged", async (at) => {
  const { queue, used } = at(5);
  const decision = await queue("a", { cost: 3, timeoutMs: 0 });
  assert.deepEqual([decision.allowed, decision.used, decision.remaining, decision.status, decision.reason], [true, 3, 2, 200, null]);
  assert.equal((await queue("b")).used, 4);
  assert.equal(await used(), 4);
});

each("turns come in the order of the calls", async (at) => {
  const { one, key, queue, order, used } = at(1);
  await queue("first");
  const waiting = [];
  for (const who of ["a", "b", "c"]) {
    waiting.push(queue(who));
    await aWhile();
  }
  for (const turn of waiting) {
    await one.refund(key, 1);
    assert.equal((await turn).allowed, true);
    await aWhile();
  }
  assert.deepEqual(order, ["first", "a", "b", "c"]);
  assert.equal(await used(), 1);
});

// Small requests would keep a large one from ever being served.
each("a large cost is not overtaken by a small one, nor by a call that does not wait long", async (at) => {
  const { one, key, queue, order, used } = at(3);
  await queue("first", { cost: 3 });
  const large = queue("large", { cost: 2 });
  await aWhile();
  const small = queue("small");
  await aWhile();
  await one.refund(key, 1);
  await aWhile();
  assert.deepEqual(order, ["first"]);
  assert.equal((await one.acquire(key, { timeoutMs: 0 })).allowed, false);
  await one.refund(key, 1);
  await large;
  assert.deepEqual(order, ["first", "large"]);
  await one.refund(key, 1);
  await small;
  assert.equal(await used(), 3);
});

each("whoever aborts leaves the queue at once: the next gets the turn, and nothing is charged", async (at) => {
  const { one, key, queue, order, used } = at(1);
  await queue("first");
  const controllers = [new AbortController(), new AbortController(), new AbortController()];
  const waiting = [];
  for (const [i, { signal }] of controllers.entries()) {
    waiting.push(queue(i, { signal }));
    await aWhile();
  }
  const failed = (i) => assert.rejects(waiting[i], { message: `reason ${i}` });
  // One in the middle, and then the head.
  for (const i of [1, 0]) {
    controllers[i].abort(new Error(`reason ${i}`));
    await failed(i);
  }
  assert.equal(await used(), 1);
  await one.refund(key, 1);
  await waiting[2];
  assert.deepEqual(order, ["first", 2]);
  assert.equal(await used(), 1);
  // Afterwards, the signal means nothing any more.
  controllers[2].abort();
});

each("an aborted signal never asks", async (at) => {
  const { one, key, used } = at(1);
  const reason = new Error("mine");
  await assert.rejects(one.acquire(key, { signal: AbortSignal.abort(reason) }), reason);
  await assert.rejects(one.acquire(key, { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.equal(await used(), 0);
});

each("whoever would have to wait longer for those before it is denied at once", async (at) => {
  const { queue, used, windowMs } = at(2);
  await queue("first", { cost: 2 });
  const head = new AbortController();
  const heads = queue("head", { signal: head.signal, cost: 2 });
  await aWhile();
  const late = await queue("late", { timeoutMs: windowMs });
  assert.deepEqual([late.allowed, late.reason, late.status], [false, "over_limit", 429]);
  assert.ok(late.retryAfterMs > windowMs, `${late.retryAfterMs}`);
  assert.ok(Number(Object.fromEntries(late.headers)["retry-after"]) > windowMs / 1000);
  head.abort();
  await assert.rejects(heads);
  assert.equal(await used(), 2);
});

// A caller that is denied at once can try elsewhere.
each("what cannot get a turn in time, or never, is denied at once", async (at) => {
  const { queue, used, windowMs } = at(2);
  const start = performance.now();
  assert.equal((await queue("never", { cost: 3 })).retryAfterMs, null);
  await queue("first", { cost: 2 });
  for (const timeoutMs of [0, windowMs / 10, windowMs / 2]) {
    const denied = await queue("denied", { timeoutMs });
    assert.deepEqual([denied.allowed, denied.reason], [false, "over_limit"]);
    assert.ok(denied.retryAfterMs > windowMs / 2 && denied.retryAfterMs <= windowMs, `${denied.retryAfterMs}`);
    assert.match(denied.why, /has used 2 of 2/);
  }
  assert.ok(performance.now() - start < windowMs / 2);
  assert.equal(await used(), 2);
});

each("no more wait than may", async (at) => {
  const { one, key, queue, used } = at(1, { maxWaiting: 2 });
  await queue("first");
  const waiting = [queue("a")];
  await aWhile();
  waiting.push(queue("b"));
  await aWhile();
  const full = await queue("c");
  assert.deepEqual([full.allowed, full.reason], [false, "queue_full"]);
  assert.match(full.why, /lets no more requests wait|as this client lets wait/);
  for (const turn of waiting) {
    await one.refund(key, 1);
    assert.equal((await turn).allowed, true);
  }
  assert.equal(await used(), 1);
});

each("what is invalid rejects, and charges nothing", async (at) => {
  const { one, key, used, longest } = at(1);
  for (const options of [5, null, "5", { timeoutMs: -1 }, { timeoutMs: longest + 1 }, { timeoutMs: "2s" }, { timeoutMs: NaN }, { signal: {} }]) {
    await assert.rejects(one.acquire(key, options), { name: "SlidegateError", code: "invalid_options" }, JSON.stringify(options));
  }
  await assert.rejects(one.acquire(key, { timeout: 5 }), { code: "invalid_options", message: 'unknown option "timeout"' });
  // What cannot be counted is a decision of a client, as in its other calls.
  const isRefused = (one instanceof Client) ? async (call) => assert.equal((await call).source, "invalid") : (call) => assert.rejects(call, { code: "invalid_request" });
  for (const cost of [-1, 1.5, "1", NaN]) await isRefused(one.acquire(key, { cost }));
  await isRefused(one.acquire(5));
  assert.equal(await used(), 0);
});

test("client: reservations wait until what is in flight has ended", { timeout: 60_000 }, async () => {
  const one = new Client(service.url, { timeoutMs: 5000 });
  const team = `team-${keys++}`;
  const first = await one.reserve({ team }, 1);
  const controller = new AbortController();
  const aborted = one.reserve({ team }, 1, { waitMs: 60_000, signal: controller.signal });
  const turn = one.reserve({ team }, 1, { waitMs: 60_000, signal: end.signal });
  await aWhile();
  controller.abort();
  await assert.rejects(aborted, { name: "AbortError" });
  await aWhile();
  await first.cancel();
  const second = await turn;
  assert.equal(second.allowed, true);
  await second.cancel();
});

// In memory, tests advance the time.
each("a turn comes when the window has room again, to the millisecond", async (at) => {
  const clock = new ManualClock();
  const { queue, order, used } = at(2, { clock });
  await queue("first", { cost: 2 });
  const waiting = [queue("a"), queue("b", { cost: 2 }), queue("c")];
  clock.advance(600_000 - 1);
  await aWhile();
  assert.deepEqual(order, ["first"]);
  clock.advance(1);
  await waiting[0];
  await aWhile();
  assert.deepEqual(order, ["first", "a"]);
  assert.equal(await used(), 1);
  clock.advance(600_000);
  await waiting[1];
  clock.advance(600_000);
  await waiting[2];
  assert.deepEqual(order, ["first", "a", "b", "c"]);
  assert.equal(clock.waiting.size, 0);
}, ["limiter", "gate"]);

test("other keys do not wait for each other, and configure lets waiters ask again", { timeout: 60_000 }, async () => {
  const limiter = new Limiter("1/10m");
  await limiter.acquire("alice");
  const alice = limiter.acquire("alice", { timeoutMs: HOUR, signal: end.signal });
  assert.equal((await limiter.acquire("bob", { timeoutMs: 0 })).allowed, true);
  limiter.configure("2/10m");
  const { used, limit } = await alice;
  assert.deepEqual([used, limit], [2, 2]);
});

/** Gates with these policies, and keys of their own. */
const GATES = {
  gate: (policies) => new Gate(policies),
  "shared gate": (policies) => new SharedGate(redis.url, policies, patient),
};

for (const [row, gate] of Object.entries(GATES)) {
  const gateOf = (policies) => ({ one: gate(policies), user: `user-${keys++}`, team: `team-${keys++}` });

  test(`${row}: a request waits until all of its policies admit it`, { timeout: 60_000 }, async () => {
    const { one, ...who } = gateOf([
      { name: "per-user", scope: ["user"], quota: "1/10m" },
      { name: "per-team", scope: ["team"], quota: "2/10m" },
    ]);
    await one.check({ team: who.team }, 2);
    await one.check({ user: who.user });
    let decision = null;
    const turn = one.acquire(who, { timeoutMs: HOUR, signal: end.signal }).then((answer) => (decision = answer));
    await aWhile();
    await one.refund({ user: who.user });
    await aWhile();
    assert.equal(decision, null);
    await one.refund({ team: who.team });
    await turn;
    assert.deepEqual(decision.policies.map(({ policy, used }) => [policy, used]), [["per-user", 1], ["per-team", 2]]);
    // The only policy that decides has no room, and another one does not matter.
    assert.equal((await one.acquire({ ...who, user: "other" }, { policy: "per-user", timeoutMs: 0 })).allowed, true);
  });

  test(`${row}: reservations wait until what is in flight has ended`, { timeout: 60_000 }, async () => {
    const { one, user } = gateOf([
      { name: "jobs", scope: ["user"], in_flight: 1, lease: "10m" },
      { name: "tokens", scope: ["user"], quota: "100/10m" },
    ]);
    const order = [];
    const waiting = (who, options) => one.reserve({ user }, 10, { waitMs: HOUR, signal: end.signal, ...options }).then((reservation) => {
      order.push(who);
      return reservation;
    });
    const first = await waiting("first", { waitMs: 0 });
    assert.equal(first.allowed, true);
    const controller = new AbortController();
    const turns = [];
    for (const [who, options] of [["a", {}], ["aborted", { signal: controller.signal }], ["b", { ttlMs: 5000 }]]) {
      turns.push(waiting(who, options));
      await aWhile();
    }
    controller.abort();
    await assert.rejects(turns[1], { name: "AbortError" });
    assert.deepEqual(order, ["first"]);
    await first.settle(7);
    const second = await turns[0];
    assert.deepEqual(order, ["first", "a"]);
    assert.equal((await one.peek({ user }, 1, { policy: "tokens" })).held, 10);
    await second.cancel();
    const third = await turns[2];
    third.record(1);
    await third.close();
    const { used, held } = await one.peek({ user }, 1, { policy: "tokens" });
    assert.deepEqual([used, held], [8, 0]);
    const late = await one.reserve({ user }, 101, { waitMs: 1000 });
    assert.deepEqual([late.allowed, late.ticket], [false, null]);
    await assert.rejects(one.reserve({ user }, 1, { waitMs: 1000, idempotencyKey: "a" }), { code: "invalid_options" });
    await assert.rejects(one.reserve({ user }, 1, { waitMs: -1 }), { code: "invalid_options" });
  });

  test(`${row}: no more than the permits run at once, and what throws gives its permit back`, { timeout: 60_000 }, async () => {
    const { one, user } = gateOf([{ name: "jobs", scope: ["user"], in_flight: 2, lease: "10m" }]);
    let running = 0, most = 0;
    const job = one.wrap(async (i) => {
      running += 1;
      most = Math.max(most, running);
      await sleep(5);
      running -= 1;
      if (i % 2) throw new RangeError(`job ${i}`);
      return i;
    }, { attributes: { user }, reserve: {}, timeoutMs: HOUR, signal: end.signal });
    const ended = await Promise.allSettled(Array.from({ length: 8 }, (_, i) => job(i)));
    assert.deepEqual(ended.map((one) => one.value ?? one.reason.message), [0, "job 1", 2, "job 3", 4, "job 5", 6, "job 7"]);
    assert.deepEqual([running, most], [0, 2]);
    assert.equal((await one.peek({ user })).held, 0);
  });

  test(`${row}: a job with a reservation is charged in full`, { timeout: 60_000 }, async () => {
    const { one, user } = gateOf([{ name: "tokens", scope: ["user"], quota: "100/10m" }]);
    const options = { attributes: { user }, cost: 40, reserve: { ttlMs: 60_000 } };
    assert.equal(await one.schedule(options, async () => (await one.peek({ user })).held), 40);
    const { used, held } = await one.peek({ user });
    assert.deepEqual([used, held], [40, 0]);
  });
}

each("wrap calls with arguments and this, after the turn has come", async (at) => {
  const { one, key, subject, used } = at(3);
  const account = {
    name: "alice's",
    async pay(amount, currency) {
      return [this.name, amount, currency, (await one.peek(key)).used];
    },
  };
  account.pay = one.wrap(account.pay, { ...subject, cost: (amount) => amount, timeoutMs: 0 });
  assert.deepEqual(await account.pay(2, "EUR"), ["alice's", 2, "EUR", 2]);
  await assert.rejects(account.pay(2, "EUR"), { name: "SlidegateError", code: "denied" });
  assert.equal(await used(), 2);
});

each("calls of a wrapped function are made in order, as turns come", async (at) => {
  const { one, key, subject, longest } = at(1);
  const called = [];
  const wrapped = one.wrap((who) => called.push(who), { ...subject, timeoutMs: longest, signal: end.signal });
  const calls = [];
  for (const who of ["a", "b", "c"]) {
    calls.push(wrapped(who));
    await aWhile();
  }
  assert.deepEqual(called, ["a"]);
  await one.refund(key, 1);
  await calls[1];
  await one.refund(key, 1);
  assert.equal(await calls[2], 3);
  assert.deepEqual(called, ["a", "b", "c"]);
});

each("schedule takes a function and its arguments, after options", async (at) => {
  const { one, subject, used } = at(3);
  const sum = (a, b) => a + b;
  assert.equal(await one.schedule(subject, sum, 1, 2), 3);
  assert.equal(await one.schedule({ ...subject, cost: 2 }, async () => "later"), "later");
  assert.equal(await used(), 3);
  if (!(one instanceof Client)) assert.equal(await one.schedule(sum, 3, 4), 7);
});

each("what the function throws is what the caller gets, and it is charged", async (at) => {
  const { one, subject, used } = at(5);
  const error = new TypeError("mine");
  const synchronous = () => {
    throw error;
  };
  for (const fn of [synchronous, async () => synchronous()]) await assert.rejects(one.schedule(subject, fn), error);
  assert.equal(await used(), 2);
});

each("without a turn, the function is not called, and the error says how long to wait", async (at) => {
  const { one, subject, queue, windowMs } = at(1);
  await queue("first");
  const fn = () => assert.fail("called");
  await assert.rejects(one.schedule({ ...subject, timeoutMs: 1000 }, fn), (error) => {
    assert.deepEqual([error.name, error.code, error.decision.reason], ["SlidegateError", "denied", "over_limit"]);
    assert.match(error.message, /^no turn: .* has used 1 of 1/);
    return error.retryAfterMs > windowMs / 2;
  });
  const signal = AbortSignal.abort(new Error("mine"));
  await assert.rejects(one.schedule({ ...subject, signal }, fn), { message: "mine" });
  await assert.rejects(one.schedule({ ...subject, timeout: 5 }, fn), { code: "invalid_options" });
  await assert.rejects(one.schedule({ ...subject }), { code: "invalid_request" });
  assert.throws(() => one.wrap("text"), { code: "invalid_request", message: /invalid function "text"/ });
});
