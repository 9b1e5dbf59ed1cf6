// Waiting for a turn instead of being denied: a call in a queue of the native part, and the helpers built on it.

import { SlidegateError, invalidRequest, shown } from "./errors.js";
import { calling, native, read } from "./native.js";
import { rejectUnknown } from "./request.js";

const DEFAULT_TIMEOUT_MS = 10_000;
const MAX_TIMEOUT_MS = 3_600_000;

/** What a limiter, a gate or a client does when it is asked for a turn: it decides at once, or waits up to `waitMs`. */
export const TURN = Symbol("turn");

/** The options of `acquire`. */
export function acquireOptions(options = {}, mostMs = MAX_TIMEOUT_MS) {
  if (options === null || typeof options !== "object") {
    throw new SlidegateError("invalid_options", `invalid options ${shown(options)}: must be an object, for example { cost: 2, timeoutMs: 500 }`);
  }
  const { timeoutMs = DEFAULT_TIMEOUT_MS, ...others } = options;
  return { ...others, timeoutMs: checkWait("timeoutMs", timeoutMs, mostMs) };
}

/** How long to wait, in milliseconds. */
export function checkWait(name, ms, mostMs = MAX_TIMEOUT_MS) {
  if (typeof ms === "number" && ms >= 0 && ms <= mostMs) return ms;
  throw new SlidegateError("invalid_options", `invalid ${name} ${shown(ms)}: must be 0 to ${mostMs} milliseconds`);
}

/** Throws the reason if the signal is aborted. */
export function checkSignal(signal) {
  if (signal !== undefined && !(signal instanceof AbortSignal)) {
    throw new SlidegateError("invalid_options", `invalid signal ${shown(signal)}: must be an AbortSignal`);
  }
  signal?.throwIfAborted();
}

/**
 * Resolves with the reply to `ask(number)`, a call of `part` that waits. `signal` takes it out of its queue. A call that
 * already had its turn when the signal was aborted is charged, so it still gets its answer.
 */
export async function inQueue(part, ask, { signal, clock }) {
  checkSignal(signal);
  const { leave, nextCall } = native();
  const number = nextCall();
  const abort = () => leave(number);
  signal?.addEventListener("abort", abort, { once: true });
  clock?.waiting.set(number, part);
  try {
    return read(await calling(() => ask(number)));
  } catch (error) {
    if (signal?.aborted && error.code === "internal") throw signal.reason;
    throw error;
  } finally {
    signal?.removeEventListener("abort", abort);
    clock?.waiting.delete(number);
  }
}

/** What calls a function when it has its turn. */
export class Turns {
  /**
   * A function that waits for its turn, and then calls `fn` with its arguments and its `this`. Options that are
   * functions get the arguments. If no turn comes in time, it rejects with a SlidegateError `denied`.
   */
  wrap(fn, options = {}) {
    if (typeof fn !== "function") throw invalidRequest(`invalid function ${shown(fn)}: must be what is called when its turn comes`, "fn");
    const turns = this;
    return async function (...args) {
      return inTurn(turns, options, () => fn.apply(this, args), args);
    };
  }

  /** Waits for a turn, and then calls `fn(...args)`: `schedule(fn, ...args)` or `schedule(options, fn, ...args)`. */
  async schedule(...call) {
    const options = typeof call[0] === "function" ? {} : call.shift();
    const [fn, ...args] = call;
    return this.wrap(fn, options)(...args);
  }

  /** As gates and clients do it. */
  async [TURN]({ attributes = {}, cost, policy, reserve, waitMs, signal, ...unknown }) {
    rejectUnknown(unknown);
    if (reserve) {
      const reservation = await this.reserve(attributes, cost, { policy, ttlMs: reserve.ttlMs, waitMs, signal });
      return { decision: reservation.decision, reservation };
    }
    if (waitMs === undefined) return { decision: await this.check(attributes, cost, { policy }) };
    return { decision: await this.acquire(attributes, { cost, policy, timeoutMs: waitMs, signal }) };
  }
}

async function inTurn(turns, { timeoutMs = DEFAULT_TIMEOUT_MS, ...options }, call, args) {
  const given = { waitMs: timeoutMs };
  for (const [name, value] of Object.entries(options)) given[name] = typeof value === "function" ? await value(...args) : value;
  const { decision, reservation } = await turns[TURN](given);
  if (!decision.allowed) throw new SlidegateError("denied", `no turn: ${decision.why}`, { decision });
  try {
    return await call();
  } finally {
    if (reservation) await settleInFull(reservation, given.cost).catch(() => {}); // what is never settled ends by its time
  }
}

/** Settles what was recorded, or what was held: what breaks off before its cost is known would otherwise be free. */
export async function settleInFull(reservation, cost) {
  if (!reservation.hasRecorded) reservation.record(cost ?? reservation.decision.cost);
  await reservation.close();
}
