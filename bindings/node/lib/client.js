// Client of the slidegate service. Pure JavaScript: needs no native part.

import { Decision } from "./decision.js";
import { SlidegateError, invalidRequest, shown } from "./errors.js";
import { HttpCaller, invalidResponse } from "./http-call.js";
import { attributePairs, checkIdempotencyKey, costPairs, plainObject, rejectUnknown } from "./request.js";
import { Reservation } from "./reservation.js";
import { Turns, acquireOptions, checkSignal, checkWait } from "./waiting.js";

const PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#";
const MAX_BATCH = 1000;
const MAX_PAUSE_MS = 500;
const LIMIT_FIELD = /ratelimit|^retry-after(-ms)?$/;

/** The longest that the service lets a call wait. */
export const MAX_WAIT_MS = 60_000;

export class Client extends Turns {
  #http;
  #maxWaiting;
  #waiting = 0;
  #settleTimeoutMs;
  #failsOpen;

  constructor(url, { token, timeoutMs = 100, settleTimeoutMs = 5000, onFailure = "allow", maxConnections = 64, maxWaiting = 1024, tls } = {}) {
    super();
    for (const [name, value] of Object.entries({ timeoutMs, settleTimeoutMs, maxConnections, maxWaiting })) {
      if (!(Number.isInteger(value) && value > 0 && value < 2 ** 31)) {
        throw new SlidegateError("invalid_options", `invalid ${name} ${shown(value)}: must be a whole number above 0`);
      }
    }
    if (onFailure !== "allow" && onFailure !== "deny") {
      throw new SlidegateError("invalid_options", `invalid onFailure ${shown(onFailure)}: must be "allow" or "deny"`);
    }
    this.#http = new HttpCaller(url, { token, timeoutMs, maxConnections, maxWaiting, tls });
    this.#maxWaiting = maxWaiting;
    this.#settleTimeoutMs = settleTimeoutMs;
    this.#failsOpen = onFailure === "allow";
  }

  /** Decides a request, and charges it if it is allowed. Always resolves with a decision. */
  check(attributes, cost = 1, { policy, idempotencyKey } = {}) {
    return this.#decideOrFail("/v1/check", () => requestBody(attributes, cost, policy), { idempotencyKey });
  }

  /**
   * Waits for its turn instead of being denied, behind those who wait for the same keys at that service. Charges nothing
   * while it waits. Resolves with a decision, or rejects if `signal` is aborted.
   */
  async acquire(attributes, options) {
    const { cost = 1, policy, timeoutMs, signal, ...unknown } = acquireOptions(options, MAX_WAIT_MS);
    rejectUnknown(unknown);
    const waitMs = Math.ceil(timeoutMs);
    const body = () => ({ ...requestBody(attributes, cost, policy), timeout_ms: waitMs });
    return this.#inQueue(signal, () => this.#decideOrFail("/v1/acquire", body, { waitMs, signal }));
  }

  /** Decides a request without charging it. */
  peek(attributes, cost = 1, { policy } = {}) {
    return this.#decideOrFail("/v1/peek", () => requestBody(attributes, cost, policy));
  }

  /** Decides up to 1000 requests `{attributes, cost, policy}` in order. If one is invalid, none is decided. */
  async checkBatch(requests) {
    try {
      if (requests.length > MAX_BATCH) throw invalidRequest(`invalid batch: has ${requests.length} requests; give at most ${MAX_BATCH}`, "requests");
      const bodies = requests.map(({ attributes, cost = 1, policy }) => requestBody(attributes, cost, policy));
      if (bodies.length === 0) return [];
      const { decisions } = await this.#ask({ path: "/v1/check/batch", body: { requests: bodies }, isBatch: true });
      if (decisions?.length !== bodies.length || !decisions.every(isDecision)) throw invalidResponse(200, "the decisions of a batch are missing");
      return decisions.map((one) => decisionOf(one, 200, {}));
    } catch (error) {
      return requests.map(() => this.#failed(error));
    }
  }

  /** Returns cost that was charged and still counts. Repeated, it refunds again. Rejects on failure. */
  refund(attributes, cost = 1, { policy } = {}) {
    return this.#change("/v1/refund", attributes, cost, policy);
  }

  /** Charges a cost even if it exceeds the limit. Rejects on failure. */
  penalize(attributes, cost = 1, { policy } = {}) {
    return this.#change("/v1/penalize", attributes, cost, policy);
  }

  /** Forgets what the request's keys have used; resolves with whether there was anything. */
  async reset(attributes, { policy } = {}) {
    const { existed } = await this.#ask({ path: "/v1/reset", body: requestBody(attributes, undefined, policy) });
    if (typeof existed !== "boolean") throw invalidResponse(200, "it has no member `existed`");
    return existed;
  }

  /**
   * Decides a request, and holds its cost if it is allowed. Without a cost, each policy holds its estimate. With `waitMs`,
   * it waits for its turn.
   */
  async reserve(attributes, cost, { policy, ttlMs, idempotencyKey, waitMs, signal } = {}) {
    let held = {};
    const body = () => ({ ...requestBody(attributes, cost, policy), ttl: ttlText(ttlMs) });
    const decide = (turn) => this.#decideOrFail("/v1/reserve", body, { idempotencyKey, ...turn }, (answer) => (held = answer));
    // In whole seconds, as the header `Prefer` has them.
    const wholeMs = waitMs === undefined ? undefined : 1000 * Math.ceil(checkWait("waitMs", waitMs, MAX_WAIT_MS) / 1000);
    const decision = await (waitMs === undefined ? decide() : this.#inQueue(signal, () => decide({ waitMs: wholeMs, signal })));
    return new Reservation(this, decision, held.ticket);
  }

  /** Charges the total cost of a reservation and releases the rest. Repeated until the service answers. */
  settle(ticket, cost) {
    return this.#repeat({ path: "/v1/settle", body: { ticket, cost: costBody(cost) } });
  }

  /** Charges the total cost so far and keeps the reservation. One attempt: the next one includes it. */
  settleSoFar(ticket, cost) {
    return this.#changeTicket({ path: "/v1/settle", body: { ticket, cost: costBody(cost), final: false } });
  }

  extend(ticket, { hold, ttlMs } = {}) {
    const body = { ticket, hold: hold === undefined ? undefined : costBody(hold), ttl: ttlText(ttlMs) };
    return this.#changeTicket({ path: "/v1/extend", body });
  }

  cancel(ticket) {
    return this.#repeat({ path: "/v1/cancel", body: { ticket } });
  }

  /** Closes idle connections. The client remains usable. */
  close() {
    this.#http.close();
  }

  /** Makes a call that waits, which takes a connection. */
  async #inQueue(signal, call) {
    checkSignal(signal);
    if (this.#waiting >= this.#maxWaiting) return queueFull(this.#maxWaiting);
    this.#waiting += 1;
    try {
      return await call();
    } finally {
      this.#waiting -= 1;
    }
  }

  async #decideOrFail(path, body, { idempotencyKey, waitMs, signal } = {}, onAnswer) {
    try {
      checkIdempotencyKey(idempotencyKey);
      const reply = await this.#decide({ path, body: body(), idempotencyKey, waitMs, signal });
      onAnswer?.(reply.body);
      return decisionOf(reply.body, reply.status, reply.headers);
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      return this.#failed(error);
    }
  }

  async #change(path, attributes, cost, policy) {
    const { body, status, headers } = await this.#decide({ path, body: requestBody(attributes, cost, policy) });
    return decisionOf(body, status, headers);
  }

  async #decide(call) {
    const reply = await this.#http.call(call);
    if ((reply.status === 200 || reply.status === 429 || reply.status === 503) && isDecision(reply.body)) return reply;
    if (reply.status === 200) throw invalidResponse(200, "the body is not a decision");
    throw responseError(reply);
  }

  async #ask(call) {
    const reply = await this.#http.call(call);
    if (reply.status !== 200) throw responseError(reply);
    if (reply.body === undefined) throw invalidResponse(200, "the body is not JSON");
    return reply.body;
  }

  async #changeTicket(call) {
    const reply = await this.#http.call(call);
    if ([200, 202, 429].includes(reply.status) && typeof reply.body?.outcome === "string") return settlementOf(reply.body);
    throw reply.status === 200 || reply.status === 202 ? invalidResponse(reply.status, "the body is not a settlement") : responseError(reply);
  }

  /** The ticket makes a settlement safe to repeat. */
  async #repeat(call) {
    const end = performance.now() + this.#settleTimeoutMs;
    for (let pause = 20; ; pause = Math.min(2 * pause, MAX_PAUSE_MS)) {
      try {
        return await this.#changeTicket(call);
      } catch (error) {
        const mayRepeat = error.code === "timeout" || error.code === "unavailable" || error.status >= 500;
        const wait = pause / 2 + Math.random() * pause;
        if (!mayRepeat || performance.now() + wait > end) throw error;
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
    }
  }

  /** The decision on a request that the service did not decide. */
  #failed(error) {
    if (!(error instanceof SlidegateError)) throw error;
    const details = { error, why: error.message };
    if (error.code === "invalid_request") {
      // Never let through, or clients could lift their limit with a value that is rejected.
      const isClients = error.field?.startsWith("attributes") || error.field === "Idempotency-Key";
      return new Decision(false, 0, 0, 0, 0, null, 0, "invalid", { ...details, source: "invalid", status: isClients ? 400 : 500 });
    }
    if (this.#failsOpen) return new Decision(true, 0, 0, 0, 0, 0, 0, null, { ...details, source: "fail_open" });
    // At random, so that clients do not retry all at once.
    const seconds = 1 + Math.floor(3 * Math.random());
    const closed = { ...details, source: "fail_closed", status: 503, headers: [["retry-after", String(seconds)]] };
    return new Decision(false, 0, 0, 0, 0, 1000 * seconds, 0, "store_unavailable", closed);
  }
}

/** The decision on a request that would have to wait for a connection. */
function queueFull(maxWaiting) {
  const why = `As many requests wait at the service as this client lets wait: ${maxWaiting}. Retry in 1 second.`;
  return new Decision(false, 0, 0, 0, 0, 1000, 0, "queue_full", { why, headers: [["retry-after", "1"]] });
}

function requestBody(attributes, cost, policy) {
  return { attributes: plainObject(attributePairs(attributes)), cost: cost === undefined ? undefined : costBody(cost), policy };
}

function costBody(cost) {
  const costs = costPairs(cost);
  return typeof costs === "number" ? costs : plainObject(costs);
}

function ttlText(ttlMs) {
  if (ttlMs === undefined) return undefined;
  if (!(Number.isFinite(ttlMs) && ttlMs > 0)) throw invalidRequest(`invalid ttlMs ${shown(ttlMs)}: must be 1 to 3600000`, "ttl");
  return `${Math.ceil(ttlMs)}ms`;
}

function isDecision(body) {
  return typeof body?.allowed === "boolean";
}

function decisionOf(w, status, headers) {
  const { policy, key, held, source, why } = w;
  const problem = w.allowed || w.type === undefined ? undefined : problemOf(w);
  const details = { policy, key, held, source, why, status, problem, headers: limitFields(headers), policies: w.policies?.map(policyOf) };
  return new Decision(w.allowed, w.limit ?? 0, w.used ?? 0, w.remaining ?? 0, w.cost ?? 0, w.retry_after_ms, w.reset_after_ms ?? 0, w.reason ?? null, details);
}

function policyOf(w) {
  const { policy, key, allowed, enforced, limit, window_ms: windowMs = null, used, held = 0, remaining, cost, source, reason = null } = w;
  return { policy, key, allowed, enforced, limit, windowMs, used, held, remaining, cost, retryAfterMs: w.retry_after_ms, resetAfterMs: w.reset_after_ms, source, reason };
}

/** Only the members that are for the client of the limited request. */
function problemOf(w) {
  const { type, title, status, detail } = w;
  return { type, title, status, detail, "violated-policies": w["violated-policies"] ?? [], retry_after_ms: w.retry_after_ms };
}

function limitFields(headers) {
  return Object.entries(headers).filter(([name]) => LIMIT_FIELD.test(name));
}

function settlementOf({ outcome, policies = [], ticket = null }) {
  const settled = ({ policy, status, limit, used, held = 0, remaining, cost, retry_after_ms, reset_after_ms }) => {
    return { policy, outcome: status, limit, used, held, remaining, cost, retryAfterMs: retry_after_ms, resetAfterMs: reset_after_ms };
  };
  return { outcome, policies: policies.map(settled), ticket };
}

/** The error of a response that is neither a decision nor a settlement. */
function responseError({ status, body }) {
  const { title, detail = title, field, type } = body ?? {};
  let code = "invalid_response";
  const isInvalid = status === 400 || status === 413;
  if (isInvalid) code = "invalid_request";
  // 429 without a decision is the answer to too many wrong tokens.
  else if (status === 401 || status === 403 || status === 429) code = "unauthorized";
  else if (status === 404) code = "not_found";
  else if (status === 408 || status >= 500) code = "unavailable";
  if (!isInvalid && typeof type === "string" && type.startsWith(PROBLEM_TYPES)) code = type.slice(PROBLEM_TYPES.length);
  const text = typeof detail === "string" ? detail : "not a response of slidegate; check the URL";
  return new SlidegateError(code, `slidegate answered ${status}: ${text}`, { status, field });
}
