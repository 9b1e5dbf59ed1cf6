// What a request holds until its true cost is known: of a gate, a shared gate or the service.

import { costPairs } from "./request.js";

const NOTHING_HELD = Object.freeze({ outcome: "none", policies: Object.freeze([]), ticket: null });

/**
 * `holder` changes reservations by their ticket: settle, settleSoFar, extend, cancel. Its results are
 * settlements, or promises of them; those of the reservation are likewise.
 */
export class Reservation {
  #holder;
  #ticket;
  #recorded = null;
  #hasEnded;

  constructor(holder, decision, ticket) {
    this.decision = decision;
    this.#holder = holder;
    this.#ticket = ticket ?? null;
    this.#hasEnded = this.#ticket === null;
  }

  get allowed() {
    return this.decision.allowed;
  }

  /** The text by which any program settles, extends or cancels it; null if nothing is held. */
  get ticket() {
    return this.#ticket;
  }

  /** Whether `close` has a cost to settle. */
  get hasRecorded() {
    return this.#recorded !== null;
  }

  /** Sets the total cost so far, for `close` to settle. Makes no call. */
  record(cost) {
    costPairs(cost);
    this.#recorded = cost;
  }

  /** Charges the total cost and releases the rest. If it fails, `close` settles the same once more. */
  settle(cost) {
    this.record(cost);
    return this.#end((ticket) => this.#holder.settle(ticket, cost));
  }

  /** Charges the total cost so far, keeps the rest held, and restarts the time. */
  settleSoFar(cost) {
    this.record(cost);
    return this.#goOn((ticket) => this.#holder.settleSoFar(ticket, cost));
  }

  /** Restarts the time, changes it (`ttlMs`) or what is held (`hold`). A denial is an outcome. */
  extend(extension = {}) {
    return this.#goOn((ticket) => this.#holder.extend(ticket, extension));
  }

  /** Releases everything: the request did not run. */
  cancel() {
    return this.#end((ticket) => this.#holder.cancel(ticket));
  }

  /** Settles what was recorded, or cancels if nothing was. Does nothing after `settle` or `cancel`. */
  close() {
    if (this.#hasEnded) return NOTHING_HELD;
    return this.#recorded === null ? this.cancel() : this.settle(this.#recorded);
  }

  [Symbol.dispose]() {
    // Of a shared gate or the service, the promise goes on; `await using` waits for it.
    const closing = this.close();
    if (typeof closing.then === "function") closing.catch(() => {});
  }

  async [Symbol.asyncDispose]() {
    await this.close();
  }

  #end(change) {
    if (this.#hasEnded) return NOTHING_HELD;
    return whenDone(change(this.#ticket), (settlement) => {
      this.#hasEnded = true;
      return settlement;
    });
  }

  #goOn(change) {
    if (this.#hasEnded) return NOTHING_HELD;
    return whenDone(change(this.#ticket), (settlement) => {
      this.#ticket = settlement.ticket ?? this.#ticket;
      return settlement;
    });
  }
}

function whenDone(result, next) {
  return typeof result.then === "function" ? result.then(next) : next(result);
}
