// Rate limiters for Node, as programs that speak lines: see ../../README.md.
//
//     node adapter.mjs NAME
//
// A limiter is made from the limits in the environment and decides about a key and a cost. It returns true for admitted,
// DENIED for denied without a wait, or the milliseconds to wait. It imports the packages that only it needs.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { IncomingMessage, ServerResponse } from "node:http";
import { createInterface } from "node:readline";

import { articles } from "./articles.mjs";

const DENIED = false;

const { LIMIT, WINDOW_MS, LIMIT2, WINDOW2_MS, MAX_KEYS, REDIS } = process.env;
const limits = [{ limit: Number(LIMIT), windowMs: Number(WINDOW_MS) }];
if (LIMIT2) limits.push({ limit: Number(LIMIT2), windowMs: Number(WINDOW2_MS) });
const [{ limit, windowMs }] = limits;

async function connect() {
  const { default: Redis } = await import("ioredis");
  const redis = new Redis(REDIS, { lazyConnect: true });
  await redis.connect();
  return redis;
}

const apiKey = (request) => request.get("x-api-key");

/**
 * An Express app with `middleware`, called without sockets. Each request has its own turn of the event loop, as those of
 * separate connections have.
 */
async function expressApp(middleware) {
  const { default: express } = await import("express");
  const app = express();
  app.use(middleware);
  app.get("/", (_request, response) => response.end());
  return (key) =>
    new Promise((resolve, reject) => {
      const request = new IncomingMessage({ remoteAddress: "192.0.2.1" });
      Object.assign(request, { method: "GET", url: "/", headers: { "x-api-key": key } });
      const response = new ServerResponse(request);
      response.end = () => {
        if (response.statusCode === 200) resolve(true);
        else if (response.statusCode === 429) resolve(Number(response.getHeader("Retry-After")) * 1000);
        else reject(new Error(`status ${response.statusCode}`));
      };
      setImmediate(app, request, response);
    });
}

async function expressRateLimit(store) {
  const { rateLimit } = await import("express-rate-limit");
  const options = { windowMs, limit, standardHeaders: "draft-8", legacyHeaders: false, keyGenerator: apiKey, store };
  return expressApp(rateLimit(options));
}

async function hitlimit(store) {
  const { hitlimit } = await import("@joint-ops/hitlimit");
  return expressApp(hitlimit({ limit, window: windowMs, key: apiKey, store }));
}

/** A limiter of rate-limiter-flexible, or the union of two. Denials are rejections that are not errors. */
async function flexible(make) {
  const { RateLimiterUnion } = await import("rate-limiter-flexible");
  const all = limits.map(({ limit, windowMs }, i) => make({ keyPrefix: `limit${i}`, points: limit, duration: windowMs / 1000 }));
  const limiter = all.length === 1 ? all[0] : new RateLimiterUnion(...all);
  return (key, cost) =>
    limiter.consume(key, cost).then(
      () => true,
      (denial) => {
        if (denial instanceof Error) throw denial;
        const denials = all.length === 1 ? [denial] : Object.values(denial);
        return Math.max(...denials.map(({ msBeforeNext }) => msBeforeNext));
      },
    );
}

/** A limiter of @upstash/ratelimit. Only its service knows the flag in the first line of its scripts. */
async function upstash(algorithm) {
  const { Ratelimit } = await import("@upstash/ratelimit");
  const redis = await connect();
  const known = new Map();
  const client = {
    evalsha: (sha, keys, args) => redis.evalsha(known.get(sha) ?? sha, keys.length, ...keys, ...args),
    eval: async (script, keys, args) => {
      const plain = script.replace(/^#!.*\n/, "");
      known.set(createHash("sha1").update(script).digest("hex"), await redis.script("LOAD", plain));
      return redis.eval(plain, keys.length, ...keys, ...args);
    },
  };
  const limiter = new Ratelimit({ redis: client, limiter: algorithm(Ratelimit) });
  return async (key, cost) => {
    const { success, reset } = await limiter.limit(key, { rate: cost });
    return success || Math.max(0, reset - Date.now());
  };
}

/** Makes a limiter for a key that is new, for packages whose limiters have one key. */
function perKey(make) {
  const limiters = new Map();
  return (key) => {
    let limiter = limiters.get(key);
    if (!limiter) limiters.set(key, (limiter = make()));
    return limiter;
  };
}

/** Of the package `limiter`; it throws for the wait of a cost that never fits. */
const tryRemove = (limiterOf) => (key, cost) => {
  const limiter = limiterOf(key);
  if (limiter.tryRemoveTokens(cost)) return true;
  return limits.some(({ limit }) => cost > limit) ? DENIED : limiter.getWaitTime(cost);
};

async function bottleneck() {
  const { default: Bottleneck } = await import("bottleneck");
  const groups = limits.map(
    ({ limit, windowMs }) =>
      new Bottleneck.Group({
        reservoir: limit,
        reservoirRefreshAmount: limit,
        reservoirRefreshInterval: windowMs,
        highWater: 0,
        strategy: Bottleneck.strategy.OVERFLOW,
      }),
  );
  const [group, second] = groups;
  if (second) group.on("created", (limiter, key) => limiter.chain(second.key(key)));
  return (key, cost) =>
    group.key(key).schedule({ weight: cost }, async () => true).catch((error) => {
      if (error instanceof Bottleneck.BottleneckError && error.message.includes("dropped")) return DENIED;
      throw error;
    });
}

const slidegatePolicies = () =>
  limits.map(({ limit, windowMs }, i) => ({ name: `limit${i}`, scope: ["user"], quota: `${limit}/${windowMs}ms` }));

/** A cost that never fits has no wait. */
const slidegateAnswer = ({ allowed, retryAfterMs }) => allowed || (retryAfterMs ?? DENIED);

const limiters = {
  "express-rate-limit": { package: "express-rate-limit", can: ["wait"], make: () => expressRateLimit() },
  "rate-limit-redis": {
    package: "rate-limit-redis",
    can: ["wait"],
    make: async () => {
      const { RedisStore } = await import("rate-limit-redis");
      const redis = await connect();
      return expressRateLimit(new RedisStore({ sendCommand: (command, ...args) => redis.call(command, ...args) }));
    },
  },
  hitlimit: { package: "@joint-ops/hitlimit", can: ["wait"], make: () => hitlimit() },
  "hitlimit-redis": {
    package: "@joint-ops/hitlimit",
    can: ["wait"],
    make: async () => {
      const { redisStore } = await import("@joint-ops/hitlimit/stores/redis");
      return hitlimit(redisStore({ url: REDIS }));
    },
  },
  "rate-limiter-flexible": {
    package: "rate-limiter-flexible",
    can: ["cost", "wait", "several"],
    make: async () => {
      const { RateLimiterMemory } = await import("rate-limiter-flexible");
      return flexible((options) => new RateLimiterMemory(options));
    },
  },
  "rate-limiter-flexible-redis": {
    package: "rate-limiter-flexible",
    can: ["cost", "wait", "several"],
    make: async () => {
      const { RateLimiterRedis } = await import("rate-limiter-flexible");
      const storeClient = await connect();
      return flexible((options) => new RateLimiterRedis({ storeClient, ...options }));
    },
  },
  limiter: {
    package: "limiter",
    can: ["cost", "wait"],
    make: async () => {
      const { RateLimiter } = await import("limiter");
      return tryRemove(perKey(() => new RateLimiter({ tokensPerInterval: limit, interval: windowMs })));
    },
  },
  "limiter-token-bucket": {
    package: "limiter",
    can: ["cost", "wait", "several"],
    make: async () => {
      const { TokenBucket } = await import("limiter");
      const bucket = ({ limit, windowMs }, parentBucket) => {
        const made = new TokenBucket({ bucketSize: limit, tokensPerInterval: limit, interval: windowMs, parentBucket });
        made.content = limit; // It starts empty; RateLimiter fills its own like this.
        return made;
      };
      return tryRemove(perKey(() => bucket(limits[0], limits[1] && bucket(limits[1]))));
    },
  },
  bottleneck: { package: "bottleneck", can: ["cost", "several"], make: bottleneck },
  "upstash-sliding-window": {
    package: "@upstash/ratelimit",
    can: ["cost", "wait"],
    make: () => upstash((Ratelimit) => Ratelimit.slidingWindow(limit, `${windowMs} ms`)),
  },
  "upstash-fixed-window": {
    package: "@upstash/ratelimit",
    can: ["cost", "wait"],
    make: () => upstash((Ratelimit) => Ratelimit.fixedWindow(limit, `${windowMs} ms`)),
  },
  "upstash-token-bucket": {
    package: "@upstash/ratelimit",
    can: ["cost", "wait"],
    make: () => upstash((Ratelimit) => Ratelimit.tokenBucket(limit, `${windowMs} ms`, limit)),
  },
  "slidegate-node": {
    package: "slidegate",
    can: ["cost", "wait", "several", "max_keys"],
    make: async () => {
      const { Gate } = await import("slidegate");
      const gate = new Gate(slidegatePolicies(), MAX_KEYS ? { maxKeys: Number(MAX_KEYS) } : {});
      return (key, cost) => slidegateAnswer(gate.check({ user: key }, cost));
    },
  },
  "slidegate-node-redis": {
    package: "slidegate",
    can: ["cost", "wait", "several"],
    make: async () => {
      const { SharedGate } = await import("slidegate");
      const gate = new SharedGate(REDIS, slidegatePolicies());
      return async (key, cost) => slidegateAnswer(await gate.check({ user: key }, cost));
    },
  },
};

for (const [name, article] of Object.entries(articles)) {
  limiters[name] = {
    package: "ioredis",
    can: article.can,
    make: async () => article.make(await connect(), limit, windowMs),
  };
}

const say = (line) => process.stdout.write(`${line}\n`);

/** Decides before it returns if the limiter does: then its answer is written before the next line is read. */
async function answer(decide, line) {
  const [id, key, cost] = line.split(" ");
  try {
    const decided = decide(key, Number(cost));
    const result = decided instanceof Promise ? await decided : decided;
    if (result === true) say(`${id} +`);
    else say(result === DENIED ? `${id} -` : `${id} - ${result}`);
  } catch (error) {
    say(`${id} ! ${String(error.message ?? error).replace(/\s+/g, " ")}`);
  }
}

try {
  const limiter = limiters[process.argv[2]];
  if (!limiter) throw new Error(`invalid limiter \`${process.argv[2]}\`: must be one of ${Object.keys(limiters).join(", ")}`);
  const decide = await limiter.make();
  const manifest = new URL(`node_modules/${limiter.package}/package.json`, import.meta.url);
  say(JSON.stringify({ version: JSON.parse(readFileSync(manifest)).version, can: limiter.can }));
  const open = new Set();
  createInterface({ input: process.stdin })
    .on("line", (line) => {
      const done = answer(decide, line).finally(() => open.delete(done));
      open.add(done);
    })
    .on("close", async () => {
      await Promise.all(open);
      process.exit();
    });
} catch (error) {
  say(JSON.stringify({ error: String(error.message ?? error) }));
  process.exit(1);
}
