// node:test: `node --import llmproxy-replay/node-test --test`. Each test has a cassette of its own; subtests have theirs.
//
// A test of node:test is an AsyncResource that calls its function by runInAsyncScope; nothing else of it can be reached from
// outside before it runs. Calls of hooks belong to the file.
import { AsyncResource } from "node:async_hooks";
import path from "node:path";
import { summary } from "./reporter.js";
import { begin, listTitles } from "./sessions.js";

const direct = AsyncResource.prototype.runInAsyncScope;

/** The reporter: the same module, in the process that starts the others. */
export default async function* reporter(source) {
  for await (const event of source) void event;
  yield* summary().map((line) => `${line}\n`);
}

const child = process.env.NODE_TEST_CONTEXT?.startsWith("child");
if (process.argv[1] && (child || !process.execArgv.includes("--test"))) {
  const file = path.resolve(process.argv[1]);
  const worker = begin("node-test");
  await worker.beginFile(file);
  process.once("beforeExit", () => worker.endFile());
  AsyncResource.prototype.runInAsyncScope = function runInAsyncScope(fn, self, ...given) {
    if (this.constructor.name !== "Test" || fn !== this.fn || !this.parent) return direct.call(this, fn, self, ...given);
    const run = async (...args) => {
      const test = await worker.begin(this.loc?.file ?? file, listTitles(this, "parent", (each) => each.parent), this);
      return test.attempt(() => called(fn, self, args));
    };
    const done = fn.length > 1 ? given.pop() : undefined;
    const promise = direct.call(this, run, undefined, ...given);
    if (!done) return promise;
    promise.then(() => done(), done);
    return undefined;
  };
}

/** Call a function of a test; one that takes a callback as its second argument ends when that is called. */
function called(fn, self, given) {
  return fn.length < 2 ? fn.apply(self, given) : new Promise((resolve, reject) => fn.call(self, ...given, (error) => (error ? reject(error) : resolve())));
}
