// One proxy for all workers of a test run: found at LLMPROXY_URL, or started by the first worker that needs it.
//
// Workers of vitest, Jest and node:test come and go; what they share is the process that made them. The first one to create the
// file of that process starts keeper.js, which starts the proxy, writes its address into the file, and ends it with the run.
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { isMainThread } from "node:worker_threads";

const PATIENCE = 120_000;
const DOWNLOAD_PATIENCE = 300_000;
const OK = [200, 201];
const PAUSE = 25;
/** What is a worker of runners that load tests in their own process as well, which somebody may have forked. */
const PROGRAMS = { jest: /jest-worker/, playwright: /playwright[\\/]lib[\\/]/ };

/** The process whose end is the end of the run: the parent of a worker process, else this one. */
export function owner(runner) {
  const worker = runner === "node-test" ? process.env.NODE_TEST_CONTEXT?.startsWith("child") : (PROGRAMS[runner] ?? /./).test(process.argv[1]);
  return worker && isMainThread && (runner === "node-test" || process.send) ? process.ppid : process.pid;
}

export function runs(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === "EPERM";
  }
}

/** Files of the run that this process owns. */
export function files(pid, root = process.cwd()) {
  const user = typeof process.getuid === "function" ? process.getuid() : "";
  const folder = path.join(os.tmpdir(), `llmproxy-node-${user}`);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  if (user !== "" && statSync(folder).uid !== user) throw new Error(`llmproxy: ${folder} belongs to somebody else; set TMPDIR.`);
  const name = `${createHash("sha256").update(root).digest("hex").slice(0, 8)}-${pid}`;
  const at = (ending) => path.join(folder, `${name}.${ending}`);
  return { lock: at("lock"), state: at("json"), sums: at("jsonl"), log: at("log") };
}

/** Start the keeper, unless another worker does; `killed` is one that was ended before it could take its files away. */
function keep(at, given, killed) {
  try {
    closeSync(openSync(killed ? `${at.lock}.${killed}` : at.lock, "wx"));
  } catch (error) {
    if (error.code !== "EEXIST") throw error;
    return;
  }
  for (const each of [at.state, at.log]) rmSync(each, { force: true });
  const keeper = [fileURLToPath(new URL("./keeper.js", import.meta.url)), JSON.stringify({ ...given, at })];
  const child = spawn(process.execPath, keeper, { detached: true, stdio: "ignore", cwd: process.cwd() });
  child.unref();
  writeFileSync(at.lock, String(child.pid ?? ""));
}

/** Return {url, variables} of the proxy of the run of these files; starts it where nobody did. `live` permits modes that reach the network. */
export function findProxy(at, given) {
  const begun = Date.now();
  for (;;) {
    const keeper = readState(at.lock); // its process
    const state = keeper && runs(keeper) ? readState(at.state) : undefined;
    if (!existsSync(at.lock) || (keeper && !runs(keeper))) keep(at, given, keeper);
    if (state?.url) return state;
    if (state?.error) throw new Error(state.error);
    const patience = state?.downloads ? DOWNLOAD_PATIENCE : PATIENCE;
    if (Date.now() - begun > patience) {
      rmSync(at.lock, { force: true }); // the next run tries again
      throw new Error(`llmproxy: the proxy does not serve after ${patience / 1000} s; ${at.log} has what it said.`);
    }
    // Without a turn of the loop: modules that are loaded next read what is set then.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PAUSE);
  }
}

export function readState(file) {
  try {
    return JSON.parse(readFileSync(file, "utf8"));
  } catch {
    return undefined; // not there yet
  }
}

/** The control API of the proxy at `url` (docs/replay.md): ask("POST", "sessions", {name}) returns what it answers. */
export function control(url, token = process.env.LLMPROXY_TOKEN) {
  return (method, what, body) =>
    new Promise((resolve, reject) => {
      const text = body === undefined ? undefined : JSON.stringify(body);
      const headers = { "content-type": "application/json", ...(token && { "x-llmproxy-token": token }) };
      if (text !== undefined) headers["content-length"] = Buffer.byteLength(text);
      const request = http.request(new URL(`/_llmproxy/${what}`, url), { method, headers, agent: false });
      const unanswered = (error) => Object.assign(new Error(`llmproxy: no proxy answers at ${url}: ${error.message}`), { unanswered: true });
      request.on("error", (error) => reject(unanswered(error)));
      request.on("response", async (response) => {
        try {
          let said = "";
          for await (const piece of response.setEncoding("utf8")) said += piece;
          const value = JSON.parse(said);
          if (OK.includes(response.statusCode)) return resolve(value);
          const { message = said, hint } = value.error ?? {};
          const told = [`llmproxy: ${String(message).replace(/^llmproxy: /, "")}`, hint].filter(Boolean).join("\n");
          reject(Object.assign(new Error(told), { status: response.statusCode }));
        } catch (error) {
          reject(new Error(`llmproxy: what answers at ${url} is not llmproxy (${error.message}).`));
        }
      });
      request.end(text);
    });
}
