// What the middlewares of all frameworks share: which request, what it costs, and what follows a decision.

import { isIP } from "node:net";

import { Client, MAX_WAIT_MS } from "./client.js";
import { SlidegateError, shown } from "./errors.js";
import { Gate } from "./gate.js";
import { Limiter } from "./limiter.js";
import { native } from "./native.js";
import { TURN, checkWait, settleInFull } from "./waiting.js";

const OPTIONS = new Set([
  "limit", "limiter", "key", "attributes", "policy", "cost", "skip", "denied", "refund", "reserve", "waitMs",
  "trustedProxies", "addressHeader", "ipv6Prefix", "onError",
]);

/** What is decided on a request whose client is gone while it waits: nothing, and nobody reads a response. */
const GONE = Object.freeze({ isGone: true });

/**
 * Prepares a middleware. A framework gives each request as a view: `method`, `url`, `remoteAddress` and
 * `header(name)`, `request`, which callbacks get, and `signal()`, which is aborted when the client is gone.
 */
export function prepare(options) {
  const unknown = Object.keys(options).find((name) => !OPTIONS.has(name));
  if (unknown !== undefined) {
    throw invalidOptions(`unknown option ${shown(unknown)}: must be one of ${[...OPTIONS].join(", ")}`);
  }
  if ((options.limit === undefined) === (options.limiter === undefined)) {
    throw invalidOptions("give either `limit`, for example \"100/1m\", or `limiter`: a Limiter, Gate, SharedGate or Client");
  }
  const limiter = options.limiter ?? new Limiter(options.limit);
  const isKeyed = limiter instanceof Limiter;
  if (isKeyed ? options.attributes || options.policy || options.reserve : options.key) {
    throw invalidOptions(isKeyed ? "`attributes`, `policy` and `reserve` are for gates and clients; a limiter has a `key`" : "`key` is for limiters; gates and clients count `attributes`");
  }
  if (options.waitMs !== undefined) checkWait("waitMs", options.waitMs, limiter instanceof Client ? MAX_WAIT_MS : undefined);
  const clientOf = clientRule(options, isKeyed);
  return isKeyed ? new KeyedLimit(limiter, clientOf, options) : new AttributeLimit(limiter, clientOf, options);
}

class Limit {
  constructor(limiter, clientOf, options) {
    this.limiter = limiter;
    this.clientOf = clientOf;
    this.options = options;
  }

  /** Resolves with what was decided; null if the request is skipped; `isGone` if its client left while it waited. */
  async decide(view) {
    const { skip, cost, waitMs, onError } = this.options;
    if (skip && (await skip(view.request))) return null;
    const asked = performance.now();
    const amount = typeof cost === "function" ? await cost(view.request) : cost;
    const signal = waitMs === undefined ? undefined : view.signal();
    let outcome;
    try {
      outcome = await this.ask(view, { cost: amount, waitMs, signal });
    } catch (error) {
      if (signal?.aborted && error === signal.reason) return GONE;
      throw error;
    }
    if (outcome.decision.error) onError?.(outcome.decision.error, view.request);
    return Object.assign(outcome, { asked, view });
  }

  /** After the response; `status` is null if the client was gone before it was sent. */
  async finish(outcome, status) {
    const { refund, onError } = this.options;
    const { decision, reservation, view } = outcome;
    try {
      const isRefunded = status !== null && refund?.(status) === true && decision.error === null;
      if (reservation) await (isRefunded ? reservation.cancel() : settleInFull(reservation, outcome.cost));
      else if (isRefunded) await this.giveBack(outcome);
    } catch (error) {
      // Without a handler, it must not end the process: the response was sent.
      onError?.(error, view.request);
    }
  }
}

class KeyedLimit extends Limit {
  async ask(view, turn) {
    const { key } = this.options;
    const id = key ? await key(view.request) : this.clientOf(view);
    return { ...(await this.limiter[TURN]({ ...turn, key: id })), id };
  }

  giveBack({ decision, id, asked }) {
    // A charge that no longer counts would return what later requests were charged.
    if (performance.now() - asked < this.limiter.windowMs) this.limiter.refund(id, decision.cost);
  }
}

class AttributeLimit extends Limit {
  async ask(view, turn) {
    const { attributes, policy, reserve } = this.options;
    const given = { ip: this.clientOf(view), method: view.method, path: cleanPath(view.url) };
    Object.assign(given, await attributes?.(view.request));
    const outcome = await this.limiter[TURN]({ ...turn, attributes: given, policy, reserve });
    return { ...outcome, given, cost: turn.cost, policy };
  }

  async giveBack({ decision, given, cost, policy, asked }) {
    const elapsed = performance.now() - asked;
    const isOver = (one) => one.windowMs !== undefined && one.windowMs <= elapsed;
    if (!decision.policies.some(isOver)) return this.limiter.refund(given, cost, { policy });
    for (const one of decision.policies) {
      if (!isOver(one)) await this.limiter.refund(given, cost, { policy: one.policy });
    }
  }
}

/** The client's address by the rules of the library. */
function clientRule({ trustedProxies = [], addressHeader, ipv6Prefix }, isKeyed) {
  const isPlain = trustedProxies.length === 0 && addressHeader === undefined;
  // Gates and the service group IPv6 addresses as each policy says.
  const prefix = isKeyed ? ipv6Prefix : (ipv6Prefix ?? 128);
  if (isPlain && !isKeyed && ipv6Prefix === undefined) return ({ remoteAddress }) => withoutZone(remoteAddress);
  const { ClientRule } = native();
  const rule = new ClientRule(trustedProxies, addressHeader, prefix);
  const header = rule.header;
  return (view) => {
    const { remoteAddress } = view;
    if (isPlain && isIP(remoteAddress ?? "") === 4) return remoteAddress;
    return rule.client(remoteAddress ?? null, isPlain ? [] : view.header(header));
  };
}

/** Peers without an address, on Unix sockets, share one, so that they are limited, too. */
function withoutZone(address) {
  return address?.split("%")[0] ?? "unknown";
}

/** The path as routers see it: `/%6Cogin`, `//login` and `/x/../login` are `/login`. */
export function cleanPath(target) {
  const path = target.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, "").split(/[?#]/, 1)[0];
  const segments = [];
  let isFolder = false;
  for (const segment of decoded(path).split("/")) {
    isFolder = segment === "" || segment === "." || segment === "..";
    if (segment === "..") segments.pop();
    else if (!isFolder) segments.push(segment);
  }
  return `/${segments.join("/")}${isFolder && segments.length > 0 ? "/" : ""}`;
}

function decoded(path) {
  try {
    return decodeURIComponent(path);
  } catch {
    return path; // no router matches it
  }
}

function invalidOptions(message) {
  return new SlidegateError("invalid_options", `invalid options: ${message}`);
}
