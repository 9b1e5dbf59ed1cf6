// One request to the service: bounded in time and size, kept alive, never redirected.

import http from "node:http";
import https from "node:https";

import { SlidegateError, invalidRequest, shown } from "./errors.js";

// The bounds of the service.
const MAX_REQUEST = 64 << 10;
const MAX_BATCH_REQUEST = 256 << 10;
const MAX_RESPONSE = 1 << 20;
const MAX_BATCH_RESPONSE = 16 << 20;
const MAX_HEADER = 64 << 10;
// The service closes idle connections after 75 s. Idle ones do not keep a process alive.
const IDLE_TIMEOUT_MS = 30_000;

export class HttpCaller {
  #module;
  #agent;
  /** Of calls that wait: they would keep the others from their connections. */
  #waitAgent;
  #target;
  #basePath;
  #headers;
  #timeoutMs;

  constructor(url, { token, timeoutMs, maxConnections, maxWaiting, tls }) {
    const base = parseBase(url);
    const isTls = base.protocol === "https:";
    this.#module = isTls ? https : http;
    const agent = (maxSockets) => new this.#module.Agent({ ...tls, keepAlive: true, maxSockets, timeout: IDLE_TIMEOUT_MS });
    this.#agent = agent(maxConnections);
    this.#waitAgent = agent(maxWaiting);
    if (base.protocol === "unix:") {
      this.#target = { socketPath: decodeURIComponent(base.pathname), host: "localhost" };
      this.#basePath = "";
    } else {
      this.#target = { host: base.hostname.replace(/^\[|\]$/g, ""), port: base.port || (isTls ? 443 : 80) };
      this.#basePath = base.pathname.replace(/\/+$/, "");
    }
    this.#headers = { "content-type": "application/json", "user-agent": "slidegate-node" };
    if (token !== undefined) {
      this.#headers.authorization = `Bearer ${token}`;
      try {
        http.validateHeaderValue("authorization", this.#headers.authorization);
      } catch {
        throw new SlidegateError("invalid_options", "invalid token: has characters that no header can carry");
      }
    }
    this.#timeoutMs = timeoutMs;
  }

  /**
   * Resolves with status, header fields and parsed body; `body` is undefined if it is not JSON. The service may wait for
   * `waitMs` before it answers, unless `signal` ends the call.
   */
  call({ method = "POST", path, body, idempotencyKey, isBatch = false, waitMs, signal }) {
    const text = body === undefined ? "" : JSON.stringify(body);
    const length = Buffer.byteLength(text);
    const mostSent = isBatch ? MAX_BATCH_REQUEST : MAX_REQUEST;
    if (length > mostSent) {
      // The service would close the connection, which looks like an outage.
      return Promise.reject(invalidRequest(`invalid request: its body has ${length} bytes; give at most ${mostSent}`, "attributes"));
    }
    const headers = { ...this.#headers, "content-length": length };
    if (idempotencyKey !== undefined) headers["idempotency-key"] = idempotencyKey;
    if (waitMs !== undefined) headers.prefer = `wait=${Math.ceil(waitMs / 1000)}`;
    const options = { ...this.#target, agent: waitMs === undefined ? this.#agent : this.#waitAgent, method, path: this.#basePath + path, headers, maxHeaderSize: MAX_HEADER };
    return this.#send(options, text, { mostRead: isBatch ? MAX_BATCH_RESPONSE : MAX_RESPONSE, timeoutMs: this.#timeoutMs + (waitMs ?? 0), signal });
  }

  #send(options, text, { mostRead, timeoutMs, signal }) {
    return new Promise((resolve, reject) => {
      const request = this.#module.request(options);
      const abort = () => fail(signal.reason);
      signal?.addEventListener("abort", abort, { once: true });
      const end = (settle, value) => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
        settle(value);
      };
      const fail = (error) => {
        end(reject, error);
        request.destroy();
      };
      const timer = setTimeout(() => {
        fail(new SlidegateError("timeout", `no answer from the service within ${timeoutMs} ms`));
      }, timeoutMs);
      const broken = (cause) => fail(new SlidegateError("unavailable", `the service cannot be reached: ${cause.message}`, { cause }));
      request.on("error", broken);
      request.on("response", (response) => {
        const chunks = [];
        let length = 0;
        response.on("error", broken);
        response.on("data", (chunk) => {
          length += chunk.length;
          if (length > mostRead) return fail(invalidResponse(response.statusCode, `the body has more than ${mostRead} bytes`));
          chunks.push(chunk);
        });
        response.on("end", () => {
          const body = parseJson(Buffer.concat(chunks).toString());
          end(resolve, { status: response.statusCode, headers: response.headers, body });
        });
      });
      request.end(text);
    });
  }

  /** Closes idle connections. */
  close() {
    this.#agent.destroy();
    this.#waitAgent.destroy();
  }
}

export function invalidResponse(status, detail) {
  return new SlidegateError("invalid_response", `not a response of slidegate: ${detail}`, { status });
}

function parseBase(text) {
  let base;
  try {
    base = new URL(text);
  } catch {
    base = null;
  }
  const isSocket = base?.protocol === "unix:" && base.host === "" && base.pathname.length > 1;
  const isHttp = base?.protocol === "http:" || base?.protocol === "https:";
  if (!(isSocket || isHttp) || base.username || base.password || base.search || base.hash) {
    const given = base?.password || base?.username ? "with a user name" : shown(text);
    const message = `invalid URL ${given}: must be like http://127.0.0.1:7979, https://host/prefix or unix:///path/to/socket; give tokens in \`token\``;
    throw new SlidegateError("invalid_options", message);
  }
  return base;
}

function parseJson(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" ? value : undefined;
  } catch {
    return undefined;
  }
}
