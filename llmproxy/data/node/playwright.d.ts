import type { PlaywrightTestArgs, PlaywrightTestOptions, PlaywrightWorkerArgs, PlaywrightWorkerOptions, TestType } from "@playwright/test";
import type { Session } from "./index.js";

export { expect } from "@playwright/test";
export const test: TestType<
  PlaywrightTestArgs & PlaywrightTestOptions & { llmproxy: Session },
  PlaywrightWorkerArgs & PlaywrightWorkerOptions
>;
export default test;
