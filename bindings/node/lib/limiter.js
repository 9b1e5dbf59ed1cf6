// One quota, many keys, in the memory of the process. Synchronous.

import { Decision } from "./decision.js";
import { SlidegateError, invalidRequest, shown } from "./errors.js";
import { calling, native } from "./native.js";
import { checkCost, rejectUnknown } from "./request.js";
import { TURN, Turns, acquireOptions, inQueue } from "./waiting.js";

const CHECK = 0;
const PEEK = 1;
const REFUND = 2;
const PENALIZE = 3;
const RESET = 4;

const DONE = 1;
const NOT_TEXT = 2;
const LONE_SURROGATE = 3;

/**
 * What a call exchanges with the native part. Before it: verb, cost. After it: status, cost, limit, used,
 * remaining, then microseconds until the request fits, until nothing is used and until something is freed
 * (-1: never), and when nothing is used. A call ends before another begins, so a thread has one array. It
 * stays private to this file: the native part knows its address, so nobody may detach it.
 */
const numbers = new Float64Array(new ArrayBuffer(9 * Float64Array.BYTES_PER_ELEMENT));

export class Limiter extends Turns {
  #native;
  #clock;
  #call;
  #facts;

  /** @param quota text such as "100/1m", or `{ limit, window }` */
  constructor(quota, { algorithm, burst, clock, maxKeys, maxWaiting, name = "default", shared } = {}) {
    super();
    const { NativeLimiter } = native();
    const text = quotaText(quota);
    this.#native = calling(() => shared === undefined
      ? new NativeLimiter(text, algorithm, optionalCount("burst", burst), clock?.native, optionalCount("maxKeys", maxKeys), optionalCount("maxWaiting", maxWaiting))
      : NativeLimiter.shared(String(shared), text, algorithm, optionalCount("burst", burst)));
    this.#call = this.#native.calls(numbers);
    this.#clock = clock;
    this.#facts = { ...this.#native.quota, policy: String(name) };
  }

  /** The limiter of this name, which all worker threads of the process share. The first one's quota holds. */
  static shared(name, quota, options) {
    return new Limiter(quota, { ...options, shared: name });
  }

  /** Whether a request is allowed; charges it if it is. The fastest of all calls. */
  allows(key, cost = 1) {
    return this.#apply(CHECK, key, cost) === DONE;
  }

  /** Decides a request and charges it if it is allowed. A denial charges nothing. */
  check(key, cost = 1) {
    return this.#decide(CHECK, key, cost);
  }

  /** Waits for its turn instead of being denied, behind those who wait for the same key. Charges nothing while it waits. */
  async acquire(key, options) {
    const { cost = 1, timeoutMs, signal, ...unknown } = acquireOptions(options);
    rejectUnknown(unknown);
    this.#apply(PEEK, key, cost); // throws if one of them is invalid
    const ask = (number) => this.#native.acquire(number, key, cost, timeoutMs);
    const { numbers, reason } = (await inQueue(this.#native, ask, { signal, clock: this.#clock })).numbers;
    return new LimiterDecision(numbers, this.#facts, reason);
  }

  async [TURN]({ key = "default", cost, waitMs, signal, ...unknown }) {
    rejectUnknown(unknown);
    return { decision: waitMs === undefined ? this.check(key, cost) : await this.acquire(key, { cost, timeoutMs: waitMs, signal }) };
  }

  /** What `check` would say, without charging. */
  peek(key, cost = 1) {
    return this.#decide(PEEK, key, cost);
  }

  /** Returns cost that was charged and still counts; the decision's `cost` says how much that was. */
  refund(key, cost = 1) {
    return this.#decide(REFUND, key, cost);
  }

  /** Charges a cost even if it exceeds the limit: for costs known only afterwards. */
  penalize(key, cost = 1) {
    return this.#decide(PENALIZE, key, cost);
  }

  /** Forgets a key; returns whether anything counted on it. */
  reset(key) {
    return this.#apply(RESET, key, 0) === DONE;
  }

  /** Puts another quota in force. Keys keep what they have used. */
  configure(quota, { algorithm, burst } = {}) {
    calling(() => this.#native.configure(quotaText(quota), algorithm, optionalCount("burst", burst)));
    this.#facts = { ...this.#native.quota, policy: this.#facts.policy };
  }

  /** The quota in force, as text. */
  get quota() {
    return this.#native.quota.text;
  }

  get windowMs() {
    return this.#native.quota.windowMs;
  }

  #apply(verb, key, cost) {
    numbers[0] = verb;
    numbers[1] = checkCost(cost);
    this.#call(key);
    const status = numbers[0];
    if (status > DONE) throw failure(status, key);
    return status;
  }

  #decide(verb, key, cost) {
    const allowed = this.#apply(verb, key, cost) === DONE;
    return new LimiterDecision(numbers, this.#facts, allowed ? null : "over_limit");
  }
}

/** Reads the numbers of a call. */
class LimiterDecision extends Decision {
  #freesUs;
  #resetAtUs;
  #facts;

  constructor(numbers, facts, reason) {
    const retryUs = numbers[5];
    const retryMs = retryUs < 0 ? null : Math.ceil(retryUs / 1000);
    super(numbers[0] === DONE, numbers[2], numbers[3], numbers[4], numbers[1], retryMs, Math.ceil(numbers[6] / 1000), reason, facts);
    this.#freesUs = numbers[7];
    this.#resetAtUs = numbers[8];
    this.#facts = facts;
  }

  get why() {
    if (this.allowed) return null;
    const { policy, text } = this.#facts;
    if (this.reason === "queue_full") return `Policy \`${policy}\` (${text}) lets no more requests wait: as many wait as may.`;
    const when = this.retryAfterMs === null ? "The request never fits, however long it waits." : `Retry in ${this.#retryAfterS()} seconds.`;
    return `Policy \`${policy}\` (${text}) would be exceeded: its key has used ${this.used} of ${this.limit}. ${when}`;
  }

  /** As the native part writes those of gates. */
  get headers() {
    const { policy, limit, windowMs } = this.#facts;
    const name = `"${policy.replace(/[^ !#-[\]-~]/g, "_")}"`;
    const window = windowMs >= 1000 ? `;w=${Math.ceil(windowMs / 1000)}` : "";
    const retryAfter = this.allowed || this.retryAfterMs === null ? null : this.#retryAfterS();
    const freesS = Math.ceil(this.#freesUs / 1e6);
    // A later `t` than `Retry-After` would contradict it.
    const frees = this.#freesUs < 0 || (retryAfter !== null && freesS > retryAfter) ? "" : `;t=${integer(freesS)}`;
    const fields = [
      ["ratelimit-policy", `${name};q=${integer(limit)}${window}`],
      ["ratelimit", `${name};r=${integer(this.remaining)}${frees}`],
      ["x-ratelimit-limit", String(integer(this.limit))],
      ["x-ratelimit-remaining", String(integer(this.remaining))],
      ["x-ratelimit-reset", String(integer(Math.ceil(this.#resetAtUs / 1e6)))],
    ];
    if (retryAfter !== null) fields.push(["retry-after", String(integer(retryAfter))]);
    return fields;
  }

  #retryAfterS() {
    return Math.max(1, Math.ceil(this.retryAfterMs / 1000));
  }
}

/** The largest Integer of a structured field (RFC 9651). */
function integer(number) {
  return Math.min(number, 999_999_999_999_999);
}

function quotaText(quota) {
  if (typeof quota === "string") return quota;
  if (quota !== null && typeof quota === "object" && "limit" in quota && "window" in quota) return `${quota.limit}/${quota.window}`;
  throw new SlidegateError("invalid_quota", `invalid quota ${shown(quota)}: must be text such as "100/1m", or { limit, window }`);
}

export function optionalCount(name, value) {
  if (value === undefined) return undefined;
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw new SlidegateError("invalid_options", `invalid ${name} ${shown(value)}: must be a whole number above 0`);
}

function failure(status, key) {
  if (status === NOT_TEXT) return invalidRequest(`invalid key ${shown(key)}: must be text, given ${typeof key}`, "key");
  if (status === LONE_SURROGATE) {
    return invalidRequest("invalid key: has a lone surrogate, which is no text; encode it, for example as hex", "key");
  }
  return new SlidegateError("internal", "the native part of slidegate failed; please report it");
}
