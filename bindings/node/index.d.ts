// Types of `slidegate`. Written by hand; `check` compiles a sample against them.

export { Client, type ClientOptions } from "./lib/client.js";

/** Why a request is denied. `invalid` is a request that could not be counted, see `Decision.error`. */
export type Reason = "over_limit" | "blocked" | "too_many_holds" | "store_full" | "store_unavailable" | "invalid";

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
  constructor(code: string, message: string, details?: { status?: number; field?: string; cause?: unknown });
  /** Such as `invalid_quota`, `invalid_policy`, `invalid_request`, `invalid_options`, `unknown_policy`, `invalid_ticket`, `store`, `timeout` or `unavailable`. */
  readonly code: string;
  /** Of the service's response. */
  readonly status?: number;
  /** The invalid member of the request, such as `attributes.ip`. */
  readonly field?: string;
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
  /** The name in header fields and denials. Default: `default`. */
  name?: string;
  /** The name by which the worker threads of a process share one limiter. */
  shared?: string;
}

/** One quota, many keys, in the memory of the process. */
export class Limiter {
  constructor(quota: Quota, options?: LimiterOptions);
  static shared(name: string, quota: Quota, options?: Omit<LimiterOptions, "shared" | "clock" | "maxKeys">): Limiter;
  allows(key: string, cost?: number): boolean;
  check(key: string, cost?: number): Decision;
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

export interface ReserveOptions extends CheckOptions {
  /** How long the cost is held unless it is settled or extended: 1 to 3,600,000. */
  ttlMs?: number;
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
  headers?: HeaderOptions;
  /** What the policies are called in error messages. */
  name?: string;
}

/** Many policies, one verdict, in the memory of the process. */
export class Gate {
  constructor(policies: Policies, options?: GateOptions);
  static fromFile(path: string | URL, options?: GateOptions): Gate;
  check(attributes: Attributes, cost?: Cost, options?: CheckOptions): Decision;
  peek(attributes: Attributes, cost?: Cost, options?: RequestOptions): Decision;
  refund(attributes: Attributes, cost?: Cost, options?: RequestOptions): Decision;
  penalize(attributes: Attributes, cost?: Cost, options?: RequestOptions): Decision;
  reset(attributes: Attributes, options?: RequestOptions): boolean;
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
  headers?: HeaderOptions;
}

/** Many policies over Redis, shared by all processes. An outage is no error: each policy's `on_store_error` decides. */
export class SharedGate {
  constructor(url: string | URL, policies: Policies, options?: SharedGateOptions);
  check(attributes: Attributes, cost?: Cost, options?: CheckOptions): Promise<Decision>;
  peek(attributes: Attributes, cost?: Cost, options?: RequestOptions): Promise<Decision>;
  refund(attributes: Attributes, cost?: Cost, options?: RequestOptions): Promise<Decision>;
  penalize(attributes: Attributes, cost?: Cost, options?: RequestOptions): Promise<Decision>;
  reset(attributes: Attributes, options?: RequestOptions): Promise<boolean>;
  reserve(attributes: Attributes, cost?: Cost, options?: ReserveOptions): Promise<Reservation<Promise<Settlement>>>;
  settle(ticket: string, cost: Cost): Promise<Settlement>;
  settleSoFar(ticket: string, cost: Cost): Promise<Settlement>;
  extend(ticket: string, extension?: Extension): Promise<Settlement>;
  cancel(ticket: string): Promise<Settlement>;
  configure(policies: Policies): void;
}

/** Time that tests advance by hand. */
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
