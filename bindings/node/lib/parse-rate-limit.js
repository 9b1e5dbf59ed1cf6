// Reader of the fields RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-08 to -11)
// and Retry-After.
//
// The first two are Lists of Strings with parameters (RFC 9651). A malformed field is ignored as a whole,
// as the draft requires; `malformed` says which and why.

const MAX_LENGTH = 16 << 10;
const FIELDS = new Set(["ratelimit", "ratelimit-policy", "retry-after", "date"]);

/** @param headers a `Headers`, the `headers` of a Node response, or pairs of names and values */
export function parseRateLimit(headers) {
  const fields = collect(headers);
  const malformed = [];
  const read = (field, parse, otherwise) => {
    try {
      return fields.has(field) ? parse(fields.get(field)) : otherwise;
    } catch (error) {
      if (!(error instanceof Malformed)) throw error;
      malformed.push({ field, problem: error.message });
      return otherwise;
    }
  };
  return {
    items: read("ratelimit", (lines) => members(lines).map(itemOf), []),
    policies: read("ratelimit-policy", (lines) => members(lines).map(policyOf), []),
    retryAfterMs: read("retry-after", (lines) => retryAfter(lines, fields.get("date")), null),
    malformed,
  };
}

/** How long not to send the next request: Retry-After, or the longest reset of what is used up. */
export function waitMs({ items, retryAfterMs }) {
  if (retryAfterMs !== null) return retryAfterMs;
  return Math.max(0, ...items.map(({ remaining, resetMs }) => (remaining === 0 && resetMs) || 0));
}

class Malformed extends Error {}

/** Lines by name in lower case. Without a prototype's names: a Map. */
function collect(headers) {
  const pairs = typeof headers[Symbol.iterator] === "function" ? headers : Object.entries(headers);
  const fields = new Map();
  for (const [name, value] of pairs) {
    const field = String(name).toLowerCase();
    if (FIELDS.has(field) && value !== undefined) fields.set(field, [].concat(fields.get(field) ?? [], value));
  }
  return fields;
}

function itemOf(member) {
  const seconds = member.integer("t", 0);
  return { name: member.name, remaining: member.required("r"), resetMs: millis(seconds), partitionKey: member.bytes("pk") };
}

function policyOf(member) {
  const seconds = member.integer("w", 1);
  const { name } = member;
  return { name, quota: member.required("q"), unit: member.text("qu"), windowMs: millis(seconds), partitionKey: member.bytes("pk") };
}

/** Longer times are the longest that a number holds exactly. */
function millis(seconds) {
  return seconds === null ? null : Math.min(1000 * seconds, Number.MAX_SAFE_INTEGER);
}

function retryAfter(lines, dates) {
  if (lines.length > 1) throw new Malformed(`it is given ${lines.length} times`);
  const text = String(lines[0]).replace(/^[ \t]+|[ \t]+$/g, "");
  if (/^\d+$/.test(text)) return millis(Number(text));
  const at = httpDate(text);
  if (at === null) throw new Malformed("neither seconds nor an HTTP date");
  return Math.max(0, at - (httpDate(String(dates?.[0])) ?? Date.now()));
}

/** The three forms of RFC 9110, 5.6.7. `Date.parse` alone accepts much else. */
function httpDate(text) {
  const forms = [
    /^(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT$/,
    /^(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, \d\d-[A-Z][a-z]{2}-\d\d \d\d:\d\d:\d\d GMT$/,
    /^(Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}$/,
  ];
  const form = forms.findIndex((one) => one.test(text));
  const at = form < 0 ? NaN : Date.parse(form === 2 ? `${text} GMT` : text);
  return Number.isNaN(at) ? null : at;
}

/** A String with parameters. */
class Member {
  constructor(name, parameters) {
    this.name = name;
    this.parameters = parameters;
  }

  integer(key, least) {
    const value = this.parameters.get(key) ?? null;
    if (value !== null && !(typeof value === "number" && value >= least)) this.#fail(key, `an integer from ${least}`);
    return value;
  }

  required(key) {
    return this.integer(key, 0) ?? this.#fail(key, "given");
  }

  text(key) {
    const value = this.parameters.get(key) ?? null;
    if (value !== null && typeof value !== "string") this.#fail(key, "a string");
    return value;
  }

  bytes(key) {
    const value = this.parameters.get(key) ?? null;
    if (value !== null && !(value instanceof Uint8Array)) this.#fail(key, "a byte sequence");
    return value;
  }

  #fail(key, expected) {
    throw new Malformed(`${key} of ${JSON.stringify(this.name)} must be ${expected}`);
  }
}

/** The members of a List whose items are all Strings. */
function members(lines) {
  const text = lines.map(String).join(", ");
  if (text.length > MAX_LENGTH) throw new Malformed(`it has ${text.length} bytes, more than ${MAX_LENGTH}`);
  return new ListReader(text.replace(/^ +| +$/g, "")).list();
}

/** What a bare item is that no parameter of the draft has. */
const OTHER = Symbol("other");

/** A strict reader of Lists (RFC 9651, 4.2). Each method takes what it reads. */
class ListReader {
  #text;
  #at = 0;

  constructor(text) {
    this.#text = text;
  }

  list() {
    const list = [];
    while (this.#at < this.#text.length || list.length > 0) {
      list.push(new Member(this.#string() ?? this.#fail("a string"), this.#parameters()));
      this.#take(/[ \t]*/y);
      if (this.#at === this.#text.length) break;
      this.#take(/,[ \t]*/y) ?? this.#fail("a comma");
    }
    return list;
  }

  #parameters() {
    const parameters = new Map();
    while (this.#take(/; */y) !== null) {
      const key = this.#take(/[a-z*][a-z0-9_.*-]*/y) ?? this.#fail("the name of a parameter");
      parameters.set(key, this.#take(/=/y) === null ? OTHER : this.#bareItem());
    }
    return parameters;
  }

  #string() {
    const quoted = this.#take(/"(?:[ !#-[\]-~]|\\["\\])*"/y);
    return quoted === null ? null : quoted.slice(1, -1).replace(/\\(.)/g, "$1");
  }

  #bareItem() {
    return this.#string() ?? this.#number() ?? this.#byteSequence() ?? this.#other() ?? this.#fail("a value");
  }

  #number() {
    const text = this.#take(/-?\d+(?:\.\d*)?/y);
    if (text === null) return null;
    const [whole, fraction] = text.replace("-", "").split(".");
    if (fraction === undefined) return whole.length <= 15 ? Number(text) : this.#fail("an integer of at most 15 digits");
    return whole.length <= 12 && /^\d{1,3}$/.test(fraction) ? OTHER : this.#fail("a decimal of at most 12 and 3 digits");
  }

  /** Padding may be missing, as RFC 9651 asks. */
  #byteSequence() {
    const text = this.#take(/:[A-Za-z0-9+/]*={0,2}:/y)?.slice(1, -1);
    if (text === undefined) return null;
    const digits = text.replace(/=+$/, "");
    const isPadded = text.length > digits.length;
    if (digits.length % 4 === 1 || (isPadded && text.length % 4 !== 0)) this.#fail("base64");
    return Uint8Array.from(Buffer.from(digits, "base64"));
  }

  /** Tokens, booleans, dates and display strings. */
  #other() {
    const text = this.#take(/[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*|\?[01]|@-?\d{1,15}(?![\d.])|%"(?:[ !#$&-~]|%[0-9a-f]{2})*"/y);
    if (text === null) return null;
    if (text[0] === "%") this.#checkUtf8(text.slice(2, -1));
    return OTHER;
  }

  #checkUtf8(text) {
    try {
      decodeURIComponent(text);
    } catch {
      this.#fail("UTF-8");
    }
  }

  #take(pattern) {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text)?.[0] ?? null;
    if (found !== null) this.#at += found.length;
    return found;
  }

  #fail(expected) {
    throw new Malformed(`expected ${expected} at ${JSON.stringify(this.#text.slice(this.#at, this.#at + 20))}`);
  }
}
