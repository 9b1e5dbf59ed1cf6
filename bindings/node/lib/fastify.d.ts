import type { FastifyReply, FastifyRequest } from "fastify";

import type { Decision, Reservation } from "../index.js";
import type { RateLimitOptions } from "./middleware.js";

declare module "fastify" {
  interface FastifyRequest {
    rateLimit?: Decision;
    reservation?: Reservation;
  }
}

type Denied = (request: FastifyRequest, reply: FastifyReply, decision: Decision) => unknown;

/** A hook: `fastify.addHook("onRequest", rateLimit(...))`, or `onRequest` of a route. */
export function rateLimit(
  options: RateLimitOptions<FastifyRequest, Denied>,
): (request: FastifyRequest, reply: FastifyReply) => Promise<unknown>;
