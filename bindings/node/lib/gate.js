// Many policies, one verdict: in memory (`Gate`), and over Redis (`SharedGate`).

import { readFileSync } from "node:fs";

import { Decision } from "./decision.js";
import { SlidegateError, invalidRequest, shown } from "./errors.js";
import { optionalCount } from "./limiter.js";
import { calling, native, read } from "./native.js";
import { attributePairs, checkIdempotencyKey, costPairs, rejectUnknown } from "./request.js";
import { Reservation } from "./reservation.js";
import { Turns, acquireOptions, checkWait, inQueue } from "./waiting.js";

const CHECK = 0;
const PEEK = 1;
const REFUND = 2;
const PENALIZE = 3;
const DEFAULT_NAME = "policies";

/** The native part takes and returns JSON, at once or by a promise. `run(prepare, ask, convert)` makes of it what the gate returns. */
class AnyGate extends Turns {
  #native;
  #clock;

  constructor(nativeGate, clock) {
    super();
    this.#native = nativeGate;
    this.#clock = clock;
  }

  check(attributes, cost, { policy, idempotencyKey } = {}) {
    return this.#decide(CHECK, attributes, cost, { policy, idempotencyKey });
  }

  /** Waits for its turn instead of being denied, behind those who wait for the same keys. Charges nothing while it waits. */
  async acquire(attributes, options) {
    const { cost, policy, timeoutMs, signal, ...unknown } = acquireOptions(options);
    rejectUnknown(unknown);
    const call = callOf(attributes, cost, { policy, timeoutMs });
    const { decision } = await this.#inQueue(signal, (number) => this.#native.acquire(number, call));
    return decisionOf(decision);
  }

  peek(attributes, cost, { policy } = {}) {
    return this.#decide(PEEK, attributes, cost, { policy });
  }

  refund(attributes, cost, { policy } = {}) {
    return this.#decide(REFUND, attributes, cost, { policy });
  }

  penalize(attributes, cost, { policy } = {}) {
    return this.#decide(PENALIZE, attributes, cost, { policy });
  }

  reset(attributes, { policy } = {}) {
    const ask = (call) => this.#native.reset(call);
    return this.run(() => callOf(attributes, undefined, { policy }), ask, ({ existed }) => existed);
  }

  /** Decides a request, and holds its cost if it is allowed, until it is settled. With `waitMs`, it waits for its turn. */
  reserve(attributes, cost, { policy, ttlMs, idempotencyKey, waitMs, signal } = {}) {
    const reservation = ({ decision }) => new Reservation(this, decisionOf(decision), decision.ticket);
    if (waitMs !== undefined) {
      return this.#reserveInTurn(attributes, cost, { policy, ttlMs, idempotencyKey, waitMs, signal }).then(reservation);
    }
    const ask = (call) => this.#native.reserve(call);
    return this.run(() => callOf(attributes, cost, { policy, ttlMs, idempotencyKey }), ask, reservation);
  }

  settle(ticket, cost) {
    return this.#change(ticket, () => ({ cost: costPairs(cost) }), (text, total) => this.#native.settle(text, total, true));
  }

  settleSoFar(ticket, cost) {
    return this.#change(ticket, () => ({ cost: costPairs(cost) }), (text, total) => this.#native.settle(text, total, false));
  }

  extend(ticket, { hold, ttlMs } = {}) {
    const change = () => ({ cost: optionalCost(hold), ttlMs: checkTtl(ttlMs) });
    return this.#change(ticket, change, (text, extension) => this.#native.extend(text, extension));
  }

  cancel(ticket) {
    return this.#change(ticket, () => undefined, (text) => this.#native.cancel(text));
  }

  /** Replaces the policies. Usage stays with their names. Nothing changes on an error. */
  configure(policies) {
    calling(() => this.#native.configure(policiesText(policies), DEFAULT_NAME));
  }

  async #reserveInTurn(attributes, cost, { policy, ttlMs, idempotencyKey, waitMs, signal }) {
    if (idempotencyKey !== undefined) throw new SlidegateError("invalid_options", "invalid idempotencyKey: a reservation that waits has none");
    const call = callOf(attributes, cost, { policy, ttlMs, timeoutMs: checkWait("waitMs", waitMs) });
    return this.#inQueue(signal, (number) => this.#native.acquireReservation(number, call));
  }

  #inQueue(signal, ask) {
    return inQueue(this.#native, ask, { signal, clock: this.#clock });
  }

  #decide(verb, attributes, cost, options) {
    const ask = (call) => this.#native.decide(verb, call);
    return this.run(() => callOf(attributes, cost, options), ask, ({ decision }) => decisionOf(decision));
  }

  #change(ticket, prepare, ask) {
    return this.run(() => [ticketText(ticket), JSON.stringify(prepare())], (change) => ask(...change), settlementOf);
  }
}

/** Many policies in the memory of the process. Synchronous: what is invalid throws. */
export class Gate extends AnyGate {
  /** @param policies objects with the keys of the YAML, or YAML */
  constructor(policies, { clock, maxKeys, maxWaiting, headers: { draft, xRatelimit } = {}, name = DEFAULT_NAME, ...unknown } = {}) {
    rejectUnknown(unknown);
    const settings = {
      clock: clock?.native,
      maxKeys: optionalCount("maxKeys", maxKeys),
      maxWaiting: optionalCount("maxWaiting", maxWaiting),
      draft,
      xRatelimit,
    };
    super(calling(() => native().NativeGate.memory(policiesText(policies), name, settings)), clock);
  }

  /** A gate of the policies in a YAML file, whose name is in error messages. */
  static fromFile(path, options) {
    return new Gate(readFileSync(path, "utf8"), { ...options, name: String(path) });
  }

  run(prepare, ask, convert) {
    const call = prepare();
    return convert(read(calling(() => ask(call))));
  }
}

/** Many policies over Redis, Sentinel or a cluster, shared by all processes. Every call returns a promise. */
export class SharedGate extends AnyGate {
  constructor(url, policies, options = {}) {
    const { headers = {}, maxWaiting, deadlineMs, connectTimeoutMs, connections, keySecret, hashedKeys, hashTag, caCertificates, ...unknown } = options;
    rejectUnknown(unknown);
    const { draft, xRatelimit } = headers;
    const settings = {
      draft,
      xRatelimit,
      maxWaiting: optionalCount("maxWaiting", maxWaiting),
      deadlineMs: optionalCount("deadlineMs", deadlineMs),
      connectTimeoutMs: optionalCount("connectTimeoutMs", connectTimeoutMs),
      connections: optionalCount("connections", connections),
      keySecret,
      hashedKeys,
      hashTag,
      caCertificates: caCertificates?.toString(),
    };
    const { NativeGate } = native();
    if (NativeGate.shared === undefined) {
      throw new SlidegateError("unsupported", "this build of slidegate has no Redis; build it with the feature `redis`");
    }
    super(calling(() => NativeGate.shared(String(url), policiesText(policies), DEFAULT_NAME, settings)));
  }

  async run(prepare, ask, convert) {
    const call = prepare();
    return convert(read(await calling(() => ask(call))));
  }
}

function policiesText(policies) {
  if (typeof policies === "string") return policies;
  if (policies !== null && typeof policies === "object") {
    const list = Array.isArray(policies) ? { policies } : policies;
    return JSON.stringify(list);
  }
  throw new SlidegateError("invalid_policy", `invalid policies ${shown(policies)}: must be a list of policies, or YAML`);
}

function callOf(attributes, cost, { policy, ttlMs, idempotencyKey: id, timeoutMs }) {
  checkIdempotencyKey(id);
  return JSON.stringify({ attributes: attributePairs(attributes), cost: optionalCost(cost), policy, id, ttlMs: checkTtl(ttlMs), timeoutMs });
}

/** Without a cost, a request costs 1, and a reservation holds what its policies estimate. */
function optionalCost(cost) {
  return cost === undefined ? undefined : costPairs(cost);
}

function checkTtl(ttlMs) {
  if (ttlMs === undefined || (Number.isFinite(ttlMs) && ttlMs > 0)) return ttlMs;
  throw invalidRequest(`invalid ttlMs ${shown(ttlMs)}: must be 1 to 3600000`, "ttlMs");
}

function ticketText(ticket) {
  if (typeof ticket === "string") return ticket;
  throw new SlidegateError("invalid_ticket", `invalid ticket ${shown(ticket)}: must be the text of a reservation`);
}

function decisionOf({ allowed, status, why, policies, strictest, headers, storeFailure }) {
  const details = { status, why, policies, headers, error: storeFailure === null ? null : new SlidegateError("store", storeFailure) };
  const binding = policies[strictest];
  if (binding === undefined) return new Decision(allowed, 0, 0, 0, 0, 0, 0, null, details);
  const { limit, used, remaining, cost, retryAfterMs, resetAfterMs, reason } = binding;
  details.policy = binding.policy;
  details.key = binding.key;
  details.held = binding.held;
  details.source = binding.source;
  return new Decision(allowed, limit, used, remaining, cost, retryAfterMs, resetAfterMs, allowed ? null : reason, details);
}

function settlementOf({ settlement: { status, policies, ticket } }) {
  const policy = ({ status, decision: { policy, limit, used, held, remaining, cost, retryAfterMs, resetAfterMs } }) => {
    return { policy, outcome: status, limit, used, held, remaining, cost, retryAfterMs, resetAfterMs };
  };
  return { outcome: status, policies: policies.map(policy), ticket };
}
