import assert from "node:assert/strict";
import { test } from "node:test";

import { Client as McpClient } from "@modelcontextprotocol/sdk/client/index.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { z } from "zod";

import { Gate, Limiter } from "slidegate";
import { Client } from "slidegate/client";
import { limitTool } from "slidegate/mcp";

/** A server with one tool, and a client that is connected to it. */
async function connected(options, config = { inputSchema: { text: z.string() } }) {
  const server = new McpServer({ name: "test", version: "1.0.0" });
  server.registerTool("echo", config, limitTool(async () => ({ content: [{ type: "text", text: "done" }] }), options));
  const client = new McpClient({ name: "test", version: "1.0.0" });
  const [one, two] = InMemoryTransport.createLinkedPair();
  await Promise.all([server.connect(one), client.connect(two)]);
  return (args = { text: "x" }) => client.callTool({ name: "echo", arguments: args });
}

// A model that gets no wait asks again at once.
test("a denied call is a tool error that says how long to wait", async () => {
  const call = await connected({ limit: "2/1m" });
  for (let i = 0; i < 2; i++) assert.equal((await call()).content[0].text, "done");
  const denied = await call();
  assert.equal(denied.isError, true);
  assert.match(denied.content[0].text, /^Rate limit exceeded\. Wait (59|60) seconds before calling this tool again\.$/);
});

test("keys and costs come from the call, with and without arguments", async () => {
  const limiter = new Limiter("10/1m");
  const call = await connected({ limiter, key: ({ text }) => text, cost: ({ text }) => text.length });
  assert.notEqual((await call({ text: "abcdef" })).isError, true);
  assert.equal((await call({ text: "abcdef" })).isError, true);
  assert.match((await call({ text: "abcdefghijk" })).content[0].text, /costs more than the limit allows/);
  const plain = await connected({ limit: "1/1m" }, { description: "no arguments" });
  assert.notEqual((await plain()).isError, true);
  assert.equal((await plain()).isError, true);
});

test("a call waits for its turn, or is denied at once if none comes in time", async () => {
  const limiter = new Limiter("1/10m");
  const call = await connected({ limiter, key: () => "a", waitMs: 3_600_000 });
  assert.notEqual((await call()).isError, true);
  const waiting = call();
  await new Promise((resolve) => setTimeout(resolve, 50));
  limiter.refund("a");
  assert.notEqual((await waiting).isError, true);
  const brief = await connected({ limiter, key: () => "a", waitMs: 1000 });
  assert.equal((await brief()).isError, true);
});

test("a gate decides by attributes, and an outage by the client's options", async () => {
  const gate = new Gate([{ name: "tools", scope: ["user"], quota: "1/1m" }]);
  const call = await connected({ limiter: gate, attributes: ({ text }) => ({ user: text }) });
  assert.notEqual((await call()).isError, true);
  assert.equal((await call()).isError, true);
  const errors = [];
  const closed = await connected({ limiter: new Client("http://127.0.0.1:1", { onFailure: "deny", timeoutMs: 1000 }), onError: (error) => errors.push(error.code) });
  assert.match((await closed()).content[0].text, /cannot be checked/);
  assert.deepEqual(errors, ["unavailable"]);
});
