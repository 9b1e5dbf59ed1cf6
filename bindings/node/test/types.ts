// Compiled against the types of the installed package, and never run.

import express from "express";

import { Gate, Limiter, ManualClock, Reservation, SharedGate, SlidegateError, parseRateLimit, waitMs } from "slidegate";
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

const client = new Client("http://127.0.0.1:7979");
const answer: Promise<{ readonly status: number }> = client.check({ user: "alice" });

const code: string = new SlidegateError("store", "no reply").code;
const milliseconds: number = waitMs(parseRateLimit({ ratelimit: '"default";r=0;t=5' }));

express().use(rateLimit({ limit: "100/1m", key: (request) => request.headers.host ?? "" }));

// @ts-expect-error: a limiter counts keys, and has no attributes
limiter.check({ user: "alice" });
// @ts-expect-error: an unknown option
new Limiter("100/1m", { algorythm: "sliding-log" });

export { allowed, answer, code, later, milliseconds, reservation, wait, window };
