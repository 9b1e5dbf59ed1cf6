// Compiled against the types of the installed package, and never run.

import express from "express";

import { type Decision, Gate, Limiter, ManualClock, type Reason, Reservation, SharedGate, SlidegateError, parseRateLimit, waitMs } from "slidegate";
import { Client } from "slidegate/client";
import { rateLimit } from "slidegate/express";

const limiter = new Limiter("100/1m", { algorithm: "sliding-log", clock: new ManualClock() });
const allowed: boolean = limiter.allows("alice", 2);
const wait: number | null = limiter.check("alice").retryAfterMs;

const gate = new Gate([{ name: "per-user", scope: ["user"], limit: 100, window: "1m" }]);
const window: number | null | undefined = gate.check({ user: "alice" }, { input: 900 }).policies[0]?.windowMs;
const reservation: Reservation = gate.reserve({ user: "alice" }, undefined, { ttlMs: 1000 });

const shared = new SharedGate("redis://127.0.0.1:6379", "policies: [{name: all, quota: 1/1s}]", { deadlineMs: 20 });
const later: Promise<boolean> = shared.check({}).then((decision) => decision.allowed);

const turn: Promise<Decision> = limiter.acquire("alice", { cost: 2, timeoutMs: 500, signal: new AbortController().signal });
const inOrder: Promise<boolean> = gate.acquire({ user: "alice" }, { cost: { input: 900 }, policy: "per-user" }).then((decision) => decision.allowed);
const permit: Promise<Reservation> = gate.reserve({ user: "alice" }, 2, { waitMs: 2000 });
const fetchLater: (url: string, times?: number) => Promise<Response> = limiter.wrap(
  async (url: string, _times?: number) => fetch(url),
  { key: (url) => new URL(url).host, cost: (_url, times = 1) => times },
);
const sum: Promise<number> = shared.schedule({ attributes: { user: "alice" }, reserve: { ttlMs: 5000 } }, (a: number, b: number) => a + b, 1, 2);
const text: Promise<string> = limiter.schedule(async (name: string) => name, "alice");
const reason: Reason = "queue_full";
const retryAfterMs: number | null | undefined = new SlidegateError("denied", "no turn").retryAfterMs;

const client = new Client("http://127.0.0.1:7979");
const answer: Promise<{ readonly status: number }> = client.check({ user: "alice" });

const code: string = new SlidegateError("store", "no reply").code;
const milliseconds: number = waitMs(parseRateLimit({ ratelimit: '"default";r=0;t=5' }));

const fromService: Promise<Decision> = client.acquire({ user: "alice" }, { timeoutMs: 500 });
const fromServiceToo: Promise<string> = client.schedule(() => "done");

express().use(rateLimit({ limit: "100/1m", waitMs: 2000 }));
express().use(rateLimit({ limit: "100/1m", key: (request) => request.headers.host ?? "" }));

// @ts-expect-error: a limiter counts keys, and has no attributes
limiter.check({ user: "alice" });
// @ts-expect-error: times have their unit in their names
limiter.acquire("alice", { timeout: 500 });
// @ts-expect-error: a limiter has no attributes to wait by
limiter.wrap(() => 1, { attributes: { user: "alice" } });
// @ts-expect-error: the arguments of the function follow
limiter.schedule((name: string) => name, 5);
// @ts-expect-error: an unknown option
new Limiter("100/1m", { algorythm: "sliding-log" });

export { allowed, answer, code, fetchLater, fromService, fromServiceToo, inOrder, later, milliseconds, permit, reason, reservation, retryAfterMs, sum, text, turn, wait, window };
