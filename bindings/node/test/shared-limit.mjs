// One of the programs of common/tests/shared_limit.rs: asks for SECONDS, and prints when what was allowed was asked and
// answered, in microseconds since 1970.
//
//     node shared-limit.mjs URL POLICIES SECONDS

import { SharedGate } from "slidegate";

const [url, policies, seconds] = process.argv.slice(2);
const gate = new SharedGate(url, policies, { deadlineMs: 5000 });
// `Date.now()` has whole milliseconds: the time is between these two. `performance.timeOrigin` plus `performance.now()`
// has more digits, but was off by milliseconds on a busy machine, where the two begin at different moments.
const notBeforeUs = () => Date.now() * 1000;
const notAfterUs = () => (Date.now() + 1) * 1000;
const until = notBeforeUs() + Number(seconds) * 1e6;
const lines = [];

async function ask() {
  for (let asked = notBeforeUs(); asked < until; asked = notBeforeUs()) {
    const { allowed, error } = await gate.check({ user: "alice" });
    if (error !== null) throw error;
    if (allowed) lines.push(`${asked} ${notAfterUs()}`);
  }
}

await Promise.all(Array.from({ length: 8 }, ask));
console.log(lines.join("\n"));
process.exit();
