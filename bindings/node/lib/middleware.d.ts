import type { Attributes, Cost, Gate, Limiter, Quota, SharedGate, SlidegateError } from "../index.js";
import type { Client } from "./client.js";

type Awaitable<T> = T | Promise<T>;

interface CommonOptions<Request, Denied> {
  /** What a request costs. Default: 1. */
  cost?: Cost | ((request: Request) => Awaitable<Cost | undefined>);
  /**
   * Waits for a turn instead of denying, for up to 3,600,000 ms (60,000 of a `Client`), while the client stays connected.
   * What cannot get its turn in that time is denied at once.
   */
  waitMs?: number;
  /** Passes requests on unchecked. */
  skip?: (request: Request) => Awaitable<boolean>;
  /** Responds to a denied request. Default: a problem body. */
  denied?: Denied;
  /** Whether a response with this status returns its cost. */
  refund?: (status: number) => boolean;
  /** Gets the failures of the store or the service, and of refunds and settlements. */
  onError?: (error: SlidegateError, request: Request) => void;
  /** Networks, addresses, `loopback`, `private` and `unix`: whose forwarding header is believed. */
  trustedProxies?: string[];
  /** Default: `x-forwarded-for`. Also `forwarded`, or a header with one address. */
  addressHeader?: string;
  /** Bits of an IPv6 address that are one client, 32 to 128. Default: 56 for a limiter; policies of gates have their own. */
  ipv6Prefix?: number;
}

/** One quota, by key: the client's address unless `key` says another. */
export interface KeyOptions<Request, Denied> extends CommonOptions<Request, Denied> {
  limit?: Quota;
  limiter?: Limiter;
  key?: (request: Request) => Awaitable<string>;
}

/** Policies, by attributes: `ip`, `method` and `path`, and those that `attributes` adds. */
export interface AttributeOptions<Request, Denied> extends CommonOptions<Request, Denied> {
  limiter: Gate | SharedGate | Client;
  attributes?: (request: Request) => Awaitable<Attributes>;
  policy?: string;
  /** Holds the cost until the response has ended. The handler records the true one in the reservation. */
  reserve?: { ttlMs?: number };
}

export type RateLimitOptions<Request, Denied> = KeyOptions<Request, Denied> | AttributeOptions<Request, Denied>;
