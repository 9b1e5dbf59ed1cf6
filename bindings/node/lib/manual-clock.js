// Time that tests advance by hand.

import { invalidRequest, shown } from "./errors.js";
import { native } from "./native.js";

export class ManualClock {
  /** For limiters and gates: the native clock. */
  native = new (native().ManualClock)();

  /** The native parts of calls that wait, by the numbers of the calls. */
  waiting = new Map();

  /** Moves it forwards, to the microsecond. */
  advance(ms) {
    if (!(ms >= 0 && ms <= 1e13)) throw invalidRequest(`invalid time ${shown(ms)}: must be 0 ms or more`, "ms");
    this.native.advance(Math.round(ms * 1000));
    for (const part of new Set(this.waiting.values())) part.timeHasPassed();
  }
}
