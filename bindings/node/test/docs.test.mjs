// The programs of docs/node.md and README.md, run as they are written, and the example application.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { freePort, startRedis, startService } from "./support.mjs";

const beside = new URL("node.md", import.meta.url);
const page = existsSync(beside) ? beside : new URL("../../../docs/node.md", import.meta.url);
const pages = [page, new URL("../../../README.md", import.meta.url)].map((page) => readFileSync(page, "utf8"));
const programs = [...pages.join("\n").matchAll(/^```js\n(.*?)^```$/gms)].map(([, program]) => program);
const policies = "policies: [{name: per-user, scope: [user], quota: 100/1m}]";

let redis, service;
before(async () => {
  redis = await startRedis();
  service = await startService(policies);
});
after(() => Promise.all([redis, service].map((server) => server?.stop())));

/** Starts a program. */
function run(file, environment = {}) {
  const child = spawn(process.execPath, [fileURLToPath(file)], { env: { ...process.env, ...environment } });
  let output = "", errors = "";
  child.stdout.on("data", (text) => (output += text));
  child.stderr.on("data", (text) => (errors += text));
  return { child, closed: once(child, "close"), output: () => output, errors: () => errors };
}

test("the page has its programs", () => assert.ok(programs.length >= 8, `${programs.length}`));

for (const [number, program] of programs.entries()) {
  test(`program ${number} of the page runs`, async () => {
    const file = new URL(`program-${number}.mjs`, import.meta.url);
    const port = await freePort();
    const source = program
      .replaceAll("redis://127.0.0.1:6379", redis.url)
      .replaceAll("http://127.0.0.1:7979", service.url)
      .replaceAll("listen(3000", `listen(${port}`);
    const isServer = source.includes("listen(");
    writeFileSync(file, isServer ? `${source}\nconsole.log("reached the end");\n` : source);
    try {
      const { child, closed, output, errors } = run(file);
      if (isServer) {
        for (let i = 0; i < 200 && !output().includes("reached the end") && child.exitCode === null; i++) await sleep(50);
        await sleep(200); // an error of listening comes later
        assert.equal(child.exitCode, null, errors());
        assert.match(output(), /reached the end/);
        if (source.includes('"2/1m"')) {
          const statuses = [];
          for (let i = 0; i < 3; i++) statuses.push((await fetch(`http://127.0.0.1:${port}`)).status);
          assert.deepEqual(statuses, [200, 200, 429]);
        }
        child.kill();
      }
      await closed;
      if (!isServer) assert.equal(child.exitCode, 0, errors());
      assert.equal(errors(), "");
      for (const [, printed] of program.matchAll(/console\.log\(.*\);? \/\/ (\S+)$/gm)) {
        assert.ok(output().split(/\s+/).includes(printed), `${printed} is not in ${output()}`);
      }
    } finally {
      rmSync(file);
    }
  });
}

for (const store of ["memory", "redis"]) {
  test(`the example serves with ${store}`, async () => {
    const example = new URL("example/app.mjs", import.meta.url);
    const source = readFileSync(existsSync(example) ? example : new URL("../example/app.mjs", import.meta.url), "utf8");
    const file = new URL(`example-${store}.mjs`, import.meta.url);
    // A slow machine must not make it fail.
    writeFileSync(file, source.replace("(REDIS_URL, POLICIES)", "(REDIS_URL, POLICIES, { deadlineMs: 5000 })"));
    const { child, closed, output, errors } = run(file, { PORT: "0", REDIS_URL: store === "redis" ? redis.url : "" });
    try {
      for (let i = 0; i < 200 && !output().includes("http://") && child.exitCode === null; i++) await sleep(50);
      const base = output().match(/http:\S+/)?.[0];
      assert.ok(base, errors());
      const get = (path) => fetch(base + path, { headers: { "x-user": `alice-${store}` } });
      assert.equal(await (await get("/healthz")).text(), "ok");
      assert.equal(await (await get("/chat?words=7")).text(), "word ".repeat(7));
      let usage;
      // It is settled after the last byte was sent.
      for (let i = 0; i < 100 && usage?.tokens.used !== 17; i++) usage = await (await get("/usage")).json();
      assert.deepEqual([usage.tokens, usage.streams.held], [{ used: 17, held: 0 }, 0]);
      const statuses = [];
      for (let i = 0; i < 20; i++) statuses.push((await get("/chat?words=1")).status);
      assert.deepEqual([statuses.at(0), statuses.at(-1)], [200, 429]);
      const denied = await get("/chat");
      assert.equal((await denied.json()).status, 429);
      assert.ok(Number(denied.headers.get("retry-after")) > 0);
    } finally {
      child.kill();
      await closed;
      rmSync(file);
    }
  });
}
