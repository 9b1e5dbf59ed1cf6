// A gateway for a language model: limits on requests by address and by user, one on tokens, and two streams at
// once for each user.
//
//     npm install slidegate express
//     REDIS_URL=redis://127.0.0.1:6379 PORT=3000 node app.mjs
//
// Without REDIS_URL, it counts in the memory of the process.

import { setTimeout as sleep } from "node:timers/promises";

import express from "express";
import { Gate, SharedGate } from "slidegate";
import { rateLimit } from "slidegate/express";

const POLICIES = `
policies:
  - {name: per-address, scope: [ip], quota: 100/1m, counts: requests}
  - {name: per-user, scope: [user], quota: 20/1m, counts: requests}
  - {name: tokens, scope: [user], quota: 10_000/1m}
  - {name: streams, scope: [user], in_flight: 2, lease: 30s, counts: requests}
`;
const { REDIS_URL, PORT = "3000" } = process.env;
const gate = REDIS_URL ? new SharedGate(REDIS_URL, POLICIES) : new Gate(POLICIES);

/** Stands for authentication: a name that clients choose themselves limits nobody. */
const user = (request) => request.get("x-user") ?? "anonymous";

const app = express();
app.get("/healthz", (_request, response) => response.send("ok"));

const limits = rateLimit({
  limiter: gate,
  attributes: (request) => ({ user: user(request) }),
  // The prompt's tokens, which are known, and the most that the answer may have.
  cost: 10 + 500,
  reserve: { ttlMs: 60_000 },
  refund: (status) => status >= 500,
  trustedProxies: ["loopback"],
});
app.get("/chat", limits, async (request, response) => {
  const words = Math.min(Number(request.query.words ?? 5), 500);
  for (let tokens = 1; tokens <= words && !response.destroyed; tokens++) {
    await sleep(1); // stands for a model that streams text and usage
    request.reservation.record(10 + tokens);
    response.write("word ");
  }
  response.end();
});

app.get("/usage", async (request, response) => {
  const { policies } = await gate.peek({ user: user(request) }, 1);
  response.json(Object.fromEntries(policies.map(({ policy, used, held }) => [policy, { used, held }])));
});

const server = app.listen(Number(PORT), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
