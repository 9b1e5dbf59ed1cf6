// The native part, loaded when it is first needed: what is pure JavaScript works without it.

import { createRequire } from "node:module";

import { SlidegateError } from "./errors.js";

const require = createRequire(import.meta.url);
let loaded;

export function native() {
  loaded ??= load();
  return loaded;
}

function load() {
  const platform = platformName();
  const candidates = [`slidegate-${platform}`, `../slidegate.${platform}.node`];
  const causes = [];
  for (const candidate of candidates) {
    try {
      return require(candidate);
    } catch (cause) {
      causes.push(cause);
    }
  }
  const message =
    `the native part of slidegate for ${platform} is not installed (${causes.map((cause) => cause.message.split("\n")[0]).join("; ")}); ` +
    "install without `--omit=optional`, or use `slidegate/client`, which needs none";
  throw new SlidegateError("unsupported", message, { cause: causes[0] });
}

function platformName() {
  const name = `${process.platform}-${process.arch}`;
  return process.platform === "linux" ? `${name}-${isMusl() ? "musl" : "gnu"}` : name;
}

/** The report of a process on glibc names its version. */
function isMusl() {
  return process.report.getReport().header.glibcVersionRuntime === undefined;
}

/** The reply of the native part, which is JSON. */
export function read(json) {
  const reply = JSON.parse(json);
  if (reply.error !== undefined) throw new SlidegateError(reply.error.code, reply.error.message);
  return reply;
}

/** Runs a native call that may throw: its errors have a code and a message. */
export function calling(call) {
  try {
    return call();
  } catch (error) {
    if (error instanceof SlidegateError) throw error;
    throw new SlidegateError(error.code === "GenericFailure" ? "internal" : (error.code ?? "internal"), error.message);
  }
}
