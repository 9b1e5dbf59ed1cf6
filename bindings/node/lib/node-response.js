// A response of Node's `http` server, which Express, Fastify and Koa write to.

export function setHeaders(response, decision) {
  for (const [name, value] of decision.headers) response.setHeader(name, value);
}

/** Calls `finish` once with the status, or with null if the client was gone before the response was sent. */
export function whenSent(response, finish) {
  whenClosed(response, () => finish(response.writableFinished ? response.statusCode : null));
}

/** Aborted when the client is gone. */
export function clientSignal(response) {
  const controller = new AbortController();
  whenClosed(response, () => controller.abort());
  return controller.signal;
}

function whenClosed(response, then) {
  if (response.closed) then();
  else response.once("close", then);
}

export function sendProblem(response, { status, problem }) {
  response.statusCode = status;
  response.setHeader("content-type", "application/problem+json");
  response.setHeader("cache-control", "no-store");
  response.end(JSON.stringify(problem));
}

/** The lines of a header. Node joins those of X-Forwarded-For by commas, which means the same. */
export function linesOf(request, name) {
  return [].concat(request.headers[name] ?? []);
}
