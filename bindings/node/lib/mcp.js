// Limits on the tools of an MCP server: wraps a tool's handler.

import { Limiter } from "./limiter.js";
import { TURN, checkWait } from "./waiting.js";

/**
 * A denied call returns a tool error that tells the model how long to wait, and does not run the handler.
 * `key(args, extra)` says who calls, by default the session; `cost(args, extra)` what it costs. With `waitMs`, a call
 * waits that long for its turn, unless its client cancels it.
 */
export function limitTool(handler, { limit, limiter = new Limiter(limit), key = sessionOf, attributes, policy, cost, waitMs, onError }) {
  if (waitMs !== undefined) checkWait("waitMs", waitMs);
  const attributesOf = attributes ?? ((...call) => ({ user: sessionOf(...call) }));
  return async (...call) => {
    const caller = limiter instanceof Limiter ? { key: await key(...call) } : { attributes: await attributesOf(...call), policy };
    const amount = typeof cost === "function" ? await cost(...call) : cost;
    const { decision } = await limiter[TURN]({ ...caller, cost: amount, waitMs, signal: call.at(-1)?.signal });
    if (decision.error) onError?.(decision.error);
    return decision.allowed ? handler(...call) : { isError: true, content: [{ type: "text", text: denialOf(decision) }] };
  };
}

/** The last argument of a handler says who calls. Transports without sessions, such as stdio, have one client. */
function sessionOf(...call) {
  const extra = call.at(-1);
  return extra?.authInfo?.clientId ?? extra?.sessionId ?? "stdio";
}

function denialOf({ retryAfterMs: wait, status }) {
  if (status >= 500) return "Rate limits cannot be checked at the moment. Try again later.";
  if (wait === null) return "Rate limit exceeded: this call costs more than the limit allows. Do not repeat it.";
  return `Rate limit exceeded. Wait ${Math.max(1, Math.ceil(wait / 1000))} seconds before calling this tool again.`;
}
