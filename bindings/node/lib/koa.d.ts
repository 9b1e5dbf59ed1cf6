import type { IncomingMessage, ServerResponse } from "node:http";

import type { Decision } from "../index.js";
import type { RateLimitOptions } from "./middleware.js";

/** What is needed of Koa's context. The decision is in `state.rateLimit`, a reservation in `state.reservation`. */
export interface KoaContext {
  req: IncomingMessage;
  res: ServerResponse;
  method: string;
  path: string;
  originalUrl: string;
  state: any;
  status: number;
  body: any;
}

export function rateLimit<Context extends KoaContext = KoaContext>(
  options: RateLimitOptions<Context, (context: Context, decision: Decision) => unknown>,
): (context: Context, next: () => Promise<any>) => Promise<any>;
