import type { Attributes, Cost, Gate, Limiter, Quota, SharedGate, SlidegateError } from "../index.js";
import type { Client } from "./client.js";

type Awaitable<T> = T | Promise<T>;

export interface ToolLimitOptions<Call extends unknown[]> {
  limit?: Quota;
  limiter?: Limiter | Gate | SharedGate | Client;
  /** Who calls, for a limiter. Default: the OAuth client, or the session. */
  key?: (...call: Call) => Awaitable<string>;
  /** Who calls, for gates and the service. Default: `{ user }` of the same. */
  attributes?: (...call: Call) => Awaitable<Attributes>;
  policy?: string;
  cost?: Cost | ((...call: Call) => Awaitable<Cost>);
  /** Waits for a turn instead of denying, for up to 3,600,000 ms (60,000 of a `Client`), unless its client cancels the call. */
  waitMs?: number;
  onError?: (error: SlidegateError) => void;
}

/** The handler of a tool, within a limit. A denied call is a tool error that says how long to wait. */
export function limitTool<Call extends any[], Result>(
  handler: (...call: Call) => Awaitable<Result>,
  options: ToolLimitOptions<Call>,
): (...call: Call) => Promise<Result | { isError: true; content: Array<{ type: "text"; text: string }> }>;
