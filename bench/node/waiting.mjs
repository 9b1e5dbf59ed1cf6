// What waiting for a turn costs in Node, and what a limit of 100 per second lets through while many wait.
//
//     npm install && npm install SLIDEGATE-PACKAGES && node waiting.mjs [redis://127.0.0.1:6379]
//
// 100 jobs arrive 0.9 s after the limiter was made, 500 more 0.15 s later: what an aligned window admits at its border.
// `most` is the most that began in any interval of 0.9 s, judged by the times taken when a job begins: a tenth of the window
// is for jobs that begin late after their turn. `early` counts
// jobs that began before one that arrived earlier. With a URL, also over Redis with three processes of 200 jobs each.

import { fork } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";

import Bottleneck from "bottleneck";
import { RateLimiter } from "limiter";
import pThrottle from "p-throttle";
import { Limiter, SharedGate } from "slidegate";

const LIMIT = 100;
const WINDOW_MS = 1000;
const JUDGED_MS = 900;
const WAIT_MS = 60_000;
const now = () => performance.timeOrigin + performance.now();

/** Each gives a function that runs a job in its turn, and perhaps one that ends it. */
const IN_MEMORY = {
  "slidegate, exact window": () => waits(new Limiter(`${LIMIT}/1s`)),
  "slidegate, token bucket": () => waits(new Limiter(`${LIMIT}/1s`, { algorithm: "token-bucket", burst: 1 })),
  "bottleneck, reservoir": () => {
    const limiter = new Bottleneck({
      reservoir: LIMIT,
      reservoirRefreshAmount: LIMIT,
      reservoirRefreshInterval: WINDOW_MS,
    });
    return [(job) => limiter.schedule(job), () => limiter.disconnect(false)];
  },
  "bottleneck, minTime": () => {
    const limiter = new Bottleneck({ minTime: WINDOW_MS / LIMIT });
    return [(job) => limiter.schedule(job)];
  },
  "p-throttle": () => [pThrottle({ limit: LIMIT, interval: WINDOW_MS })((job) => job())],
  "p-throttle, strict": () => [pThrottle({ limit: LIMIT, interval: WINDOW_MS, strict: true })((job) => job())],
  "limiter": () => {
    const limiter = new RateLimiter({ tokensPerInterval: LIMIT, interval: WINDOW_MS });
    return [async (job) => (await limiter.removeTokens(1), job())];
  },
};

const SHARED = {
  "slidegate": (url) => {
    const gate = new SharedGate(url, [{ name: "jobs", quota: `${LIMIT}/1s` }], { deadlineMs: 5000 });
    const turn = gate.wrap((job) => job(), { timeoutMs: WAIT_MS });
    return [turn, () => gate.close?.()];
  },
  "bottleneck": (url) => {
    const limiter = new Bottleneck({
      id: "bench",
      datastore: "ioredis",
      clearDatastore: false,
      clientOptions: { host: new URL(url).hostname, port: Number(new URL(url).port) },
      reservoir: LIMIT,
      reservoirRefreshAmount: LIMIT,
      reservoirRefreshInterval: WINDOW_MS,
    });
    return [(job) => limiter.schedule(job), () => limiter.disconnect(false)];
  },
};

function waits(limiter) {
  return [limiter.wrap((job) => job(), { timeoutMs: WAIT_MS })];
}

/** Runs these jobs, `[when, count]`, and returns when each began. */
async function run([turn, end], arrivals) {
  const began = [];
  const jobs = [];
  let number = 0;
  const start = performance.now();
  for (const [at, count] of arrivals) {
    await sleep(Math.max(0, at - (performance.now() - start)));
    for (let i = 0; i < count; i++) {
      const own = number++;
      jobs.push(turn(async () => void began.push([now(), own])));
    }
  }
  await Promise.all(jobs);
  await end?.();
  return began;
}

function judge(times) {
  times.sort((a, b) => a - b);
  let most = 0;
  for (let first = 0, last = 0; last < times.length; last++) {
    while (times[last] - times[first] >= JUDGED_MS) first++;
    most = Math.max(most, last - first + 1);
  }
  return { most, took: times.at(-1) - times[0] };
}

async function inMemory() {
  console.log("| in memory | most in 0.9 s | from the first to the last, s | early | CPU us per turn |\n|---|--:|--:|--:|--:|");
  for (const [name, make] of Object.entries(IN_MEMORY)) {
    const before = process.cpuUsage();
    const began = await run(make(), [[900, 100], [1050, 500]]);
    const { user, system } = process.cpuUsage(before);
    let last = -1;
    const early = began.filter(([, own]) => own < last || (last = own, false)).length;
    const { most, took } = judge(began.map(([at]) => at));
    console.log(`| ${name} | ${most} | ${(took / 1000).toFixed(2)} | ${early} | ${Math.round((user + system) / began.length)} |`);
  }
}

/** Three processes, each of which reports when its jobs began. */
async function shared(url) {
  console.log("\n| three processes over Redis | most in 0.9 s | from the first to the last, s | CPU us per turn | last turn of each process, s |\n|---|--:|--:|--:|---|");
  for (const name of Object.keys(SHARED)) {
    const reports = await Promise.all([0, 1, 2].map(() => new Promise((done, failed) => {
      const child = fork(process.argv[1], [url, name]);
      child.once("message", done);
      child.once("exit", (code) => code && failed(new Error(`${name} ended with ${code}`)));
    })));
    const times = reports.flatMap((report) => report.times);
    const first = Math.min(...times);
    const lasts = reports.map((report) => ((Math.max(...report.times) - first) / 1000).toFixed(2));
    const cpu = reports.reduce((sum, report) => sum + report.cpuUs, 0) / times.length;
    const { most, took } = judge(times);
    console.log(`| ${name} | ${most} | ${(took / 1000).toFixed(2)} | ${Math.round(cpu)} | ${lasts.join(", ")} |`);
  }
}

const [url, name] = process.argv.slice(2);
if (name) {
  const limiter = SHARED[name](url);
  const before = process.cpuUsage();
  const began = await run(limiter, [[900, 200]]);
  const { user, system } = process.cpuUsage(before);
  process.send({ times: began.map(([at]) => at), cpuUs: user + system }, () => process.exit(0));
} else {
  await inMemory();
  if (url) await shared(url);
}
