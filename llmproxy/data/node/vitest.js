// vitest: `test: { setupFiles: ["llmproxy-replay/vitest"] }`. Each test has a cassette of its own, also among concurrent ones.
import * as vitest from "vitest";
import { context } from "./attribution.js";
import { begin, listTitles } from "./sessions.js";

const worker = begin("vitest");
worker.project = globalThis["__vitest_worker__"]?.ctx.projectName; // of several that may run the same file
await worker.beginFile(vitest.expect.getState().testPath);
vitest.aroundAll?.((runAll) => context.run(worker.outside, runAll));
vitest.afterAll(() => worker.endFile());

async function run(runTest, task) {
  const named = listTitles(task, "suite", (each) => each.type !== undefined && each !== each.file);
  const test = await worker.begin(task.file.filepath, named, task.id);
  const before = task.result?.errors?.length ?? 0;
  const thrown = [];
  await context.run(test, async () => runTest()).catch((error) => thrown.push(error)); // before vitest 4.1 it is the test's own function
  const errors = [...(task.result?.errors?.slice(before) ?? []), ...thrown];
  await test.annotate(errors.at(-1), errors.map((error) => error?.message ?? "").join("\n"));
  await test.end({ passed: errors.length === 0 });
  if (thrown.length) throw thrown[0];
}

if (vitest.aroundEach) {
  vitest.aroundEach((runTest, { task }) => run(runTest, task));
} else {
  const suite = "vitest/suite"; // not there since 5, and looked for where it stands as a text
  const { getFn, setFn } = await import(suite);
  const own = new WeakMap(); // of each attempt the same
  vitest.beforeEach(({ task }) => {
    const fn = own.get(task) ?? own.set(task, getFn(task)).get(task);
    setFn(task, () => run(fn, task));
  });
}
