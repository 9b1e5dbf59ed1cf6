import type { IncomingMessage, ServerResponse } from "node:http";

import type { Decision, Reservation } from "../index.js";
import type { RateLimitOptions } from "./middleware.js";

declare module "node:http" {
  interface IncomingMessage {
    /** The decision of the middleware. */
    rateLimit?: Decision;
    /** Of a middleware with `reserve`. */
    reservation?: Reservation;
  }
}

type Denied<Request, Response> = (request: Request, response: Response, decision: Decision) => unknown;

/** For Express, Connect and plain `http` servers. */
export function rateLimit<Request extends IncomingMessage = IncomingMessage, Response extends ServerResponse = ServerResponse>(
  options: RateLimitOptions<Request, Denied<Request, Response>>,
): (request: Request, response: Response, next: (error?: unknown) => void) => void;
