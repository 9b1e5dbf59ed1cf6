// Checks of what callers give, shared by gates and the client of the service.

import { SlidegateError, invalidRequest, shown } from "./errors.js";

/** The largest cost: what a JavaScript number holds exactly. */
export const MAX_COST = Number.MAX_SAFE_INTEGER;
const MAX_COSTS = 16;
// `isWellFormed` of strings needs Node 20; Debian 12 has 18.
const LONE_SURROGATE = /\p{Surrogate}/u;

/**
 * Attributes as pairs of text. `undefined` and `null` are absent, numbers become text.
 *
 * Lone surrogates are rejected: encoded, different values would become one key.
 */
export function attributePairs(attributes) {
  if (attributes === null || typeof attributes !== "object" || Array.isArray(attributes)) {
    throw invalidRequest(`invalid attributes ${shown(attributes)}: must be an object, for example { user: "alice" }`, "attributes");
  }
  const pairs = [];
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    const isText = typeof value === "string";
    if (!isText && typeof value !== "number" && typeof value !== "bigint" && typeof value !== "boolean") {
      throw invalidRequest(`invalid attribute ${shown(name)}: must be text, given ${typeof value}`, `attributes.${name}`);
    }
    const text = isText ? value : String(value);
    if (LONE_SURROGATE.test(text) || LONE_SURROGATE.test(name)) {
      const shownName = name.replace(/\p{Surrogate}/gu, "\ufffd");
      const field = `attributes.${shownName}`;
      throw invalidRequest(`invalid attribute ${shown(shownName)}: has a lone surrogate, which is no text; encode it, for example as hex`, field);
    }
    pairs.push([name, text]);
  }
  return pairs;
}

export function checkCost(cost) {
  if (typeof cost !== "number" || !(cost >= 0 && cost <= MAX_COST && Number.isInteger(cost))) {
    throw invalidRequest(`invalid cost ${shown(cost)}: must be a whole number from 0 to ${MAX_COST}`, "cost");
  }
  return cost;
}

/** A cost as a number, or as pairs of names and numbers. */
export function costPairs(cost) {
  if (cost === null || typeof cost !== "object") return checkCost(cost);
  const pairs = Object.entries(cost);
  if (pairs.length === 0 || pairs.length > MAX_COSTS) {
    throw invalidRequest(`invalid cost: has ${pairs.length} costs by name; give 1 to ${MAX_COSTS}, for example { input: 900 }`, "cost");
  }
  for (const [, number] of pairs) checkCost(number);
  return pairs;
}

/** An object without a prototype, so that a name such as `__proto__` is a name like any other. */
export function plainObject(pairs) {
  const object = Object.create(null);
  for (const [name, value] of pairs) object[name] = value;
  return object;
}

export function rejectUnknown(options) {
  const name = Object.keys(options)[0];
  if (name !== undefined) throw new SlidegateError("invalid_options", `unknown option ${shown(name)}`);
}

export function checkIdempotencyKey(key) {
  if (key !== undefined && !/^[!-~]{1,128}$/.test(key)) {
    throw invalidRequest("invalid idempotency key: must be 1 to 128 visible ASCII characters", "Idempotency-Key");
  }
}
