// Middleware for Express, Connect and plain `http` servers: `(request, response, next)`.

import { prepare } from "./middleware.js";
import { clientSignal, linesOf, sendProblem, setHeaders, whenSent } from "./node-response.js";

/** The handler finds the decision in `request.rateLimit`, and with `reserve` a `request.reservation`. */
export function rateLimit(options) {
  const limit = prepare(options);
  return (request, response, next) => {
    decide(limit, request, response, options.denied).then((isAllowed) => isAllowed && next(), next);
  };
}

async function decide(limit, request, response, denied) {
  const outcome = await limit.decide(viewOf(request, response));
  if (outcome === null) return true;
  if (outcome.isGone) return false;
  const { decision, reservation } = outcome;
  setHeaders(response, decision);
  request.rateLimit = decision;
  request.reservation = reservation;
  if (decision.allowed) {
    whenSent(response, (status) => limit.finish(outcome, status));
    return true;
  }
  if (denied) await denied(request, response, decision);
  else sendProblem(response, decision);
  return false;
}

function viewOf(request, response) {
  return {
    request,
    method: request.method,
    url: request.originalUrl ?? request.url,
    remoteAddress: request.socket.remoteAddress,
    header: (name) => linesOf(request, name),
    signal: () => clientSignal(response),
  };
}
