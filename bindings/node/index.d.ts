// Types of `slidegate`. Written by hand; `check` compiles a sample against them.

export { Client, type ClientOptions } from "./lib/client.js";

/**
 * Why a request is denied. `queue_full`: it was to wait for its turn, and as many wait as may. `invalid`: it could not be
 * counted, see `Decision.error`.
 */
export type Reason = "over_limit" | "blocked" | "too_many_holds" | "store_full" | "queue_full" | "store_unavailable" | "invalid";

/** Where a decision comes from. The last three are of a client without its service. */
export type Source = "store" | "cached" | "leased" | "local" | "allow" | "deny" | "fail_open" | "fail_closed" | "invalid";

/** Completion for the usual names; a name that is unknown is refused when the limiter is made. */
export type Algorithm = "sliding-log" | "sliding-window" | "fixed-window" | "token-bucket" | (string & {});

/** What one policy decides. Times are in milliseconds, rounded up. */
export interface PolicyDecision {
  policy: string;
  key: string;
  allowed: boolean;
  /** False for a shadow policy, whose denials deny nothing. */
  enforced: boolean;
  limit: number;
  /** The window; the lease of a permit. */
  windowMs: number | null;
  used: number;
  /** What open reservations hold. `remaining` is without it. */
  held: number;
  remaining: number;
  cost: number;
  /** Until the same request fits; 0 if it is allowed, null if it never does. */
  retryAfterMs: number | null;
  resetAfterMs: number;
  source: Source;
  reason: Reason | null;
}

/** A body of `application/problem+json` (RFC 9457). */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  "violated-policies"?: string[];
  retry_after_ms?: number | null;
}

/** The answer to one request. Its numbers are of the strictest policy, or 0 if none applies. */
export class Decision {
  private constructor();
  readonly allowed: boolean;
  readonly limit: number;
  readonly used: number;
  readonly remaining: number;
  /** What this call charged or refunded. */
  readonly cost: number;
  /** Until the same cost fits; 0 if it is allowed, null if it never does. */
  readonly retryAfterMs: number | null;
  /** Until the key is unused again. */
  readonly resetAfterMs: number;
  readonly reason: Reason | null;
  readonly policy: string | null;
  readonly key: string | null;
  readonly held: number;
  readonly source: Source | null;
  /** The decision in a sentence, for operators. */
  readonly why: string | null;
  /** Of all policies that apply. */
  readonly policies: readonly PolicyDecision[];
  /** Why the store or the service did not decide; null if it did. */
  readonly error: SlidegateError | null;
  /** The status of an HTTP response: 200, 429, 503, or 400 and 500 for what cannot be counted. */
  readonly status: number;
  /** Header fields for the client: RateLimit, RateLimit-Policy, X-RateLimit-... and Retry-After. */
  readonly headers: ReadonlyArray<readonly [string, string]>;
  /** The body of a denial; null if it is allowed. */
  readonly problem: Problem | null;
  toJSON(): Record<string, unknown>;
}

export class SlidegateError extends Error {
  constructor(code: string, message: string, details?: { status?: number; field?: string; cause?: unknown; decision?: Decision });
  /** Such as `invalid_quota`, `invalid_policy`, `invalid_request`, `invalid_options`, `unknown_policy`, `invalid_ticket`, `denied`, `store`, `timeout` or `unavailable`. */
  readonly code: string;
  /** Of the service's response. */
  readonly status?: number;
  /** The invalid member of the request, such as `attributes.ip`. */
  readonly field?: string;
  /** Of `denied`: no turn came in time. */
  readonly decision?: Decision;
  /** Of `denied`: until the same call fits, in milliseconds; null if it never does. */
  readonly retryAfterMs?: number | null;
}

export interface WaitOptions {
  /**
   * The longest wait, 0 to 3,600,000 ms; of a `Client` at most 60,000. Default: 10,000. What cannot get its turn in that
   * time is denied at once. With 0, it is decided at once, but does not overtake those who wait.
   */
  timeoutMs?: number;
  /** Aborted, it takes the call out of its queue, charges nothing, and rejects with its reason. */
  signal?: AbortSignal;
}

/** A value, or a function of the arguments of the call that waits. */
export type OfCall<Value, Args extends any[]> = Value | ((...args: Args) => Value | Promise<Value>);

/** Options of `wrap` and `schedule`. `Subject` is what a limiter or a gate counts by. */
export type TurnOptions<Subject, Args extends any[]> = WaitOptions & { [Name in keyof Subject]?: OfCall<Subject[Name], Args> };

/** Calls functions when they have their turn. */
export interface Turns<Subject> {
  /**
   * A function that waits for its turn, and then calls `fn` with its arguments and its `this`. If no turn comes in time,
   * it rejects with a SlidegateError whose code is `denied`, and does not call `fn`.
   */
  wrap<This, Args extends any[], Result>(
    fn: (this: This, ...args: Args) => Result,
    options?: TurnOptions<Subject, Args>,
  ): (this: This, ...args: Args) => Promise<Awaited<Result>>;
  /** Waits for a turn, and then calls `fn(...args)`. */
  schedule<Args extends any[], Result>(fn: (...args: Args) => Result, ...args: Args): Promise<Awaited<Result>>;
  schedule<Args extends any[], Result>(
    options: TurnOptions<Subject, Args>,
    fn: (...args: Args) => Result,
    ...args: Args
  ): Promise<Awaited<Result>>;
}

export type Quota = string | { limit: number; window: string };

export interface QuotaOptions {
  /** Default: `sliding-log`, which is exact. */
  algorithm?: Algorithm;
  /** What a token bucket admits at once. */
  burst?: number;
}

export interface LimiterOptions extends QuotaOptions {
  clock?: ManualClock;
  /** Most keys in memory; the least recently used are dropped. */
  maxKeys?: number;
  /** How many may wait for one key; more are denied with `queue_full`. Default: 1024. */
  maxWaiting?: number;
  /** The name in header fields and denials. Default: `default`. */
  name?: string;
  /** The name by which the worker threads of a process share one limiter. */
  shared?: string;
}

/** What a limiter counts by. The key is `default` if calls name none. */
export interface KeySubject {
  key: string;
  cost: number;
}

export interface Limiter extends Turns<KeySubject> {}

/** One quota, many keys, in the memory of the process. */
export class Limiter {
  constructor(quota: Quota, options?: LimiterOptions);
  static shared(name: string, quota: Quota, options?: Omit<LimiterOptions, "shared" | "clock" | "maxKeys" | "maxWaiting">): Limiter;
  allows(key: string, cost?: number): boolean;
  check(key: string, cost?: number): Decision;
  /** Waits for its turn instead of being denied: first come, first served for each key. Charges nothing while it waits. */
  acquire(key: string, options?: WaitOptions & { cost?: number }): Promise<Decision>;
  peek(key: string, cost?: number): Decision;
  refund(key: string, cost?: number): Decision;
  penalize(key: string, cost?: number): Decision;
  reset(key: string): boolean;
  configure(quota: Quota, options?: QuotaOptions): void;
  readonly quota: string;
  readonly windowMs: number;
}

/** Values are text; `undefined` and `null` are absent. */
export type Attributes = Record<string, string | number | bigint | boolean | null | undefined>;

/** A number, or numbers by name, of which each policy counts one or the sum. */
export type Cost = number | Record<string, number>;

export interface RequestOptions {
  /** The only policy that decides. */
  policy?: string;
}

export interface CheckOptions extends RequestOptions {
  /** Makes a check or a reservation safe to repeat. */
  idempotencyKey?: string;
}

export interface AcquireOptions extends WaitOptions, RequestOptions {
  cost?: Cost;
}

export interface ReserveOptions extends CheckOptions {
  /** How long the cost is held unless it is settled or extended: 1 to 3,600,000. */
  ttlMs?: number;
}

/** A gate takes no `idempotencyKey` with them. */
export interface WaitingReserveOptions extends ReserveOptions {
  /** The longest wait for a turn, 0 to 3,600,000 ms; of a `Client` at most 60,000, in whole seconds, rounded up. */
  waitMs: number;
  signal?: AbortSignal;
}

/** What gates and the service count by. */
export interface RequestSubject {
  attributes: Attributes;
  cost: Cost;
  policy: string;
  /** Holds the cost, and permits of policies with `in_flight`, until the function has ended; then it is charged. */
  reserve: { ttlMs?: number };
}

export interface Extension {
  /** The total to hold from now on. */
  hold?: Cost;
  ttlMs?: number;
}

export type SettlementOutcome = "changed" | "already_settled" | "expired" | "denied" | "unknown" | "queued" | "none";

export interface Settlement {
  outcome: SettlementOutcome;
  /** For the next change, if the reservation stays open. */
  ticket: string | null;
  policies: ReadonlyArray<Omit<PolicyDecision, "key" | "allowed" | "enforced" | "source" | "reason"> & { outcome: SettlementOutcome }>;
}

/** What a request holds until its true cost is known. `S` is a settlement, or a promise of one. */
export class Reservation<S extends Settlement | Promise<Settlement> = Settlement | Promise<Settlement>> {
  private constructor();
  readonly decision: Decision;
  readonly allowed: boolean;
  readonly ticket: string | null;
  /** Whether `close` settles; otherwise it cancels. */
  readonly hasRecorded: boolean;
  record(cost: Cost): void;
  settle(cost: Cost): S | Settlement;
  settleSoFar(cost: Cost): S | Settlement;
  extend(extension?: Extension): S | Settlement;
  cancel(): S | Settlement;
  close(): S | Settlement;
  [Symbol.dispose](): void;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A policy, with the keys of the YAML: docs/config.md. */
export type Policy = { name: string } & Record<string, unknown>;

/** A list of policies, or YAML. */
export type Policies = readonly Policy[] | string;

export interface HeaderOptions {
  /** `draft-10` by default, or `draft-7`, `draft-6` and `off`. */
  draft?: string;
  xRatelimit?: string;
}

export interface GateOptions {
  clock?: ManualClock;
  maxKeys?: number;
  /** How many may wait for one key; more are denied with `queue_full`. Default: 1024. */
  maxWaiting?: number;
  headers?: HeaderOptions;
  /** What the policies are called in error messages. */
  name?: string;
}

export interface Gate extends Turns<RequestSubject> {}

/** Many policies, one verdict, in the memory of the process. */
export class Gate {
  constructor(policies: Policies, options?: GateOptions);
  static fromFile(path: string | URL, options?: GateOptions): Gate;
  check(attributes: Attributes, cost?: Cost, options?: CheckOptions): Decision;
  /** Waits for its turn instead of being denied: first come, first served for each key. Charges nothing while it waits. */
  acquire(attributes: Attributes, options?: AcquireOptions): Promise<Decision>;
  peek(attributes: Attributes, cost?: Cost, options?: RequestOptions): Decision;
  refund(attributes: Attributes, cost?: Cost, options?: RequestOptions): Decision;
  penalize(attributes: Attributes, cost?: Cost, options?: RequestOptions): Decision;
  reset(attributes: Attributes, options?: RequestOptions): boolean;
  reserve(attributes: Attributes, cost: Cost | undefined, options: WaitingReserveOptions): Promise<Reservation<Settlement>>;
  reserve(attributes: Attributes, cost?: Cost, options?: ReserveOptions): Reservation<Settlement>;
  settle(ticket: string, cost: Cost): Settlement;
  settleSoFar(ticket: string, cost: Cost): Settlement;
  extend(ticket: string, extension?: Extension): Settlement;
  cancel(ticket: string): Settlement;
  configure(policies: Policies): void;
}

export interface SharedGateOptions {
  /** The longest a decision waits for Redis. Default: 50. */
  deadlineMs?: number;
  /** The longest that connecting takes. Default: 250, or `deadlineMs` if that is longer. */
  connectTimeoutMs?: number;
  /** To each node. */
  connections?: number;
  /** What ids are hashed with: the same in all programs that share limits. */
  keySecret?: string;
  hashedKeys?: boolean;
  /** The attribute whose value chooses the slot of a cluster. */
  hashTag?: string;
  /** Certificates of authorities, in PEM form. */
  caCertificates?: string | Uint8Array;
  /** How many of this process may wait for one key; more are denied with `queue_full`. Default: 1024. */
  maxWaiting?: number;
  headers?: HeaderOptions;
}

export interface SharedGate extends Turns<RequestSubject> {}

/** Many policies over Redis, shared by all processes. An outage is no error: each policy's `on_store_error` decides. */
export class SharedGate {
  constructor(url: string | URL, policies: Policies, options?: SharedGateOptions);
  check(attributes: Attributes, cost?: Cost, options?: CheckOptions): Promise<Decision>;
  /**
   * Waits for its turn instead of being denied: first come, first served for each key within the process. Charges nothing
   * while it waits; a check that was already sent when its signal is aborted may be charged.
   */
  acquire(attributes: Attributes, options?: AcquireOptions): Promise<Decision>;
  peek(attributes: Attributes, cost?: Cost, options?: RequestOptions): Promise<Decision>;
  refund(attributes: Attributes, cost?: Cost, options?: RequestOptions): Promise<Decision>;
  penalize(attributes: Attributes, cost?: Cost, options?: RequestOptions): Promise<Decision>;
  reset(attributes: Attributes, options?: RequestOptions): Promise<boolean>;
  reserve(attributes: Attributes, cost?: Cost, options?: ReserveOptions | WaitingReserveOptions): Promise<Reservation<Promise<Settlement>>>;
  settle(ticket: string, cost: Cost): Promise<Settlement>;
  settleSoFar(ticket: string, cost: Cost): Promise<Settlement>;
  extend(ticket: string, extension?: Extension): Promise<Settlement>;
  cancel(ticket: string): Promise<Settlement>;
  configure(policies: Policies): void;
}

/** Time that tests advance by hand. Calls that wait get their turns by it; their `timeoutMs` is of the machine's time. */
export class ManualClock {
  advance(ms: number): void;
}

export interface RateLimitItem {
  name: string;
  remaining: number;
  resetMs: number | null;
  partitionKey: Uint8Array | null;
}

export interface RateLimitPolicy {
  name: string;
  quota: number;
  /** Null is requests. */
  unit: string | null;
  windowMs: number | null;
  partitionKey: Uint8Array | null;
}

export interface RateLimitFields {
  items: RateLimitItem[];
  policies: RateLimitPolicy[];
  retryAfterMs: number | null;
  /** Fields that are ignored, as they are malformed. */
  malformed: Array<{ field: string; problem: string }>;
}

/** Reads RateLimit, RateLimit-Policy and Retry-After of any server that follows the draft. */
export function parseRateLimit(
  headers: Iterable<readonly [string, string | readonly string[]]> | Record<string, string | readonly string[] | undefined>,
): RateLimitFields;

/** How long not to send the next request. */
export function waitMs(fields: RateLimitFields): number;
