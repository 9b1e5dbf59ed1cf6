// Middleware for Hono. On Node (`@hono/node-server`) the client's address is the peer's; elsewhere give a
// `key`, or the attribute `ip`.

import { prepare } from "./middleware.js";

/** The next handlers find the decision in `c.get("rateLimit")`, and with `reserve` `c.get("reservation")`. */
export function rateLimit(options) {
  const limit = prepare(options);
  return async (c, next) => {
    const outcome = await limit.decide(viewOf(c));
    if (outcome === null) return next();
    if (outcome.isGone) return c.body(null, 499);
    const { decision, reservation } = outcome;
    c.set("rateLimit", decision);
    c.set("reservation", reservation);
    if (!decision.allowed) {
      for (const [name, value] of decision.headers) c.header(name, value);
      return options.denied ? options.denied(c, decision) : problem(c, decision);
    }
    await next();
    const response = c.res;
    const finish = (status) => limit.finish(outcome, status);
    if (response.body === null) await finish(response.status);
    else c.res = new Response(observed(response.body, response.status, finish), response);
    // A new response, and the header fields of those that cannot be changed, such as `fetch` returns.
    for (const [name, value] of decision.headers) c.res.headers.set(name, value);
    return undefined;
  };
}

function problem(c, { status, problem }) {
  return c.body(JSON.stringify(problem), status, { "content-type": "application/problem+json", "cache-control": "no-store" });
}

/** The same body, which calls `finish` once: when it has ended, failed, or its client is gone. */
function observed(body, status, finish) {
  const reader = body.getReader();
  let isFinished = false;
  const finishOnce = async (last) => {
    if (isFinished) return;
    isFinished = true;
    await finish(last);
  };
  return new ReadableStream({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (!done) return controller.enqueue(value);
        await finishOnce(status);
        return controller.close();
      } catch (error) {
        await finishOnce(null);
        return controller.error(error);
      }
    },
    async cancel(reason) {
      // A read that is pending ends by this, too, and must not count as the end of the body.
      await Promise.all([finishOnce(null), reader.cancel(reason)]);
    },
  });
}

function viewOf(c) {
  return {
    request: c,
    method: c.req.method,
    url: new URL(c.req.url).pathname,
    remoteAddress: c.env?.incoming?.socket?.remoteAddress,
    header: (name) => [].concat(c.req.header(name) ?? []),
    signal: () => c.req.raw.signal,
  };
}
