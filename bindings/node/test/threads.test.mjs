import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";

import { Limiter, SharedGate } from "slidegate";

import { startRedis } from "./support.mjs";

const here = new URL("..", import.meta.url);
const INDEX = import.meta.resolve("slidegate");

/** Runs a module in a worker thread; resolves with its message. */
function inThread(code) {
  const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(code.replaceAll("slidegate\"", `${INDEX}"`))}`));
  return new Promise((resolve, reject) => {
    let message;
    worker.once("message", (value) => (message = value));
    worker.once("error", reject);
    worker.once("exit", () => resolve(message));
  });
}

async function inProcess(code, args = []) {
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", ...args, "-e", code], { cwd: here, timeout: 30_000 });
  return stdout.trim();
}

// Threads that count alone let through as many times the limit as there are threads.
test("a shared limiter counts for all threads of the process", async () => {
  const limiter = Limiter.shared("all-threads", "100/1h");
  const code = `
    import { parentPort } from "node:worker_threads";
    import { Limiter } from "slidegate";
    const limiter = Limiter.shared("all-threads", "100/1h");
    let allowed = 0;
    for (let i = 0; i < 1000; i++) if (limiter.allows("a")) allowed += 1;
    parentPort.postMessage(allowed);
  `;
  const counts = await Promise.all([inThread(code), inThread(code), inThread(code)]);
  assert.equal(counts.reduce((sum, one) => sum + one, 0), 100);
  assert.equal(limiter.peek("a").used, 100);
  assert.equal(new Limiter("100/1h").peek("a").used, 0);
  assert.equal(Limiter.shared("all-threads", "5/1m").quota, "100/1h");
});

test("names of shared limiters are bounded", async () => {
  const code = `
    import { Limiter } from "slidegate";
    try { for (let i = 0; i < 2000; i++) Limiter.shared("n" + i, "1/1m"); } catch (error) { console.log(error.code, error.message); }
  `;
  assert.match(await inProcess(code), /^invalid_request too many shared limiters: at most 1024/);
});

// A thread that ends must leave the others, and the process, as they were.
test("threads with shared gates come and go", async () => {
  const redis = await startRedis();
  const code = (user) => `
    import { parentPort } from "node:worker_threads";
    import { SharedGate } from "slidegate";
    const gate = new SharedGate("${redis.url}", [{ name: "u", scope: ["user"], quota: "1000/1m" }], { deadlineMs: 5000 });
    const all = await Promise.all(Array.from({ length: 20 }, () => gate.check({ user: "${user}" })));
    parentPort.postMessage(all.filter((one) => one.source === "store").length);
  `;
  for (let round = 0; round < 3; round++) assert.deepEqual(await Promise.all([inThread(code("a")), inThread(code("b"))]), [20, 20]);
  const gate = new SharedGate(redis.url, [{ name: "u", scope: ["user"], quota: "1000/1m" }], { deadlineMs: 5000 });
  assert.equal((await gate.peek({ user: "a" })).used, 60);
});

test("a thread that is terminated with calls in flight does not take the process with it", async () => {
  const redis = await startRedis();
  const code = `
    import { Worker } from "node:worker_threads";
    const code = \`import { SharedGate } from "${INDEX}"; import { parentPort } from "node:worker_threads";
      const gate = new SharedGate("${redis.url}", [{ name: "u", scope: ["user"], quota: "1000/1m" }], { deadlineMs: 5000 });
      await gate.check({ user: "a" });
      for (let i = 0; i < 200; i++) gate.check({ user: "a" + i });
      parentPort.postMessage(1);
      await new Promise(() => setInterval(() => gate.check({ user: "b" }), 1));\`;
    for (let round = 0; round < 5; round++) {
      const worker = new Worker(new URL("data:text/javascript," + encodeURIComponent(code)));
      await new Promise((resolve) => worker.once("message", resolve));
      await worker.terminate();
    }
    console.log("alive");
  `;
  assert.equal(await inProcess(code), "alive");
});

// Nobody would use its turn, and those behind it would wait for nothing.
test("a thread that ends leaves the queues of shared limiters", { timeout: 60_000 }, async () => {
  const limiter = Limiter.shared("left-queues", "1/10m");
  limiter.check("a");
  const code = `
    import { parentPort } from "node:worker_threads";
    import { Limiter } from "slidegate";
    for (let i = 0; i < 3; i++) Limiter.shared("left-queues", "1/10m").acquire("a", { timeoutMs: 3_600_000 });
    parentPort.postMessage("waits");
  `;
  const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(code.replaceAll("slidegate\"", `${INDEX}"`))}`));
  await once(worker, "message");
  const turn = limiter.acquire("a", { timeoutMs: 3_600_000 });
  await worker.terminate();
  limiter.refund("a", 1);
  assert.equal((await turn).allowed, true);
  assert.equal(limiter.peek("a").used, 1);
});

test("a thread that is terminated while calls wait does not take the process with it", async () => {
  const redis = await startRedis();
  const code = `
    import { Worker } from "node:worker_threads";
    const code = \`import { Gate, SharedGate } from "${INDEX}"; import { parentPort } from "node:worker_threads";
      const policies = [{ name: "u", scope: ["user"], quota: "1/10m" }];
      const gates = [new Gate(policies), new SharedGate("${redis.url}", policies, { deadlineMs: 5000 })];
      for (const gate of gates) {
        await gate.acquire({ user: "a" });
        for (let i = 0; i < 200; i++) gate.acquire({ user: "a" }, { timeoutMs: 3_600_000 });
      }
      const limiter = new (await import("${INDEX}")).Limiter("1/1ms");
      parentPort.postMessage(1);
      for (;;) await limiter.acquire("a");\`;
    for (let round = 0; round < 5; round++) {
      const worker = new Worker(new URL("data:text/javascript," + encodeURIComponent(code)));
      await new Promise((resolve) => worker.once("message", resolve));
      await new Promise((resolve) => setTimeout(resolve, 7 * round));
      await worker.terminate();
    }
    console.log("alive");
  `;
  assert.equal(await inProcess(code), "alive");
});

test("a process lives until the turns that it waits for have come, and then ends by itself", async () => {
  const code = `
    import { Limiter } from "slidegate";
    const limiter = new Limiter("1/200ms");
    for (const who of ["a", "b"]) limiter.acquire("key").then(() => console.log(who));
  `;
  assert.equal(await inProcess(code), "a\nb");
});

test("process.exit ends a process whose calls wait", async () => {
  const code = `
    import { Limiter } from "slidegate";
    const limiter = new Limiter("1/10m");
    for (let i = 0; i < 50; i++) limiter.acquire("key", { timeoutMs: 3_600_000 });
    setImmediate(() => process.exit(7));
  `;
  await assert.rejects(inProcess(code), { code: 7 });
});

test("a process that has used everything ends by itself", async () => {
  const redis = await startRedis();
  const code = `
    import { Gate, Limiter, SharedGate } from "slidegate";
    import { Client } from "slidegate/client";
    await new Limiter("1/1m").acquire("a");
    new Gate([{ name: "u", quota: "1/1m" }]).check({});
    await new SharedGate("${redis.url}", [{ name: "u", quota: "1/1m" }]).check({});
    await new Client("http://127.0.0.1:1").check({});
    console.log("done");
  `;
  assert.equal(await inProcess(code), "done");
});

// Each process of a cluster counts alone, unless they share a Redis: the documentation says so, loudly.
test("processes of a cluster count alone with a Limiter and together with a SharedGate", async () => {
  const redis = await startRedis();
  const code = `
    import cluster from "node:cluster";
    import { Limiter, SharedGate } from "slidegate";
    if (cluster.isPrimary) {
      const results = [];
      for (let i = 0; i < 2; i++) cluster.fork();
      cluster.on("message", (_, message) => results.push(message));
      let ended = 0;
      cluster.on("exit", () => { if (++ended === 2) console.log(JSON.stringify({ alone: results.reduce((n, one) => n + one.alone, 0), together: results.reduce((n, one) => n + one.together, 0) })); });
    } else {
      const limiter = new Limiter("10/1h");
      const gate = new SharedGate("${redis.url}", [{ name: "all", quota: "10/1h" }], { deadlineMs: 5000 });
      let alone = 0, together = 0;
      for (let i = 0; i < 20; i++) {
        if (limiter.allows("a")) alone += 1;
        if ((await gate.check({})).allowed) together += 1;
      }
      process.send({ alone, together }, () => process.disconnect());
    }
  `;
  const { writeFileSync, rmSync } = await import("node:fs");
  const file = new URL("cluster-program.mjs", import.meta.url);
  writeFileSync(file, code);
  try {
    const { stdout } = await promisify(execFile)(process.execPath, [fileURLToPath(file)], { cwd: here, timeout: 30_000 });
    assert.deepEqual(JSON.parse(stdout), { alone: 20, together: 10 });
  } finally {
    rmSync(file);
  }
});
