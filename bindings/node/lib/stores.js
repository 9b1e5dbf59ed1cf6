// Stores for the rate limiters of other packages, with exact windows.
//
// A denied request charges nothing here. Other stores charge it, so that a client that keeps asking stays
// denied longer.

import { SlidegateError } from "./errors.js";
import { Limiter } from "./limiter.js";

/** Quotas that one store may meet: each has a limiter of its own. */
const MAX_QUOTAS = 64;

/** Limiters by quota, for packages that give limit and window with each call. */
class Limiters {
  #byQuota = new Map();
  #options;

  constructor(options) {
    this.#options = options;
  }

  of(limit, windowMs) {
    const quota = `${limit}/${windowMs}ms`;
    let limiter = this.#byQuota.get(quota);
    if (limiter === undefined) {
      if (this.#byQuota.size >= MAX_QUOTAS) {
        const message = `too many quotas: ${quota} would be more than ${MAX_QUOTAS}; use few limits and windows, as each counts on its own`;
        throw new SlidegateError("invalid_quota", message);
      }
      limiter = new Limiter(quota, this.#options);
      this.#byQuota.set(quota, limiter);
    }
    return limiter;
  }
}

/**
 * A class for the option `store` of `@fastify/rate-limit`. It is exact: each call has its limit and window.
 * `options` are those of a Limiter.
 */
export function fastifyStore(options) {
  return class FastifyStore {
    #limiters = new Limiters(options);

    incr(key, callback, windowMs, max) {
      answer(callback, () => {
        const decision = this.#limiters.of(max, windowMs).check(key);
        return fastifyAnswer(decision, decision.used);
      });
    }

    read(key, callback, windowMs, max) {
      answer(callback, () => {
        const decision = this.#limiters.of(max, windowMs).peek(key);
        return fastifyAnswer(decision, decision.used + 1);
      });
    }

    /** A route with its own limit counts on its own. */
    child() {
      return new FastifyStore();
    }
  };
}

/** `current` above the limit is a denial. */
function fastifyAnswer({ allowed, limit, retryAfterMs, resetAfterMs }, current) {
  return allowed ? { current, ttl: resetAfterMs } : { current: limit + 1, ttl: retryAfterMs ?? resetAfterMs };
}

function answer(callback, decide) {
  let result;
  try {
    result = decide();
  } catch (error) {
    return callback(error);
  }
  return callback(null, result);
}

/** A store for the option `store` of `express-rate-limit` and `hono-rate-limiter`. */
export class ExpressRateLimitStore {
  /** Keys of two of these stores are not of one limit, even if they are the same text. */
  localKeys = true;
  #options;
  #limiter;
  #countsDenied;

  /** `options` are those of a Limiter. */
  constructor(options) {
    this.#options = options;
  }

  init({ limit, windowMs }) {
    // A limit that is a function is not known here: every hit is charged, as by other stores.
    this.#countsDenied = typeof limit !== "number";
    this.#limiter = new Limiter(`${this.#countsDenied ? 1_000_000_000 : limit}/${windowMs}ms`, this.#options);
  }

  get(key) {
    const { used, resetAfterMs } = this.#limiter.peek(key);
    return used === 0 ? undefined : { totalHits: used, resetTime: after(resetAfterMs) };
  }

  increment(key) {
    const decision = this.#countsDenied ? this.#limiter.penalize(key) : this.#limiter.check(key);
    const { allowed, limit, used, retryAfterMs, resetAfterMs } = decision;
    // More hits than the limit are a denial.
    return allowed ? { totalHits: used, resetTime: after(resetAfterMs) } : { totalHits: limit + 1, resetTime: after(retryAfterMs ?? resetAfterMs) };
  }

  decrement(key) {
    this.#limiter.refund(key);
  }

  resetKey(key) {
    this.#limiter.reset(key);
  }
}

function after(ms) {
  return new Date(Date.now() + ms);
}

/** A `storage` for `ThrottlerModule` of `@nestjs/throttler`. It is exact: each call has its limit and window. */
export class NestThrottlerStorage {
  #limiters;

  /** `options` are those of a Limiter. */
  constructor(options) {
    this.#limiters = new Limiters(options);
  }

  /** There is no block beyond the wait itself, so `blockDuration` is not used. */
  async increment(key, ttl, limit, _blockDuration, throttlerName) {
    const { allowed, used, retryAfterMs, resetAfterMs } = this.#limiters.of(limit, ttl).check(`${throttlerName}:${key}`);
    const seconds = (ms) => Math.ceil(ms / 1000);
    const wait = allowed ? 0 : seconds(retryAfterMs ?? resetAfterMs);
    return { totalHits: allowed ? used : limit + 1, timeToExpire: seconds(resetAfterMs), isBlocked: !allowed, timeToBlockExpire: wait };
  }
}
