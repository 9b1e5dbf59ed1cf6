// Rate limiters over Redis as articles explain them: a few commands, or a script.
//
// Times are the program's, in milliseconds; counters expire in seconds where the articles use EXPIRE.

import { randomUUID } from "node:crypto";

/** Sorted set in one script: the requests of the window, of which only the admitted are added. */
const ZSET = `
local key, now, window, limit, member = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
redis.call("ZREMRANGEBYSCORE", key, 0, now - window)
if redis.call("ZCARD", key) >= limit then
  return 0
end
redis.call("ZADD", key, now, member)
redis.call("PEXPIRE", key, window)
return 1
`;

/** Two counters: the one of this window, and the previous one weighted by its overlap. */
const COUNTERS = `
local current, previous = KEYS[1], KEYS[2]
local elapsed, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local weight = (window - elapsed) / window
local used = tonumber(redis.call("GET", previous) or "0") * weight + tonumber(redis.call("GET", current) or "0")
if used >= limit then
  return 0
end
redis.call("INCR", current)
redis.call("PEXPIRE", current, window * 2)
return 1
`;

/** Increments a counter that expires, unless it would exceed the limit. Returns 0, or its TTL, or -1 if it never fits. */
const CAPPED = `
local key, cost, limit, window = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if cost > limit then
  return -1
end
if tonumber(redis.call("GET", key) or "0") + cost > limit then
  return math.max(redis.call("PTTL", key), 1)
end
if redis.call("INCRBY", key, cost) == cost then
  redis.call("PEXPIRE", key, window)
end
return 0
`;

/** ZREMRANGEBYSCORE, ZCARD and ZADD in a transaction: a request is added whether it is admitted or not. */
const inTransaction = (memberOf) => (redis, limit, windowMs) => async (key) => {
  const now = Date.now();
  const set = `rate:${key}`;
  const transaction = redis.multi().zremrangebyscore(set, 0, now - windowMs).zcard(set);
  const replies = await transaction.zadd(set, now, memberOf(now)).pexpire(set, windowMs).exec();
  for (const [error] of replies) if (error) throw error;
  return replies[1][1] < limit;
};

export const articles = {
  "article-incr": {
    can: [],
    make: (redis, limit, windowMs) => async (key) => {
      const count = await redis.incr(`rate:${key}`);
      if (count === 1) await redis.expire(`rate:${key}`, windowMs / 1000);
      return count <= limit;
    },
  },
  "article-zset-multi": { can: [], make: inTransaction((now) => `${now}-${randomUUID()}`) },
  "article-zset-ms": { can: [], make: inTransaction((now) => now) },
  "article-zset-race": {
    can: [],
    make: (redis, limit, windowMs) => async (key) => {
      const now = Date.now();
      const set = `rate:${key}`;
      await redis.zremrangebyscore(set, 0, now - windowMs);
      if ((await redis.zcard(set)) >= limit) return false;
      await redis.zadd(set, now, `${now}-${randomUUID()}`);
      await redis.pexpire(set, windowMs);
      return true;
    },
  },
  "article-zset-lua": {
    can: [],
    make: (redis, limit, windowMs) => {
      redis.defineCommand("zsetLimit", { numberOfKeys: 1, lua: ZSET });
      return async (key) => {
        const now = Date.now();
        return (await redis.zsetLimit(`rate:${key}`, now, windowMs, limit, `${now}-${randomUUID()}`)) === 1;
      };
    },
  },
  "article-counters-lua": {
    can: [],
    make: (redis, limit, windowMs) => {
      redis.defineCommand("countersLimit", { numberOfKeys: 2, lua: COUNTERS });
      return async (key) => {
        const now = Date.now();
        const window = Math.floor(now / windowMs);
        const keys = [`rate:${key}:${window}`, `rate:${key}:${window - 1}`];
        return (await redis.countersLimit(...keys, now % windowMs, windowMs, limit)) === 1;
      };
    },
  },
  "incr-capped": {
    can: ["cost", "wait"],
    make: (redis, limit, windowMs) => {
      redis.defineCommand("cappedLimit", { numberOfKeys: 1, lua: CAPPED });
      return async (key, cost) => {
        const waitMs = await redis.cappedLimit(`rate:${key}`, cost, limit, windowMs);
        return waitMs === 0 || (waitMs > 0 && waitMs);
      };
    },
  },
};
