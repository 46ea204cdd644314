// Jest: `testEnvironment: "llmproxy-replay/jest"`. Each test has a cassette of its own, also among concurrent ones.
//
// An environment is loaded outside of the sandbox of the tests, which get fetch and node:http from here. Where tests need another
// one (jsdom): `testEnvironmentOptions: { llmproxy: { environment: "jest-environment-jsdom" } }`.
import { createRequire } from "node:module";
import path from "node:path";
import { context } from "./attribution.js";
import { begin } from "./sessions.js";

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
  const ours = new Tests(given.testPath, config.globalConfig.rootDir);
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
    await ours.on(event, state);
  };
  return inner;
}

function titles(test) {
  const names = [];
  for (let each = test; each && each.name !== "ROOT_DESCRIBE_BLOCK"; each = each.parent) names.unshift(each.name);
  return names;
}

/** The tests of one file, as jest-circus tells of them. */
class Tests {
  sessions = new Map();

  constructor(file, root) {
    Object.assign(this, { file, root });
  }

  async begin(global) {
    this.worker = begin("jest", { root: this.root });
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
    else if (event.name === "test_fn_start" && !event.test.concurrent) this.wrap(event.test);
    else if (event.name === "test_fn_failure" && !event.test.concurrent) await this.sessions.get(event.test).annotate([event.error].flat()[0]);
    else if (event.name === "test_done" && !event.test.concurrent) await this.close(event.test);
  }

  async open(test) {
    const session = await this.worker.begin(this.file, titles(test), test);
    this.sessions.set(test, session);
    this.copy();
    return session;
  }

  /** Give the sandbox what we set, and nothing that its tests may have set. */
  copy() {
    for (const name of Object.keys(this.worker.variables)) if (name in process.env) this.environment[name] = process.env[name];
  }

  wrap(test) {
    const { fn } = test;
    const session = this.sessions.get(test);
    const run = (self, given) => context.run(session, () => fn.apply(self, given));
    test.fn = fn.length ? function (done) { return run(this, [done]); } : function (...given) { return run(this, given); };
    test.fn.original = fn;
  }

  async close(test) {
    if (test.fn?.original) test.fn = test.fn.original; // a retry is wrapped anew
    await this.sessions.get(test).end({ passed: test.errors.length === 0 });
  }

  /** Concurrent tests begin before anybody is told: each opens and ends its session itself. */
  wrapConcurrent(block) {
    for (const child of block.children) {
      if (child.type === "describeBlock") this.wrapConcurrent(child);
      else if (child.concurrent && child.fn) {
        const { fn } = child;
        child.fn = async (...given) => {
          const session = await this.open(child);
          try {
            const value = await context.run(session, () => fn(...given));
            await session.end({ passed: true });
            return value;
          } catch (error) {
            if (session.ended) throw error;
            await session.annotate(error);
            await session.end({ passed: false });
            throw error;
          }
        };
      }
    }
  }
}
