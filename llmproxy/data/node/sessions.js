// The sessions of one worker: one for each test, and one for what a file does outside its tests.
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { threadId } from "node:worker_threads";
import { attribute, context } from "./attribution.js";
import { OFFLINE, cassetteName, chooseMode, runVariables } from "./names.js";
import { control, files, findProxy, owner, readState } from "./proxy.js";

const PLACEHOLDER = "llmproxy-placeholder";
const NAMED = "LLMPROXY-SESSION";
const BUSY = 30_000; // milliseconds to wait for a cassette that another worker has open
const PAUSE = 50;
export const FILE = "file"; // the key of what belongs to a file
const CONFLICT = 409;
/** What runs the tests: alone, and with the options that select by title and by project. */
const RUNNERS = {
  vitest: ["npx vitest run", "-t", "--project"],
  jest: ["npx jest", "-t", "--selectProjects"],
  "node-test": ["node --import llmproxy-replay/node-test --test", "--test-name-pattern"],
  playwright: ["npx playwright test", "-g", "--project"],
};

/** What the tests of this worker share; made once by `begin`, and found again by copies of this module. */
class Worker {
  constructor(given) {
    Object.assign(this, given, { ask: control(given.url), open: new Set(), tried: new Map(), seen: new Map() });
    this.name = `${this.runner}-${os.hostname().slice(0, 40)}-${process.pid}-${threadId}`;
    this.segment = `/s/${encodeURIComponent(this.name)}`;
    this.segments = new Set([this.segment]);
  }

  /** Set base URLs and keys, before any module of a test file is loaded. */
  setEnvironment() {
    const { segment } = this.only ?? this.outside ?? this; // a process that the only running test starts is its own
    const recording = this.mode !== undefined && !OFFLINE.includes(this.mode);
    for (const [name, value] of Object.entries(this.variables)) {
      if (value === PLACEHOLDER && (recording || process.env[name])) continue;
      process.env[name] = value.replaceAll(`/s/${NAMED}`, segment).replaceAll(NAMED, decodeURIComponent(segment.slice(3)));
    }
  }

  /** The test that runs, where there is one. */
  get only() {
    return this.open.size === 1 ? [...this.open][0] : undefined;
  }

  /** The name of a test: of two with the same titles the second has a number. `key` is the same for attempts of one test. */
  identify(file, titles, key) {
    const { project } = this; // of several, which may run the same file
    const relative = path.relative(this.root, file).split(path.sep).join("/");
    const id = [project ? `${relative} [${project}]` : relative, ...titles].join(key === FILE ? " " : "::");
    const keys = this.seen.get(id) ?? this.seen.set(id, []).get(id);
    const nth = keys.includes(key) ? keys.indexOf(key) : keys.push(key) - 1;
    const title = key === FILE ? "" : titles.join(" ").replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const [typed, select, choose] = RUNNERS[this.runner];
    const chosen = [...(project ? [choose, quote(project)] : []), ...(title ? [select, quote(title)] : [])];
    const again = [typed, ...chosen, quote(relative)].join(" ");
    const names = [...(project ? [project] : []), ...titles, ...(nth ? [String(nth + 1)] : [])];
    return { id, again, cassette: cassetteName(relative, names) };
  }

  /** Open the session of an attempt of a test. */
  async begin(file, titles, key) {
    const test = new Test(this, this.identify(file, titles, key));
    await test.start({});
    this.open.add(test);
    this.setEnvironment();
    return test;
  }

  /** Open the session of what a file does outside its tests: at import, in hooks that tests share. */
  async beginFile(file) {
    await this.endFile();
    this.outside = await this.begin(file, [], FILE);
    this.open.delete(this.outside);
    this.setEnvironment();
  }

  /** Where the proxy ended, its keeper knows why. */
  gone(error) {
    if (!error.unanswered) return error;
    this.lost = true;
    const { error: said = error.message } = readState(this.files.state) ?? {};
    return new Error(said);
  }

  async endFile() {
    await this.outside?.end({ passed: !this.lost }); // tests have said it
    this.outside = undefined;
  }
}

/** One attempt of a test: its session. `segment` is how base URLs name it. */
class Test {
  ended = false;

  constructor(worker, named) {
    Object.assign(this, named, { worker });
  }

  async start({ cassette = this.cassette, mode = this.worker.mode, ...others }) {
    const { worker } = this;
    const again = worker.tried.get(this.id);
    const anew = again && mode !== undefined && !OFFLINE.includes(mode) && mode !== "passthrough";
    const given = { mode: anew ? "record" : mode, ...others, run_variables: [...runVariables(), ...(others.run_variables ?? [])] };
    for (const deadline = Date.now() + BUSY; ; ) {
      try {
        const opened = await worker.ask("POST", "sessions", { name: cassette, ...given });
        Object.assign(this, { name: opened.name, cassette: opened.cassette, mode: opened.mode });
        this.segment = `/s/${encodeURIComponent(opened.name)}`;
        worker.segments.add(this.segment);
        this.url = worker.url + this.segment;
        return;
      } catch (error) {
        if (error.status !== CONFLICT || Date.now() > deadline) throw worker.gone(error);
      }
      await new Promise((done) => setTimeout(done, PAUSE));
    }
  }

  api(method, verb, body) {
    return this.worker.ask(method, `sessions/${encodeURIComponent(this.name)}${verb}`, body).catch((error) => Promise.reject(this.worker.gone(error)));
  }

  /** What it came to so far; once it has ended, what it came to. */
  async report() {
    return this.closed ?? (await this.api("GET", ""));
  }

  async misses() {
    return (await this.report()).miss_texts ?? [];
  }

  /** Run a function as this attempt: in its context, and to its end. */
  async attempt(call) {
    try {
      const value = await context.run(this, call);
      await this.end({ passed: true });
      return value;
    } catch (error) {
      if (this.ended) throw error;
      await this.annotate(error);
      await this.end({ passed: false });
      throw error;
    }
  }

  /** End the attempt, and keep what it came to for the reporter. Of one that failed its own error is said, whatever happens here. */
  async end({ passed }) {
    this.ended = true;
    const { worker } = this;
    worker.open.delete(this);
    worker.setEnvironment();
    this.closed = await this.api("POST", "/close", { complete: passed }).catch((error) => (passed ? Promise.reject(error) : {}));
    worker.tried.set(this.id, !passed && this.closed.recorded > 0);
    if (this.closed.arrived) this.tell({ passed, ...this.closed });
    const { tools = [], answers = [] } = this.closed.overrides ?? {};
    const idle = passed && [...tools, ...answers].find((each) => !each.used && !each.inherited);
    if (idle) throw new Error(`llmproxy: the override of ${idle.tool ?? `call ${idle.call} (calls count from 0)`} changed nothing.`);
  }

  /** Tell the reporter. */
  tell(sum) {
    appendFileSync(this.worker.files.sums, `${JSON.stringify({ test: this.id, ...sum })}\n`);
  }

  /** Put what a failure should say besides what it `said` behind an error's message, and into its stack, which runners print. */
  async annotate(error, said = error?.message) {
    if (typeof error?.message !== "string") return;
    const { message, stack } = error;
    error.message += await this.explain(said);
    if (typeof stack === "string") error.stack = stack.replace(message, () => error.message);
  }

  /** Return what a failure should say besides the messages of its errors: nothing where no request was refused. */
  async explain(said) {
    const texts = await this.misses().catch((error) => `\n${error.message}`);
    if (typeof texts === "string" || !texts.length) return String(texts);
    const told = texts.filter((text) => !text.split("\n").every((line) => said.includes(line.trim())));
    const title = told.length ? [`llmproxy: requests not in cassette "${this.cassette}" (mode ${this.mode})`] : [];
    return ["", ...title, ...told, `To record what is missing: LLMPROXY_MODE=auto ${this.again}`, `If this test changed: LLMPROXY_UPDATE=all ${this.again}`].join("\n");
  }
}

/** Titles of a test and of the blocks around it, the outermost first; `up` is a block's member, `inside` ends it at the file. */
export function listTitles(test, up, inside) {
  const names = [];
  for (let each = test; each && inside(each); each = each[up]) names.unshift(each.name);
  return names;
}

function quote(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

const OURS = Symbol.for("llmproxy-replay");

/** The worker of this process; made on the first call, once for all copies of this module. */
export function begin(runner, { root = process.cwd() } = {}) {
  if (globalThis[OURS]) return globalThis[OURS].worker;
  const ini = options(root);
  const mode = chooseMode(process.env, ini);
  const live = (mode !== undefined && !OFFLINE.includes(mode)) || process.env.LLMPROXY_UPDATE === "changed";
  const at = files(owner(runner));
  const running = process.env.LLMPROXY_URL && !readState(at.state); // a worker of ours before may have set it
  const found = running ? here() : findProxy(at, { owner: owner(runner), live, cassetteDir: ini.cassetteDir, typed: RUNNERS[runner][0] });
  const worker = new Worker({ runner, root, files: at, mode: running ? mode : (mode ?? "replay"), ...found });
  const { url } = worker;
  attribute(url, worker.segments, (test) => test ?? worker.outside);
  worker.setEnvironment();
  globalThis[OURS] = { worker, context, session: (given) => session(worker, given) };
  return worker;
}

/** Base URLs that lead to a proxy that runs already, as `llmproxy run` and `llmproxy env` set them; they get our session. */
function here() {
  const url = process.env.LLMPROXY_URL.replace(/\/$/, "");
  const entries = Object.entries(process.env).filter(([name, value]) => name !== "LLMPROXY_URL" && value.startsWith(url));
  if (!entries.length) {
    throw new Error(`llmproxy: LLMPROXY_URL is ${url}, and no base URL leads there. Type: eval "$(llmproxy env)", or unset LLMPROXY_URL.`);
  }
  const rest = (value) => value.slice(url.length).replace(/^\/s\/[^/]+/, "");
  return { url, variables: Object.fromEntries(entries.map(([name, value]) => [name, `${url}/s/${NAMED}${rest(value)}`])) };
}

function options(root) {
  const file = path.join(root, "package.json");
  return (existsSync(file) && JSON.parse(readFileSync(file, "utf8")).llmproxy) || {};
}

/** The session of the running test; with options, one of its own in the place of the one that it has. */
async function session(worker, given) {
  const test = context.getStore() ?? worker.only;
  if (!test || test === worker.outside) throw new Error("llmproxy: session() is for a running test; several run at once, or none.");
  if (given && Object.keys(given).length) {
    const { runVariables: declared, readOnly, unknownTool, ...others } = given;
    if ((await test.report()).arrived) throw new Error("llmproxy: session({...}) comes before the first call of its test.");
    await test.api("POST", "/close", {});
    const variables = Object.entries(declared ?? {}).map(([name, value]) => ({ name, value: String(value) }));
    await test.start({ ...others, run_variables: variables, ...(readOnly && { read_only: readOnly }), ...(unknownTool && { unknown_tool: unknownTool }) });
    worker.setEnvironment();
  }
  return {
    name: test.name,
    cassette: test.cassette,
    mode: test.mode,
    url: test.url,
    baseURL: `${test.url}/v1`,
    report: () => test.report(),
    misses: () => test.misses(),
    calls: async () => (await worker.ask("GET", `calls?session=${encodeURIComponent(test.name)}&after=0`)).calls,
    runVariable: (name, value, where = {}) => test.api("POST", "/run_variables", { run_variables: [{ name, value: String(value), ...where }] }),
    faults: (faults) => test.api("POST", "/faults", Array.isArray(faults) || typeof faults === "string" ? { faults: [faults].flat() } : faults),
    reset: () => test.api("POST", "/reset", {}),
    expectNoMiss: async () => {
      const texts = await test.misses();
      if (texts.length) throw new Error(`llmproxy: ${texts.length} requests were never recorded:\n${texts.join("\n\n")}`);
    },
  };
}
