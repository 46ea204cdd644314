// Jest: `testEnvironment: "llmproxy-replay/jest"`. Each test has a cassette of its own, also among concurrent ones.
//
// An environment is loaded outside of the sandbox of the tests, which get fetch and node:http from here. Where tests need another
// one (jsdom): `testEnvironmentOptions: { llmproxy: { environment: "jest-environment-jsdom" } }`.
import { createRequire } from "node:module";
import path from "node:path";
import { context } from "./attribution.js";
import { begin, listTitles } from "./sessions.js";

const require = createRequire(path.join(process.cwd(), "package.json"));
const OURS = Symbol.for("llmproxy-replay");
const NAME = "jest-environment-node";

function load(name) {
  try {
    return require(name);
  } catch {
    return createRequire(require.resolve("jest"))(name); // it comes with Jest, wherever that put it
  }
}

const { TestEnvironment } = load(NAME);

/** Jest calls it with `new`: makes the environment that was asked for, and listens to it. */
export default function Environment(config, given) {
  const name = config.projectConfig.testEnvironmentOptions.llmproxy?.environment ?? NAME;
  const loaded = name === NAME ? TestEnvironment : load(name);
  const inner = new (loaded.TestEnvironment ?? loaded.default ?? loaded)(config, given);
  const [setup, teardown, handle] = ["setup", "teardown", "handleTestEvent"].map((each) => inner[each]?.bind(inner));
  const ours = new Tests(given.testPath, config.globalConfig.rootDir, config.projectConfig.displayName?.name);
  inner.setup = async () => {
    await setup();
    await ours.begin(inner.global);
  };
  inner.teardown = async () => {
    await ours.end();
    await teardown();
  };
  inner.handleTestEvent = async (event, state) => {
    await handle?.(event, state);
    await ours.on(event, state).catch((error) => {
      if (!event.test) throw error;
      event.test.errors.push(error); // beside its own
    });
  };
  return inner;
}

/** Have a test or a hook run as this session; it may have been wrapped before, for another. */
function wrap(holder, session) {
  const fn = holder.fn.original ?? holder.fn;
  const run = (self, given) => context.run(session, () => fn.apply(self, given));
  holder.fn = fn.length ? function (done) { return run(this, [done]); } : function (...given) { return run(this, given); };
  holder.fn.original = fn;
}

/** The tests of one file, as jest-circus tells of them. */
class Tests {
  sessions = new Map();

  constructor(file, root, project) {
    Object.assign(this, { file, root, project });
  }

  async begin(global) {
    this.worker = begin("jest", { root: this.root });
    this.worker.project = this.project;
    await this.worker.beginFile(this.file);
    this.environment = global.process.env; // the sandbox has a copy
    this.copy();
    global[OURS] = globalThis[OURS];
  }

  async end() {
    await this.worker?.endFile(); // none where setup failed
  }

  async on(event, state) {
    if (event.name === "run_start") this.wrapConcurrent(state.rootDescribeBlock);
    else if (event.name === "test_started" && !event.test.concurrent) await this.open(event.test);
    else if (event.name === "test_fn_start" && !event.test.concurrent) wrap(event.test, this.sessions.get(event.test));
    else if (event.name === "hook_start") wrap(event.hook, this.running(state.currentlyRunningTest));
    else if (event.name === "test_fn_failure" && !event.test.concurrent) await this.sessions.get(event.test).annotate([event.error].flat()[0]);
    else if (event.name === "test_done" && !event.test.concurrent) await this.close(event.test);
  }

  async open(test) {
    const named = listTitles(test, "parent", (each) => each.name !== "ROOT_DESCRIBE_BLOCK");
    const session = await this.worker.begin(this.file, named, test);
    this.sessions.set(test, session);
    this.copy();
    return session;
  }

  /** Give the sandbox what we set, and nothing that its tests may have set. */
  copy() {
    for (const name of Object.keys(this.worker.variables)) if (name in process.env) this.environment[name] = process.env[name];
  }

  /** The session of what a hook does: its test's, or the file's. */
  running(test) {
    const session = this.sessions.get(test);
    return session && !session.ended ? session : this.worker.outside;
  }

  async close(test) {
    await this.sessions.get(test)?.end({ passed: test.errors.length === 0 });
  }

  /** Concurrent tests begin before anybody is told: each opens and ends its session itself. */
  wrapConcurrent(block) {
    for (const child of block.children) {
      if (child.type === "describeBlock") this.wrapConcurrent(child);
      else if (child.concurrent && child.fn) {
        const { fn } = child;
        child.fn = async (...given) => {
          const session = await this.open(child);
          return session.attempt(() => fn(...given));
        };
      }
    }
  }
}
