import type { LimiterOptions } from "../index.js";

type StoreOptions = Omit<LimiterOptions, "name" | "shared">;
type FastifyCallback = (error: Error | null, result?: { current: number; ttl: number }) => void;

interface FastifyStore {
  incr(key: string, callback: FastifyCallback, windowMs?: number, max?: number): void;
  read(key: string, callback: FastifyCallback, windowMs?: number, max?: number): void;
  child(routeOptions: unknown): FastifyStore;
}

/** A class for the option `store` of `@fastify/rate-limit`. */
export function fastifyStore(options?: StoreOptions): new (options: object) => FastifyStore;

/** For the option `store` of `express-rate-limit` and `hono-rate-limiter`. One per limiter. */
export class ExpressRateLimitStore {
  constructor(options?: StoreOptions);
  localKeys: boolean;
  init(options: { windowMs: number; limit: unknown }): void;
  get(key: string): { totalHits: number; resetTime: Date } | undefined;
  increment(key: string): { totalHits: number; resetTime: Date };
  decrement(key: string): void;
  resetKey(key: string): void;
}

/** For the option `storage` of `ThrottlerModule.forRoot`. */
export class NestThrottlerStorage {
  constructor(options?: StoreOptions);
  increment(
    key: string,
    ttl: number,
    limit: number,
    blockDuration: number,
    throttlerName: string,
  ): Promise<{ totalHits: number; timeToExpire: number; isBlocked: boolean; timeToBlockExpire: number }>;
}
