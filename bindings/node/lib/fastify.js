// Hook for Fastify: `fastify.addHook("onRequest", rateLimit(...))`, or `onRequest` of a route.

import { prepare } from "./middleware.js";
import { clientSignal, linesOf, whenSent } from "./node-response.js";

/** The handler finds the decision in `request.rateLimit`, and with `reserve` a `request.reservation`. */
export function rateLimit(options) {
  const limit = prepare(options);
  return async (request, reply) => {
    const outcome = await limit.decide(viewOf(request, reply));
    if (outcome === null) return undefined;
    if (outcome.isGone) return reply.hijack();
    const { decision, reservation } = outcome;
    for (const [name, value] of decision.headers) reply.header(name, value);
    request.rateLimit = decision;
    request.reservation = reservation;
    if (decision.allowed) {
      whenSent(reply.raw, (status) => limit.finish(outcome, status));
      return undefined;
    }
    if (options.denied) return options.denied(request, reply, decision);
    reply.code(decision.status).header("cache-control", "no-store");
    return reply.type("application/problem+json").send(JSON.stringify(decision.problem));
  };
}

function viewOf(request, reply) {
  return {
    request,
    method: request.method,
    url: request.originalUrl,
    remoteAddress: request.raw.socket.remoteAddress,
    header: (name) => linesOf(request, name),
    signal: () => clientSignal(reply.raw),
  };
}
