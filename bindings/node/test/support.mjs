// Starts what the tests need, on free loopback ports, and stops only that.

import { spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const SERVICE = process.env.SLIDEGATE_BIN ?? fileURLToPath(new URL("../../../target/debug/slidegate", import.meta.url));

let own;
let step = 0;

/**
 * Below the range of ephemeral ports: a connection could be given one of those before the server binds it. Of a block
 * that no other test finds free meanwhile: see crates/slidegate-testkit/src/ports.rs.
 */
export async function freePort() {
  for (let first = 16_384; own === undefined && first < 32_768; first += 256) {
    const socket = createSocket("udp4").bind(first, "127.0.0.1");
    try {
      await once(socket, "listening");
      socket.unref();
      own ??= first;
    } catch {
      socket.close();
    }
  }
  for (let tries = 0; own !== undefined && tries < 256; tries++) {
    const port = own + (step++ % 256);
    const server = createServer().listen(port, "127.0.0.1");
    try {
      await once(server, "listening");
    } catch {
      continue;
    }
    server.close();
    await once(server, "close");
    return port;
  }
  throw new Error("no port of 127.0.0.1 from 16384 to 32767 is free");
}

/** A folder that is removed after the tests. */
export function folder() {
  const path = mkdtempSync(join(tmpdir(), "slidegate-node-"));
  after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** The service with a configuration in YAML. */
export async function startService(yaml, { port } = {}) {
  const address = `127.0.0.1:${port ?? (await freePort())}`;
  const config = join(folder(), "slidegate.yaml");
  writeFileSync(config, `server: { listen: "${address}" }\n${yaml}`);
  const child = run(SERVICE, ["serve", "--config", config]);
  const url = `http://${address}`;
  await until(async () => (await fetch(`${url}/healthz`)).ok, child);
  return { url, address, stop: child.stop, child };
}

export async function startRedis({ port } = {}) {
  const at = port ?? (await freePort());
  const child = run("redis-server", ["--port", String(at), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder()]);
  await until(() => ping(at), child);
  const { pid } = child.process;
  const stat = (thread) => readFileSync(`/proc/${pid}/task/${thread}/stat`, "utf8");
  const pause = async () => {
    child.process.kill("SIGSTOP");
    // On a busy machine it goes on until it has run with the signal.
    await until(async () => readdirSync(`/proc/${pid}/task`).every((thread) => stat(thread).includes(") T ")), child);
  };
  const resume = () => child.process.kill("SIGCONT");
  return { url: `redis://127.0.0.1:${at}`, port: at, stop: child.stop, pause, resume };
}

async function ping(port) {
  const { connect } = await import("node:net");
  const socket = connect(port, "127.0.0.1");
  try {
    await once(socket, "connect");
    socket.write("PING\r\n");
    const [reply] = await once(socket, "data");
    return String(reply).startsWith("+PONG");
  } finally {
    socket.destroy();
  }
}

/** A child process whose output is shown if it does not start. */
function run(command, args) {
  const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"] });
  const output = [];
  child.stdout.on("data", (text) => output.push(text));
  child.stderr.on("data", (text) => output.push(text));
  const ended = new Promise((resolve) => {
    child.once("exit", resolve);
    child.once("error", (error) => resolve(output.push(String(error))));
  });
  const stop = async () => {
    child.kill("SIGCONT");
    child.kill("SIGKILL");
    await ended;
  };
  after(stop);
  return { process: child, stop, output: () => `${command}: ${output.join("")}`, hasEnded: () => child.exitCode !== null };
}

async function until(isReady, child) {
  for (let attempt = 0; attempt < 400; attempt++) {
    if (child.hasEnded()) break;
    if (await Promise.resolve(isReady()).catch(() => false)) return;
    await sleep(25);
  }
  throw new Error(`did not start: ${child.output()}`);
}

/** A listening `http` server for an application; resolves with its URL. */
export async function listen(server, host = "127.0.0.1") {
  server.listen(0, host);
  await once(server, "listening");
  after(() => {
    server.closeAllConnections?.();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}
