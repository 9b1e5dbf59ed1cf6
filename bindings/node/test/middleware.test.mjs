import assert from "node:assert/strict";
import { createServer, request as httpRequest } from "node:http";
import { once } from "node:events";
import { test } from "node:test";

import { serve } from "@hono/node-server";
import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import Koa from "koa";

import { Gate, Limiter, ManualClock } from "slidegate";
import { Client } from "slidegate/client";
import { rateLimit as expressLimit } from "slidegate/express";
import { rateLimit as fastifyLimit } from "slidegate/fastify";
import { rateLimit as honoLimit } from "slidegate/hono";
import { rateLimit as koaLimit } from "slidegate/koa";

import { listen, startService } from "./support.mjs";

/**
 * The same application in each framework: `/`, `/fail` (500), `/throw`, `/stream` (records 7 tokens, then
 * ends when asked with `?end`) and `/decision`.
 */
const FRAMEWORKS = {
  async express(options) {
    const app = express();
    app.use(expressLimit(options));
    app.get("/fail", (_, res) => res.status(500).send("fail"));
    app.get("/throw", () => {
      throw new Error("thrown");
    });
    app.get("/stream", (req, res) => {
      req.reservation?.record(7);
      res.write("some");
      if ("end" in req.query) res.end("more");
    });
    app.get("/decision", (req, res) => res.json(req.rateLimit));
    app.use((_, res) => res.send("hello"));
    app.use((_error, _req, res, _next) => res.status(500).send("error"));
    return listen(createServer(app));
  },
  async fastify(options) {
    const app = Fastify();
    app.addHook("onRequest", fastifyLimit(options));
    app.get("/fail", (_, reply) => reply.code(500).send("fail"));
    app.get("/throw", async () => {
      throw new Error("thrown");
    });
    app.get("/stream", (request, reply) => {
      request.reservation?.record(7);
      reply.hijack();
      reply.raw.write("some");
      if ("end" in request.query) reply.raw.end("more");
    });
    app.get("/decision", async (request) => request.rateLimit);
    app.get("/*", async () => "hello");
    await app.ready();
    return listen(app.server);
  },
  async koa(options) {
    const app = new Koa();
    app.silent = true;
    app.use(koaLimit(options));
    app.use((ctx) => {
      if (ctx.path === "/fail") ctx.status = 500;
      else if (ctx.path === "/throw") throw new Error("thrown");
      else if (ctx.path === "/decision") ctx.body = ctx.state.rateLimit.toJSON();
      else if (ctx.path === "/stream") {
        ctx.state.reservation?.record(7);
        ctx.respond = false;
        ctx.res.write("some");
        if ("end" in ctx.query) ctx.res.end("more");
      } else ctx.body = "hello";
    });
    return listen(createServer(app.callback()));
  },
  async hono(options) {
    const app = new Hono();
    app.use(honoLimit(options));
    app.get("/fail", (c) => c.text("fail", 500));
    app.get("/throw", () => {
      throw new Error("thrown");
    });
    app.get("/stream", (c) => {
      c.get("reservation")?.record(7);
      const isEnding = c.req.query("end") !== undefined;
      const body = new ReadableStream({
        start(controller) {
          controller.enqueue(new TextEncoder().encode("some"));
          if (isEnding) controller.close();
        },
      });
      return new Response(body);
    });
    app.get("/decision", (c) => c.json(c.get("rateLimit").toJSON()));
    app.get("*", (c) => c.text("hello"));
    app.onError((_, c) => c.text("error", 500));
    const server = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
    if (!server.listening) await once(server, "listening");
    return url(server);
  },
};

const { after } = await import("node:test");
function url(server) {
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

const service = await startService(`
policies:
  - {name: per-user, scope: [user], quota: 2/1m}
  - {name: tokens, scope: [team], quota: 100/1m}
  - {name: streams, scope: [pool], in_flight: 1}
  - {name: by-path, when: {path: /login}, scope: [ip, path], quota: 1/1m}
`);
const client = new Client(service.url, { timeoutMs: 2000 });

/** Remembers the calls that wait. */
class WatchedLimiter extends Limiter {
  turns = [];

  acquire(key, options) {
    const turn = super.acquire(key, options);
    this.turns.push(turn);
    return turn;
  }
}

/** Waits for what happens after a response. */
async function eventually(check) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await check();
    } catch (error) {
      if (attempt === 200) throw error;
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
}

/** A request whose client is gone after the first bytes of the response. */
async function abandon(target) {
  const request = httpRequest(target);
  request.on("error", () => {});
  request.end();
  const [response] = await once(request, "response");
  await once(response, "data");
  request.destroy();
}

for (const [name, start] of Object.entries(FRAMEWORKS)) {
  test(`${name}: a limit per client address, with header fields and a problem body`, async () => {
    const base = await start({ limit: "2/1m" });
    const first = await fetch(base);
    assert.deepEqual([first.status, await first.text()], [200, "hello"]);
    assert.match(first.headers.get("ratelimit"), /^"default";r=1;t=60$/);
    assert.equal(first.headers.get("x-ratelimit-remaining"), "1");
    const decision = await (await fetch(`${base}/decision`)).json();
    assert.deepEqual([decision.allowed, decision.remaining], [true, 0]);
    const denied = await fetch(base);
    assert.equal(denied.status, 429);
    assert.match(denied.headers.get("content-type"), /^application\/problem\+json/);
    assert.equal(denied.headers.get("cache-control"), "no-store");
    assert.match(denied.headers.get("retry-after"), /^(59|60)$/);
    const problem = await denied.json();
    assert.match(problem.type, /#quota-exceeded$/);
    assert.deepEqual(problem["violated-policies"], ["default"]);
  });

  test(`${name}: a key, a cost, what is skipped and the response of a denial are options`, async () => {
    const header = (request, field) => (request.req?.header?.(field) ?? request.get?.(field) ?? request.headers?.[field]) || undefined;
    const base = await start({
      limiter: new Limiter("10/1m"),
      key: (request) => header(request, "x-key") ?? "none",
      cost: async (request) => Number(header(request, "x-cost") ?? 1),
      skip: (request) => header(request, "x-skip") === "yes",
      denied: (request, second, third) => {
        const decision = third ?? second;
        if (request.req?.header) return request.text(`wait ${decision.retryAfterMs}`, 418);
        if (second.code) return second.code(418).send(`wait ${decision.retryAfterMs}`);
        if (second.status && third) return second.status(418).send(`wait ${decision.retryAfterMs}`);
        request.status = 418;
        request.body = `wait ${decision.retryAfterMs}`;
        return undefined;
      },
    });
    const ask = async (headers) => (await fetch(base, { headers })).status;
    assert.equal(await ask({ "x-key": "a", "x-cost": "9" }), 200);
    assert.equal(await ask({ "x-key": "a", "x-cost": "2" }), 418);
    assert.equal(await ask({ "x-key": "a", "x-cost": "2", "x-skip": "yes" }), 200);
    assert.equal(await ask({ "x-key": "b", "x-cost": "2" }), 200);
    const denied = await fetch(base, { headers: { "x-key": "a", "x-cost": "2" } });
    assert.match(await denied.text(), /^wait \d+$/);
  });

  test(`${name}: failed responses are refunded, and what is thrown counts as failed`, async () => {
    const limiter = new Limiter("2/1m");
    const base = await start({ limiter, key: () => "a", refund: (status) => status >= 500 });
    for (const path of ["/fail", "/throw", "/fail", "/throw"]) {
      assert.equal((await fetch(base + path)).status, 500);
      await eventually(() => assert.equal(limiter.peek("a").used, 0));
    }
    await fetch(base);
    assert.equal((await fetch(base)).status, 200);
    assert.equal((await fetch(base)).status, 429);
  });

  // A guess that disconnects at once would otherwise be free.
  test(`${name}: a client that is gone before the response keeps its charge`, async () => {
    const limiter = new Limiter("2/1m");
    const base = await start({ limiter, key: () => "a", refund: () => true });
    await abandon(`${base}/stream`);
    await new Promise((resolve) => setTimeout(resolve, 100));
    assert.equal(limiter.peek("a").used, 1);
  });

  // Returned late, it would lift the limit of later requests.
  test(`${name}: what no longer counts is not refunded`, async () => {
    const clock = new ManualClock();
    const limiter = new Limiter("2/1ms", { clock });
    const slow = () => new Promise((resolve) => setTimeout(resolve, 5, 1));
    const base = await start({ limiter, key: () => "a", cost: slow, refund: () => true });
    await fetch(`${base}/stream?end`);
    await new Promise((resolve) => setTimeout(resolve, 50));
    assert.equal(limiter.peek("a").used, 1);
  });

  test(`${name}: policies of a gate, under the path as routers see it`, async () => {
    const gate = new Gate([
      { name: "login", when: { path: "/login" }, scope: ["ip"], quota: "1/1m" },
      { name: "all", scope: ["ip"], quota: "100/1m" },
    ]);
    const base = await start({ limiter: gate });
    assert.equal((await fetch(`${base}/login`)).status, 200);
    for (const path of ["/login", "/%6Cogin", "//login", "/login?x=1"]) {
      const denied = await fetch(base + path);
      assert.equal(denied.status, 429, path);
      assert.match(denied.headers.get("ratelimit-policy"), /"login";q=1;w=60, "all";q=100;w=60/);
    }
    assert.equal((await fetch(`${base}/other`)).status, 200);
    assert.equal(gate.peek({ ip: "127.0.0.1" }, 1, { policy: "all" }).used, 2);
  });

  test(`${name}: the service decides, and its failure is reported`, async () => {
    const user = `${name}-user`;
    const base = await start({ limiter: client, attributes: () => ({ user }) });
    const statuses = [];
    for (let i = 0; i < 3; i++) statuses.push((await fetch(base)).status);
    assert.deepEqual(statuses, [200, 200, 429]);
    const errors = [];
    const away = new Client("http://127.0.0.1:1", { timeoutMs: 1000 });
    const open = await start({ limiter: away, onError: (error) => errors.push(error.code) });
    assert.equal((await fetch(open)).status, 200);
    const closed = await start({ limiter: new Client("http://127.0.0.1:1", { onFailure: "deny", timeoutMs: 1000 }) });
    const denied = await fetch(closed);
    assert.equal(denied.status, 503);
    assert.ok(denied.headers.get("retry-after"));
    assert.deepEqual(errors, ["unavailable"]);
  });

  test(`${name}: a value that cannot be counted is a bad request`, async () => {
    const base = await start({ limiter: client, attributes: () => ({ user: "\ud800" }) });
    assert.equal((await fetch(base)).status, 400);
  });

  test(`${name}: streamed costs are reserved, and settled when the response has ended`, async () => {
    for (const limiter of [client, new Gate([{ name: "tokens", scope: ["team"], quota: "100/1m" }])]) {
      const team = `${name}-team`;
      const base = await start({ limiter, attributes: () => ({ team }), cost: 60, reserve: { ttlMs: 30_000 }, refund: (status) => status >= 500 });
      const state = async () => {
        const { used, held } = await limiter.peek({ team }, 1, { policy: "tokens" });
        return { used, held };
      };
      await (await fetch(`${base}/stream?end`)).text();
      await eventually(async () => assert.deepEqual(await state(), { used: 7, held: 0 }));
      // The client is gone in the middle: what it got is charged.
      await abandon(`${base}/stream`);
      await eventually(async () => assert.deepEqual(await state(), { used: 14, held: 0 }));
      await (await fetch(`${base}/throw`)).text();
      await eventually(async () => assert.deepEqual(await state(), { used: 14, held: 0 }));
      const open = await fetch(`${base}/stream`);
      assert.equal((await state()).held, 60);
      assert.equal((await fetch(`${base}/stream`)).status, 429);
      await open.body.cancel();
      await eventually(async () => assert.deepEqual(await state(), { used: 21, held: 0 }));
    }
  });

  test(`${name}: a request waits for its turn, and a client that hangs up leaves the queue`, { timeout: 60_000 }, async () => {
    const limiter = new WatchedLimiter("1/10m");
    const base = await start({ limiter, key: () => "a", waitMs: 3_600_000 });
    assert.equal((await fetch(base)).status, 200);
    const gone = httpRequest(base);
    gone.on("error", () => {});
    gone.end();
    await eventually(() => assert.equal(limiter.turns.length, 2));
    const next = fetch(base);
    await eventually(() => assert.equal(limiter.turns.length, 3));
    gone.destroy();
    await limiter.turns[1].then(() => assert.fail("it has a turn"), () => {});
    limiter.refund("a");
    const response = await next;
    assert.deepEqual([response.status, await response.text(), limiter.peek("a").used], [200, "hello", 1]);
    assert.match(response.headers.get("ratelimit"), /^"default";r=0;t=/);
  });

  test(`${name}: what gets no turn in time is denied as usual`, async () => {
    const base = await start({ limit: "1/10m", waitMs: 1000 });
    assert.equal((await fetch(base)).status, 200);
    const denied = await fetch(base);
    assert.equal(denied.status, 429);
    assert.ok(Number(denied.headers.get("retry-after")) > 500);
    assert.match((await denied.json()).type, /#quota-exceeded$/);
  });

  test(`${name}: streams wait until another one has ended`, { timeout: 60_000 }, async () => {
    for (const limiter of [client, new Gate([{ name: "streams", scope: ["pool"], in_flight: 1 }])]) {
      const base = await start({ limiter, attributes: () => ({ pool: name }), reserve: {}, waitMs: 30_000 });
      const first = await fetch(`${base}/stream`);
      const second = fetch(base);
      assert.equal(await Promise.race([second, new Promise((resolve) => setTimeout(resolve, 100, "waits"))]), "waits");
      await first.body.cancel();
      assert.equal((await second).status, 200);
    }
  });

  test(`${name}: a proxy is believed if it is trusted, and nobody else`, async () => {
    const ask = (base, forwarded) => fetch(base, { headers: { "x-forwarded-for": forwarded } }).then((response) => response.status);
    const trusting = await start({ limit: "1/1m", trustedProxies: ["loopback", "10.0.0.0/8"] });
    assert.equal(await ask(trusting, "192.0.2.1"), 200);
    assert.equal(await ask(trusting, "6.6.6.6, 192.0.2.1, 10.0.0.2"), 429);
    assert.equal(await ask(trusting, "192.0.2.2"), 200);
    // An IPv6 client has a whole network.
    assert.equal(await ask(trusting, "2001:db8:0:1::1"), 200);
    assert.equal(await ask(trusting, "2001:db8:0:2::2"), 429);
    const plain = await start({ limit: "1/1m" });
    assert.equal(await ask(plain, "192.0.2.1"), 200);
    assert.equal(await ask(plain, "192.0.2.2"), 429);
  });

  test(`${name}: callbacks that throw end as errors of the application`, async () => {
    const base = await start({ limit: "1/1m", key: () => { throw new Error("mine"); } });
    assert.equal((await fetch(base)).status, 500);
  });
}

test("options are checked when the middleware is made", () => {
  for (const [options, text] of [
    [{}, /either `limit`/],
    [{ limit: "1/1m", limiter: new Limiter("1/1m") }, /either `limit`/],
    [{ limit: "1/1m", keyGenerator: () => "a" }, /unknown option "keyGenerator"/],
    [{ limit: "1/1m", attributes: () => ({}) }, /have|has a `key`/],
    [{ limiter: client, key: () => "a" }, /`key` is for limiters/],
    [{ limit: "1/1m", waitMs: "2s" }, /invalid waitMs "2s": must be 0 to 3600000/],
    [{ limiter: client, waitMs: 60_001 }, /invalid waitMs 60001: must be 0 to 60000/],
  ]) {
    assert.throws(() => expressLimit(options), (error) => error.code === "invalid_options" && text.test(error.message));
  }
  assert.throws(() => expressLimit({ limit: "nonsense" }), { code: "invalid_quota" });
  assert.throws(() => expressLimit({ limit: "1/1m", trustedProxies: ["nonsense"] }), { code: "invalid_address" });
});
