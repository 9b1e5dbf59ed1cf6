// Middleware for Koa.

import { prepare } from "./middleware.js";
import { clientSignal, linesOf, setHeaders, whenSent } from "./node-response.js";

/** The next middlewares find the decision in `ctx.state.rateLimit`, and with `reserve` a `ctx.state.reservation`. */
export function rateLimit(options) {
  const limit = prepare(options);
  return async (ctx, next) => {
    const outcome = await limit.decide(viewOf(ctx));
    if (outcome === null) return next();
    if (outcome.isGone) return undefined;
    const { decision, reservation } = outcome;
    setHeaders(ctx.res, decision);
    ctx.state.rateLimit = decision;
    ctx.state.reservation = reservation;
    if (decision.allowed) {
      whenSent(ctx.res, (status) => limit.finish(outcome, status));
      return next();
    }
    if (options.denied) return options.denied(ctx, decision);
    ctx.status = decision.status;
    ctx.set("cache-control", "no-store");
    ctx.body = JSON.stringify(decision.problem);
    ctx.type = "application/problem+json";
    return undefined;
  };
}

function viewOf(ctx) {
  return {
    request: ctx,
    method: ctx.method,
    url: ctx.originalUrl,
    remoteAddress: ctx.req.socket.remoteAddress,
    header: (name) => linesOf(ctx.req, name),
    signal: () => clientSignal(ctx.res),
  };
}
