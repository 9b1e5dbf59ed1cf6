// The answer to one request, whoever decided it: a limiter, a gate, a shared gate or the service.

const PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#";
const REDUCED_CAPACITY = "temporary-reduced-capacity";
const NOTHING = Object.freeze([]);

export class Decision {
  #details;

  /** @param details what only some decisions have; `headers` and `why` may be functions of the decision */
  constructor(allowed, limit, used, remaining, cost, retryAfterMs, resetAfterMs, reason, details) {
    this.allowed = allowed;
    this.limit = limit;
    this.used = used;
    this.remaining = remaining;
    this.cost = cost;
    this.retryAfterMs = retryAfterMs;
    this.resetAfterMs = resetAfterMs;
    this.reason = reason;
    this.#details = details;
  }

  get policy() {
    return this.#details.policy ?? null;
  }
  get key() {
    return this.#details.key ?? null;
  }
  get held() {
    return this.#details.held ?? 0;
  }
  get source() {
    return this.#details.source ?? null;
  }
  get policies() {
    return this.#details.policies ?? NOTHING;
  }
  get error() {
    return this.#details.error ?? null;
  }
  get status() {
    return this.allowed ? 200 : (this.#details.status ?? 429);
  }
  get headers() {
    const { headers } = this.#details;
    return typeof headers === "function" ? headers(this) : (headers ?? NOTHING);
  }
  get why() {
    const { why } = this.#details;
    return typeof why === "function" ? why(this) : (why ?? null);
  }
  get problem() {
    return this.allowed ? null : (this.#details.problem ?? problemOf(this));
  }

  toJSON() {
    const { policy, key, held, source, why, policies, error } = this;
    return { ...this, policy, key, held, source, why, policies, error: error && { code: error.code, message: error.message } };
  }
}

/** The body of a denial (RFC 9457) that says no more than its client may know. */
function problemOf(decision) {
  const { status, policy, retryAfterMs: wait } = decision;
  if (status === 503) {
    const title = "Request cannot be satisfied due to temporary server capacity constraints";
    const detail = "The limits of this request cannot be checked at the moment.";
    return { type: PROBLEM_TYPES + REDUCED_CAPACITY, title, status, detail };
  }
  if (status !== 429) {
    const isClients = status < 500;
    const title = isClients ? "Bad Request" : "Internal Server Error";
    const detail = isClients ? "The request has a value that cannot be counted." : "The request could not be counted.";
    return { type: "about:blank", title, status, detail };
  }
  const isBlocked = decision.reason === "blocked";
  const when = wait === null ? "It never fits." : `Retry in ${Math.ceil(wait / 1000)} seconds.`;
  return {
    type: PROBLEM_TYPES + (isBlocked ? "abnormal-usage-detected" : "quota-exceeded"),
    title: isBlocked
      ? "Request not satisfied due to detection of abnormal request pattern"
      : "Request cannot be satisfied as assigned quota has been exceeded",
    status,
    detail: decision.why ?? `The limit of ${decision.limit} is used up. ${when}`,
    "violated-policies": policy === null ? [] : [policy],
    retry_after_ms: wait === null ? null : Math.max(1, wait),
  };
}
