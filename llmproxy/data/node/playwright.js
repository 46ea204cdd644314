// Playwright Test: `import { test, expect } from "llmproxy-replay/playwright"`. Each test has a cassette of its own, and each beforeAll.
//
// What tests, hooks and fixtures do is known by their context. Playwright sees where a test stands by who calls test(), so its methods
// that keep functions are replaced below that.
import { createRequire } from "node:module";
import path from "node:path";
import { context } from "./attribution.js";
import { FILE, begin } from "./sessions.js";

const playwright = createRequire(path.join(process.cwd(), "package.json"))("@playwright/test");

const worker = begin("playwright");
const sessions = new WeakMap(); // by the info of a test
const hooks = new Map();

function bound(fn, run = (info, call) => context.run(sessions.get(info), call)) {
  if (typeof fn !== "function") return fn;
  const made = (...given) => run(given.at(-1), () => fn(...given));
  made.toString = () => fn.toString(); // Playwright reads there which fixtures it wants
  return made;
}

/** How beforeAll and afterAll run: each with a cassette of its own, since several workers may run those of one file. */
function inFile(name, { file }) {
  const nth = (hooks.get(`${name} ${file}`) ?? 0) + 1;
  hooks.set(`${name} ${file}`, nth);
  return async (info, call) => {
    identify(info);
    return (await worker.begin(file, nth > 1 ? [name, String(nth)] : [name], FILE)).attempt(call);
  };
}

/** Of several projects each has cassettes of its own. */
function identify({ config, project }) {
  worker.project = config.projects.length > 1 ? project.name : undefined;
}

const replaced = {
  _createTest: ([kind, place, ...given]) => [kind, place, ...given.map((each) => bound(each))],
  _hook: ([name, place, ...given]) => {
    const run = name.endsWith("All") ? inFile(name, place) : undefined;
    return [name, place, ...given.map((each) => bound(each, run))];
  },
  _extend: ([place, given]) => {
    const own = Object.entries(given).map(([name, each]) => [name, Array.isArray(each) ? [bound(each[0]), ...each.slice(1)] : bound(each)]);
    return [place, { ...given, ...Object.fromEntries(own) }];
  },
};
const types = Object.getOwnPropertySymbols(playwright.test).map((each) => Object.getPrototypeOf(Object(playwright.test[each])));
const type = types.find((each) => Object.keys(replaced).every((name) => name in each));
if (!type) throw new Error("llmproxy: this version of Playwright Test is not known to llmproxy-replay.");
for (const [name, change] of Object.entries(replaced)) {
  const direct = type[name];
  type[name] = function method(...given) {
    return direct.apply(this, change(given));
  };
}

export const { expect } = playwright;
export const test = playwright.test.extend({
  llmproxy: [
    // oxlint-disable-next-line no-empty-pattern -- Playwright reads from the text of a fixture what it needs
    async ({}, use, info) => {
      identify(info);
      const session = await worker.begin(info.file, info.titlePath.slice(1), info.testId);
      sessions.set(info, session);
      await use(await context.run(session, () => globalThis[Symbol.for("llmproxy-replay")].session()));
      await session.annotate(info.errors.at(-1));
      await session.end({ passed: info.status === info.expectedStatus });
    },
    { auto: true },
  ],
});
export default test;
