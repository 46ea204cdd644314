// What all Node drivers share; the same contract as ../python/driver.py.
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";

const dialogue = JSON.parse(readFileSync(new URL("../dialogue.json", import.meta.url), "utf8"));

export const TOOL_RESULT = "twelve degrees";
export const WEATHER = {
  type: "object",
  properties: { city: { type: "string" }, unit: { type: "string" } },
  required: ["city", "unit"],
  additionalProperties: false,
};
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, country: { type: "string" } },
  required: ["city", "country"],
  additionalProperties: false,
};

// Header fields as tracing and retrying clients add them: random for each request, and of no matter to the answer.
const plain = globalThis.fetch;
globalThis.fetch = (resource, options = {}) => {
  const headers = new Headers(options.headers ?? (resource instanceof Request ? resource.headers : undefined));
  const [trace, span] = [randomUUID().replaceAll("-", ""), randomUUID().slice(0, 8).repeat(2)];
  headers.set("traceparent", `00-${trace}-${span}-01`);
  headers.set("baggage", `sentry-trace_id=${trace}`);
  headers.set("sentry-trace", `${trace}-${span}-1`);
  for (const name of ["x-request-id", "idempotency-key"]) headers.set(name, randomUUID());
  return plain(resource, { ...options, headers });
};

let running = ""; // the name of the case that runs, as it was given
export const prompt = (name, turn = 0) => dialogue[name][turn].user + (running.endsWith("*") ? process.env.TWIST : "");

// An SDK, in the version that SDK_VERSION names: "" is the newest, "-previous" an older one.
export const sdk = (name) => import(name + (process.env.SDK_VERSION ?? ""));

// A placeholder in replay, because SDKs refuse to start without a key.
export const key = (name) => process.env[name] || "unused";

export async function collect(iterable) {
  const all = [];
  for await (const one of iterable) all.push(one);
  return all;
}

// Number ids that an SDK makes up on every run by their first appearance.
export function numbered(value, pattern) {
  const seen = new Map();
  return JSON.parse(JSON.stringify(value ?? null), (_, v) => {
    if (typeof v !== "string" || !pattern.test(v)) return v;
    if (!seen.has(v)) seen.set(v, `id#${seen.size}`);
    return seen.get(v);
  });
}

export async function main(cases) {
  const wanted = (process.env.CASES ?? "").split(",").filter(Boolean);
  for (const name of wanted.length ? wanted : Object.keys(cases)) {
    if (process.env.ANNOUNCE) await plain(process.env.ANNOUNCE, { method: "POST", body: name });
    running = name;
    const begun = performance.now();
    let line;
    try {
      line = { result: (await cases[name.replace(/@.*|[*+]$/, "")]()) ?? null };
    } catch (error) {
      const status = error.status ?? error.statusCode ?? error.code ?? null;
      line = { error: { class: error.constructor.name, message: String(error.message), status } };
    }
    console.log(JSON.stringify({ case: name, seconds: (performance.now() - begun) / 1000, ...line }));
  }
  process.exit(0);
}
