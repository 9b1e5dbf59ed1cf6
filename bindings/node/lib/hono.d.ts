import type { Context, MiddlewareHandler } from "hono";

import type { Decision, Reservation } from "../index.js";
import type { RateLimitOptions } from "./middleware.js";

declare module "hono" {
  interface ContextVariableMap {
    rateLimit: Decision;
    reservation: Reservation | undefined;
  }
}

export function rateLimit(
  options: RateLimitOptions<Context, (context: Context, decision: Decision) => Response | Promise<Response>>,
): MiddlewareHandler;
