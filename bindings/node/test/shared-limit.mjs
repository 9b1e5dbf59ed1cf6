// One of the programs of common/tests/shared_limit.rs: asks for SECONDS, and prints when what was allowed was asked and
// answered, in microseconds since 1970.
//
//     node shared-limit.mjs URL POLICIES SECONDS

import { SharedGate } from "slidegate";

const [url, policies, seconds] = process.argv.slice(2);
const gate = new SharedGate(url, policies, { deadlineMs: 5000 });
const nowUs = () => Math.round((performance.timeOrigin + performance.now()) * 1000);
const until = nowUs() + Number(seconds) * 1e6;
const lines = [];

async function ask() {
  for (let asked = nowUs(); asked < until; asked = nowUs()) {
    const { allowed, error } = await gate.check({ user: "alice" });
    if (error !== null) throw error;
    if (allowed) lines.push(`${asked} ${nowUs()}`);
  }
}

await Promise.all(Array.from({ length: 8 }, ask));
console.log(lines.join("\n"));
process.exit();
