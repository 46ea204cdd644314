// Keeps the proxy of one test run: starts it, says where it serves, and ends it when the run has ended, however it ended.
// Called by proxy.js with JSON: {owner, live, cassetteDir, typed, at: {lock, state, sums, log}}.
import { spawn, spawnSync } from "node:child_process";
import { openSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { findCommand } from "./command.js";
import { runs } from "./proxy.js";

const { owner, live, cassetteDir, typed, at } = JSON.parse(process.argv[2]);
const PAUSE = 25;
const WATCH = 250;
const ENDING = 15_000;
const [SAID, ENDED] = [40, 5]; // lines of what the proxy said: to its start, to its end
const ANNOUNCED = '{"serves": '; // how `llmproxy start --announce` says where it serves
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Write what the workers read, at once. */
function tell(state) {
  writeFileSync(`${at.state}.part`, JSON.stringify(state), { mode: 0o600 });
  renameSync(`${at.state}.part`, at.state);
}

/** Start the proxy; returns its process, and its address once it serves, unless the run ends before. */
async function start(command) {
  const options = ["start", "--announce", "--mode", "replay", "--host", "127.0.0.1", "--port", "0"];
  if (live) options.push("--allow-live");
  if (cassetteDir) options.push("--cassette-dir", cassetteDir);
  const log = openSync(at.log, "w", 0o600);
  const env = { ...process.env, LLMPROXY_STARTED_BY: `LLMPROXY_MODE={mode} ${typed}` };
  const child = spawn(command[0], [...command.slice(1), ...options], { stdio: ["ignore", log, log], env });
  if (process.platform !== "win32" && child.pid) guard(child.pid);
  child.ended = new Promise((done) => child.once("exit", done).once("error", done));
  const over = () => child.pid === undefined || child.exitCode !== null || child.signalCode !== null;
  while (!over() && runs(owner)) {
    const line = lines().find((each) => each.startsWith(ANNOUNCED) && each.endsWith("}"));
    if (line) return { child, url: JSON.parse(line).serves };
    await sleep(PAUSE);
  }
  if (!over()) return { child };
  throw new Error(`llmproxy: the proxy does not start; it was called as \`${command.join(" ")} start\`, and said:\n${said()}`);
}

/** Let a shell end the proxy when our end of its pipe closes: we may be killed. */
function guard(pid) {
  spawn("sh", ["-c", `read _; kill -TERM ${pid}`], { stdio: ["pipe", "ignore", "ignore"], detached: true }).once("error", () => {});
}

function lines() {
  return readFileSync(at.log, "utf8").split("\n");
}

/** The end of what it said, to people. */
function said(count = SAID) {
  return lines().filter((each) => each.trim() && !each.startsWith(ANNOUNCED)).slice(-count).join("\n");
}

/** The variables that send SDKs to the session that this name stands for. */
function variables(command, url) {
  const words = [...command.slice(1), "env", "--format", "json", "--url", url, "--session", "LLMPROXY-SESSION"];
  const done = spawnSync(command[0], words, { encoding: "utf8" });
  if (done.status !== 0) throw new Error(`llmproxy: \`llmproxy env\` ended with ${done.status}:\n${done.stderr}`);
  return JSON.parse(done.stdout);
}

let proxy;
try {
  const { words, downloads } = findCommand(process.env);
  if (downloads) tell({ downloads });
  proxy = await start(words);
  if (proxy.url) {
    tell({ url: proxy.url, variables: variables(words, proxy.url) });
    proxy.child.ended.then((code) => runs(owner) && tell({ error: `llmproxy: the proxy ended with ${code}:\n${said(ENDED)}` }));
  }
} catch (error) {
  tell({ error: error.message });
}
while (runs(owner)) await sleep(WATCH);
if (proxy?.child) {
  proxy.child.kill("SIGTERM");
  await Promise.race([proxy.child.ended, sleep(ENDING)]);
  proxy.child.kill("SIGKILL");
}
const [folder, ours] = [path.dirname(at.lock), path.basename(at.lock, "lock")];
for (const each of readdirSync(folder)) if (each.startsWith(ours)) rmSync(path.join(folder, each), { force: true });
process.exit();
