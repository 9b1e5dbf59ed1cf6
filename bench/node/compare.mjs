// What a decision costs in Node, and what a limit of 100 lets through: slidegate and what is used instead.
//
//     npm install && npm install SLIDEGATE-PACKAGES && node compare.mjs [redis://127.0.0.1:6379]
//
// CPU is this process's, all threads, per decision; the median of rounds that alternate between the candidates.
// Without a URL, only memory is measured. @upstash/ratelimit decides in its service only, which is asked over HTTP: here
// its scripts run on the same Redis, by the same client as those of rate-limiter-flexible.

import { createHash } from "node:crypto";

import { memoryStore } from "@joint-ops/hitlimit/stores/memory";
import { Ratelimit } from "@upstash/ratelimit";
import { MemoryStore } from "express-rate-limit";
import Redis from "ioredis";
import { RateLimiterMemory, RateLimiterRedis } from "rate-limiter-flexible";
import { Gate, Limiter, SharedGate } from "slidegate";

const ROUNDS = 9;
const KEYS = Array.from({ length: 10_000 }, (_, i) => `10.${(i * 7919) % 256}.${i >> 8}.${i & 255}`);
const LIMIT = 100;
const WINDOW_MS = 2000;
const url = process.argv[2];
const redis = url ? new Redis(url) : null;

const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

async function report(title, candidates, count) {
  console.log(`\n${title}, CPU ns per decision\n`);
  const found = Object.fromEntries(Object.keys(candidates).map((name) => [name, []]));
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [name, run] of Object.entries(candidates)) {
      const before = process.cpuUsage();
      await run(count);
      const { user, system } = process.cpuUsage(before);
      if (round > 0) found[name].push(((user + system) * 1000) / count);
    }
  }
  for (const [name, values] of Object.entries(found)) console.log(`| ${name} | ${Math.round(median(values))} |`);
}

/** Calls that return at once. */
const loop = (call) => (count) => {
  for (let i = 0; i < count; i++) call(KEYS[i % KEYS.length]);
};

/** Calls that return a promise, so many at once. */
const promises = (call, width) => async (count) => {
  for (let i = 0; i < count; i += width) {
    await Promise.all(Array.from({ length: width }, (_, at) => call(KEYS[(i + at) % KEYS.length])));
  }
};

const allows = (promise) => promise.then(() => true, (denial) => {
  if (denial instanceof Error) throw denial;
  return false;
});

/** A limiter of @upstash/ratelimit. Only its service knows the flag in the first line of its scripts. */
function upstash(algorithm) {
  const known = new Map();
  const client = {
    evalsha: (sha, keys, args) => redis.evalsha(known.get(sha) ?? sha, keys.length, ...keys, ...args),
    eval: async (script, keys, args) => {
      const plain = script.replace(/^#!.*\n/, "");
      known.set(createHash("sha1").update(script).digest("hex"), await redis.script("LOAD", plain));
      return redis.eval(plain, keys.length, ...keys, ...args);
    },
  };
  const limiter = new Ratelimit({ redis: client, limiter: algorithm, ephemeralCache: false });
  return async (key) => (await limiter.limit(key)).success;
}

async function memory() {
  const limiter = new Limiter("1000/1m");
  const checked = new Limiter("1000/1m");
  const gate = new Gate([{ name: "bench", scope: ["user"], quota: "1000/1m" }]);
  const hitlimit = memoryStore();
  const express = new MemoryStore();
  express.init({ windowMs: 60_000 });
  const flexible = new RateLimiterMemory({ points: 1000, duration: 60 });
  const candidates = {
    "an empty function": loop((key) => key),
    "slidegate, Limiter.allows": loop((key) => limiter.allows(key)),
    "slidegate, Limiter.check": loop((key) => checked.check(key)),
    "slidegate, Gate.check, with header fields": loop((key) => gate.check({ user: key })),
    "hitlimit, memory store": loop((key) => hitlimit.hit(key, 60_000, 1000)),
    "express-rate-limit, memory store": promises((key) => express.increment(key), 1),
    "rate-limiter-flexible, memory": promises((key) => allows(flexible.consume(key)), 1),
  };
  await report("In memory, 10,000 keys", candidates, 100_000);
  express.shutdown();
  hitlimit.shutdown?.();
}

async function shared() {
  const gate = new SharedGate(url, [{ name: "bench", scope: ["user"], quota: "1000/1m" }], { deadlineMs: 1000 });
  const flexible = new RateLimiterRedis({ storeClient: redis, points: 1000, duration: 60 });
  const weighted = upstash(Ratelimit.slidingWindow(1000, "1 m"));
  const candidates = {
    "slidegate, one after the other": promises((key) => gate.check({ user: key }), 1),
    "rate-limiter-flexible, one after the other": promises((key) => allows(flexible.consume(key)), 1),
    "@upstash/ratelimit, sliding window, one after the other": promises(weighted, 1),
    "slidegate, 100 at once": promises((key) => gate.check({ user: key }), 100),
    "rate-limiter-flexible, 100 at once": promises((key) => allows(flexible.consume(key)), 100),
    "@upstash/ratelimit, sliding window, 100 at once": promises(weighted, 100),
  };
  await report("Over Redis", candidates, 5000);
}

/** One request, most of the others just before the window of that one ends, and the rest just after. Some count by the clock. */
async function mostInAWindow(isAllowed) {
  await new Promise((resolve) => setTimeout(resolve, WINDOW_MS - (Date.now() % WINDOW_MS) + 10));
  const start = performance.now();
  const admitted = (await isAllowed()) ? [start] : [];
  for (const at of [0.9, 1.02]) {
    await new Promise((resolve) => setTimeout(resolve, start + at * WINDOW_MS - performance.now()));
    for (let i = 0; i < 2 * LIMIT; i++) {
      const now = performance.now();
      if (await isAllowed()) admitted.push(now);
    }
  }
  return Math.max(...admitted.map((one) => admitted.filter((other) => one <= other && other < one + WINDOW_MS).length));
}

async function exactness() {
  console.log(`\nAdmitted within one window at a limit of ${LIMIT}\n`);
  const limiter = new Limiter(`${LIMIT}/${WINDOW_MS}ms`);
  const hitlimit = memoryStore();
  const express = new MemoryStore();
  express.init({ windowMs: WINDOW_MS });
  const flexible = new RateLimiterMemory({ points: LIMIT, duration: WINDOW_MS / 1000 });
  const candidates = {
    "slidegate, Limiter": () => limiter.allows("a"),
    "hitlimit, memory store": () => hitlimit.hit("a", WINDOW_MS, LIMIT).count <= LIMIT,
    "express-rate-limit, memory store": async () => (await express.increment("a")).totalHits <= LIMIT,
    "rate-limiter-flexible, memory": () => allows(flexible.consume("a")),
  };
  if (redis) {
    const gate = new SharedGate(url, [{ name: "exact", quota: `${LIMIT}/${WINDOW_MS}ms` }], { deadlineMs: 1000 });
    const overRedis = new RateLimiterRedis({ storeClient: redis, keyPrefix: "exact", points: LIMIT, duration: WINDOW_MS / 1000 });
    candidates["slidegate, SharedGate"] = async () => (await gate.check({})).allowed;
    candidates["rate-limiter-flexible, Redis"] = () => allows(overRedis.consume("a"));
    const weighted = upstash(Ratelimit.slidingWindow(LIMIT, `${WINDOW_MS} ms`));
    candidates["@upstash/ratelimit, sliding window"] = () => weighted("a");
    const fixed = upstash(Ratelimit.fixedWindow(LIMIT, `${WINDOW_MS} ms`));
    candidates["@upstash/ratelimit, fixed window"] = () => fixed("b");
  }
  for (const [name, isAllowed] of Object.entries(candidates)) console.log(`| ${name} | ${await mostInAWindow(isAllowed)} |`);
}

await memory();
if (redis) await shared();
await exactness();
process.exit();
