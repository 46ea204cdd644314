// Playwright Test: `import { test, expect } from "llmproxy-replay/playwright"`. A worker runs one test at a time.
import { createRequire } from "node:module";
import path from "node:path";
import { begin } from "./sessions.js";

const playwright = createRequire(path.join(process.cwd(), "package.json"))("@playwright/test");

const worker = begin("playwright");

export const { expect } = playwright;
export const test = playwright.test.extend({
  llmproxy: [
    // oxlint-disable-next-line no-empty-pattern -- Playwright reads from the text of a fixture what it needs
    async ({}, use, info) => {
      const session = await worker.begin(info.file, info.titlePath.slice(1), info.testId);
      await use(await globalThis[Symbol.for("llmproxy-replay")].session());
      const passed = info.status === info.expectedStatus;
      await session.annotate(info.errors.at(-1));
      await session.end({ passed });
    },
    { auto: true },
  ],
});
export default test;
