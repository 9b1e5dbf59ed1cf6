// The one error of the package. Programs match on `code`; `message` is for people.

export class SlidegateError extends Error {
  /**
   * @param {string} code
   * @param {string} message says what is invalid, what was given, what is expected and how to fix it
   * @param {{status?: number, field?: string, cause?: unknown, decision?: object}} [details]
   */
  constructor(code, message, { status, field, cause, decision } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
    if (status !== undefined) this.status = status;
    if (field !== undefined) this.field = field;
    if (decision !== undefined) this.decision = decision;
  }

  get name() {
    return "SlidegateError";
  }

  /** Of a denial. */
  get retryAfterMs() {
    return this.decision?.retryAfterMs;
  }
}

export function invalidRequest(message, field) {
  return new SlidegateError("invalid_request", message, { field });
}

/** A value in an error message, of bounded length. */
export function shown(value) {
  const text = typeof value === "string" ? JSON.stringify(value) : String(value);
  return text.length > 64 ? `${text.slice(0, 64)}...` : text;
}
