import "reflect-metadata";

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import fastifyRateLimit from "@fastify/rate-limit";
import { Controller, Get, Module } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import express from "express";
import { rateLimit } from "express-rate-limit";
import Fastify from "fastify";

import { ManualClock } from "slidegate";
import { ExpressRateLimitStore, NestThrottlerStorage, fastifyStore } from "slidegate/stores";

import { listen } from "./support.mjs";

async function statuses(url, count, path = "/") {
  const all = [];
  for (let i = 0; i < count; i++) all.push((await fetch(url + path)).status);
  return all;
}

// A fixed window lets twice the limit through around its boundary; the exact one does not.
test("@fastify/rate-limit: the window slides, per route and globally", async () => {
  const clock = new ManualClock();
  const app = Fastify();
  await app.register(fastifyRateLimit, { max: 4, timeWindow: 60_000, store: fastifyStore({ clock }), keyGenerator: () => "a" });
  app.get("/", async () => "hello");
  app.get("/own", { config: { rateLimit: { max: 1, timeWindow: 1000 } } }, async () => "hello");
  await app.ready();
  const url = await listen(app.server);
  assert.deepEqual(await statuses(url, 2), [200, 200]);
  clock.advance(59_000);
  assert.deepEqual(await statuses(url, 3), [200, 200, 429]);
  const denied = await fetch(url);
  assert.equal(denied.headers.get("retry-after"), "1");
  assert.equal(denied.headers.get("x-ratelimit-remaining"), "0");
  // A second later, only the first two are out of the window. A fixed window would begin anew.
  clock.advance(1000);
  assert.deepEqual(await statuses(url, 3), [200, 200, 429]);
  assert.deepEqual(await statuses(url, 2, "/own"), [200, 429]);
  clock.advance(1000);
  assert.deepEqual(await statuses(url, 2, "/own"), [200, 429]);
});

test("@fastify/rate-limit: the number of quotas is bounded", () => {
  const Store = fastifyStore();
  const store = new Store({});
  const incr = (max) => new Promise((resolve) => store.incr("a", (error, result) => resolve(error ?? result), 60_000, max));
  return (async () => {
    for (let max = 1; max <= 64; max++) assert.equal((await incr(max)).current, 1);
    assert.equal((await incr(65)).code, "invalid_quota");
    assert.equal((await incr(1)).current, 2);
  })();
});

test("express-rate-limit: the window slides, and refunds are kept", async () => {
  const clock = new ManualClock();
  const app = express();
  app.use(rateLimit({ windowMs: 60_000, limit: 4, store: new ExpressRateLimitStore({ clock }), keyGenerator: () => "a", skipFailedRequests: true, standardHeaders: "draft-8" }));
  app.get("/fail", (_, res) => res.status(500).end());
  app.get("/", (_, res) => res.send("hello"));
  const url = await listen(createServer(app));
  assert.deepEqual(await statuses(url, 2), [200, 200]);
  clock.advance(59_000);
  assert.deepEqual(await statuses(url, 3), [200, 200, 429]);
  clock.advance(1000);
  assert.deepEqual(await statuses(url, 1, "/fail"), [500]);
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.deepEqual(await statuses(url, 3), [200, 200, 429]);
});

test("express-rate-limit: a limit that is a function charges every hit", async () => {
  const app = express();
  app.use(rateLimit({ windowMs: 60_000, limit: () => 2, store: new ExpressRateLimitStore(), keyGenerator: () => "a", validate: false }));
  app.get("/", (_, res) => res.send("hello"));
  assert.deepEqual(await statuses(await listen(createServer(app)), 4), [200, 200, 429, 429]);
});

test("express-rate-limit: get, resetKey and hits as its types say", () => {
  const store = new ExpressRateLimitStore();
  store.init({ windowMs: 1000, limit: 1 });
  assert.equal(store.get("a"), undefined);
  assert.equal(store.increment("a").totalHits, 1);
  const denied = store.increment("a");
  assert.equal(denied.totalHits, 2);
  assert.ok(denied.resetTime > new Date());
  assert.equal(store.get("a").totalHits, 1);
  store.resetKey("a");
  assert.equal(store.get("a"), undefined);
});

test("@nestjs/throttler: the guard of an application", async () => {
  const clock = new ManualClock();
  // Decorators without their syntax.
  class Hello {
    hello() {
      return "hello";
    }
  }
  Controller()(Hello);
  Get()(Hello.prototype, "hello", Object.getOwnPropertyDescriptor(Hello.prototype, "hello"));
  class App {}
  Module({
    imports: [ThrottlerModule.forRoot({ throttlers: [{ ttl: 60_000, limit: 2 }], storage: new NestThrottlerStorage({ clock }) })],
    controllers: [Hello],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })(App);
  const app = await NestFactory.create(App, { logger: false });
  await app.listen(0, "127.0.0.1");
  try {
    const url = `http://127.0.0.1:${app.getHttpServer().address().port}`;
    assert.deepEqual(await statuses(url, 1), [200]);
    clock.advance(59_000);
    assert.deepEqual(await statuses(url, 2), [200, 429]);
    const denied = await fetch(url);
    assert.equal(denied.headers.get("retry-after"), "1");
    clock.advance(1000);
    assert.deepEqual(await statuses(url, 2), [200, 429]);
  } finally {
    await app.close();
  }
});
