// slidegate: exact sliding-window rate limits.

export { Client } from "./lib/client.js";
export { Decision } from "./lib/decision.js";
export { SlidegateError } from "./lib/errors.js";
export { Gate, SharedGate } from "./lib/gate.js";
export { Limiter } from "./lib/limiter.js";
export { ManualClock } from "./lib/manual-clock.js";
export { parseRateLimit, waitMs } from "./lib/parse-rate-limit.js";
export { Reservation } from "./lib/reservation.js";
