import type { SecureContextOptions } from "node:tls";

import type {
  AcquireOptions, Attributes, CheckOptions, Cost, Decision, Extension, RequestOptions, RequestSubject, Reservation,
  ReserveOptions, Settlement, Turns, WaitingReserveOptions,
} from "../index.js";

export interface ClientOptions {
  /** A bearer token. It is sent to the host of the URL only. */
  token?: string;
  /** Bounds each call, connecting included, besides the time that it waits for its turn. Default: 100. */
  timeoutMs?: number;
  /** How long settlements and cancellations are repeated. Default: 5000. */
  settleTimeoutMs?: number;
  /** How a request is decided that the service does not decide. Default: `allow`. */
  onFailure?: "allow" | "deny";
  /** Default: 64. */
  maxConnections?: number;
  /** How many calls of this client may wait for their turn, each on one more connection; more are denied with `queue_full`. Default: 1024. */
  maxWaiting?: number;
  tls?: SecureContextOptions & { rejectUnauthorized?: boolean; servername?: string };
}

export interface Client extends Turns<RequestSubject> {}

/** Client of one slidegate service. Checks always resolve; changes reject with a SlidegateError. */
export class Client {
  /** `http://127.0.0.1:7979`, `https://host/prefix` or `unix:///path/to/socket`. */
  constructor(url: string | URL, options?: ClientOptions);
  check(attributes: Attributes, cost?: Cost, options?: CheckOptions): Promise<Decision>;
  /** Waits for its turn instead of being denied: first come, first served for each key. Rejects if its signal is aborted. */
  acquire(attributes: Attributes, options?: AcquireOptions): Promise<Decision>;
  peek(attributes: Attributes, cost?: Cost, options?: RequestOptions): Promise<Decision>;
  checkBatch(requests: ReadonlyArray<{ attributes: Attributes; cost?: Cost; policy?: string }>): Promise<Decision[]>;
  refund(attributes: Attributes, cost?: Cost, options?: RequestOptions): Promise<Decision>;
  penalize(attributes: Attributes, cost?: Cost, options?: RequestOptions): Promise<Decision>;
  reset(attributes: Attributes, options?: RequestOptions): Promise<boolean>;
  reserve(attributes: Attributes, cost?: Cost, options?: ReserveOptions | WaitingReserveOptions): Promise<Reservation<Promise<Settlement>>>;
  settle(ticket: string, cost: Cost): Promise<Settlement>;
  settleSoFar(ticket: string, cost: Cost): Promise<Settlement>;
  extend(ticket: string, extension?: Extension): Promise<Settlement>;
  cancel(ticket: string): Promise<Settlement>;
  close(): void;
}
