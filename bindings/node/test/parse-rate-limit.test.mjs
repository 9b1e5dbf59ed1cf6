import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { parseRateLimit, waitMs } from "slidegate";

test("reads items, policies and Retry-After", () => {
  const headers = {
    "ratelimit-policy": '"burst";q=100;w=60, "daily";q=1000;w=86400;qu="content-bytes";pk=:cHJv:',
    ratelimit: '"burst";r=0;t=30, "daily";r=7;other=(',
  };
  assert.deepEqual(parseRateLimit({ ...headers, ratelimit: '"burst";r=0;t=30, "daily";r=7;x=tok;y' }), {
    items: [
      { name: "burst", remaining: 0, resetMs: 30_000, partitionKey: null },
      { name: "daily", remaining: 7, resetMs: null, partitionKey: null },
    ],
    policies: [
      { name: "burst", quota: 100, unit: null, windowMs: 60_000, partitionKey: null },
      { name: "daily", quota: 1000, unit: "content-bytes", windowMs: 86_400_000, partitionKey: new Uint8Array(Buffer.from("pro")) },
    ],
    retryAfterMs: null,
    malformed: [],
  });
  // A malformed field is ignored as a whole; the others are not.
  const { items, policies, malformed } = parseRateLimit(headers);
  assert.deepEqual([items.length, policies.length, malformed.map((one) => one.field)], [0, 2, ["ratelimit"]]);
});

test("says how long to wait", () => {
  const wait = (headers) => waitMs(parseRateLimit(headers));
  assert.equal(wait({ ratelimit: '"a";r=0;t=30, "b";r=0;t=40, "c";r=1;t=50' }), 40_000);
  assert.equal(wait({ ratelimit: '"a";r=0;t=30', "retry-after": "5" }), 5000);
  assert.equal(wait({ ratelimit: '"a";r=1;t=30' }), 0);
  assert.equal(wait({}), 0);
  assert.equal(wait({ "retry-after": "Wed, 25 Nov 2026 04:31:23 GMT", date: "Wed, 25 Nov 2026 04:31:13 GMT" }), 10_000);
});

test("headers may be a Headers, those of Node, or pairs", () => {
  for (const headers of [new Headers({ RateLimit: '"a";r=1' }), { RateLimit: '"a";r=1' }, [["RateLimit", '"a";r=1']], new Map([["ratelimit", '"a";r=1']])]) {
    assert.equal(parseRateLimit(headers).items[0].remaining, 1);
  }
  assert.equal(parseRateLimit([["ratelimit", '"a";r=1'], ["RateLimit", '"b";r=2']]).items.length, 2);
});

test("what is not of the draft is malformed", () => {
  for (const text of ['a;r=1', '"a"', '"a";r', '"a";r=-1', '"a";r=1.0', '"a";r="1"', '"a";r=1;t=-1', '"a";r=1,', ',', '"a";r=1 "b";r=1', '"a;r=1', '"a\\b";r=1', '"ä";r=1', '"a";R=1', '"a";r=1;pk="x"', '"a";r=1;pk=:a:', '"a";r=1;x=?2', '"a";r=1;x=@1.5', '"a";r=1;x=%"%zz"', '"a";r=1;x=1.2345', '"a";r=1234567890123456', `"${"a".repeat(17_000)}";r=1`, '("a");r=1', '"a";r=1;x=%"%ff"']) {
    const { items, malformed } = parseRateLimit({ ratelimit: text });
    assert.deepEqual([items, malformed.length], [[], 1], text.slice(0, 40));
  }
  for (const text of ["", "x", "-1", "1.5", "2026-11-25", "1, 2", "Wed, 25 Nov 2026", "Xyz, 25 Nov 2026 04:31:23 GMT"]) {
    assert.equal(parseRateLimit({ "retry-after": text }).malformed.length, 1, text);
  }
  assert.equal(parseRateLimit([["retry-after", "1"], ["retry-after", "1"]]).malformed.length, 1);
  assert.equal(parseRateLimit({ "ratelimit-policy": '"a";q=1;w=0' }).malformed.length, 1);
});

// A server that is asked must not be able to keep its client busy.
test("long fields take little time", () => {
  const start = process.cpuUsage();
  for (const text of ['"a";r=1, '.repeat(1800), `"${"\\\\".repeat(8000)}`, `"a"${";x".repeat(8000)}`, `"a";r=1;pk=:${"A".repeat(16_000)}`, " ".repeat(16_000), `"a";x=%"${"%c3".repeat(5000)}"`]) {
    parseRateLimit({ ratelimit: text, "ratelimit-policy": text, "retry-after": text });
  }
  const { user, system } = process.cpuUsage(start);
  assert.ok(user + system < 1e6, `${user + system} us of CPU time`);
});

// All clients of the repository pass these.
test("agrees with the vectors that all clients share", () => {
  const file = process.env.RATELIMIT_VECTORS ?? new URL("../../../clients/ratelimit-fields.json", import.meta.url);
  const { vectors } = JSON.parse(readFileSync(file, "utf8"));
  assert.ok(vectors.length > 20);
  const ms = (seconds) => (seconds === null ? null : Math.min(1000 * seconds, Number.MAX_SAFE_INTEGER));
  const bytes = (text) => (text === null ? null : new Uint8Array(Buffer.from(text, "base64")));
  for (const vector of vectors) {
    const parsed = parseRateLimit(vector.fields);
    const expected = {
      items: vector.items.map(({ name, remaining, reset_s, partition_key }) => ({ name, remaining, resetMs: ms(reset_s), partitionKey: bytes(partition_key) })),
      policies: vector.policies.map(({ name, quota, window_s, unit, partition_key }) => ({ name, quota, unit: unit || null, windowMs: ms(window_s), partitionKey: bytes(partition_key) })),
      retryAfterMs: ms(vector.retry_after_s),
    };
    const { malformed, ...values } = parsed;
    assert.deepEqual(values, expected, vector.name);
    assert.deepEqual(malformed.map((one) => one.field).sort(), vector.invalid.map((name) => name.toLowerCase()).sort(), vector.name);
    assert.equal(waitMs(parsed), ms(vector.wait_s), vector.name);
  }
});
