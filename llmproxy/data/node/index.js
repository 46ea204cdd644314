// `import { session } from "llmproxy-replay"`: the session of the running test.
import cjs from "./index.cjs";

export const { session } = cjs;
