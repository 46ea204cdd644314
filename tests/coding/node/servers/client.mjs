// A client of tools by the official SDK: `node client.mjs PLAN URL` or `node client.mjs PLAN -- COMMAND...`; prints JSON.
// PLAN is that of tests/support/mcp_client.py, and so is what is printed.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  ResultSchema,
} from "@modelcontextprotocol/sdk/types.js";

const plan = JSON.parse(process.argv[2]);
const where = process.argv.slice(3);
const makeTransport = () =>
  where[0] === "--"
    ? new StdioClientTransport({ command: where[1], args: where.slice(2), env: process.env, stderr: "inherit" })
    : new StreamableHTTPClientTransport(new URL(where[0]));

async function call(client, [name, args]) {
  const progress = [];
  const told = { tool: name, arguments: args };
  try {
    const options = { onprogress: (each) => progress.push(each.progress), timeout: 60000 };
    if (name.includes("/")) {
      const text = JSON.stringify(await client.request({ method: name, params: args }, ResultSchema, options));
      return { ...told, error: false, text, progress };
    }
    const got = await client.callTool({ name, arguments: args }, undefined, options);
    const text = got.content.map((part) => (part.type === "text" ? part.text : JSON.stringify(part))).join("");
    return { ...told, error: got.isError === true, text, progress };
  } catch (error) {
    return { ...told, error: true, text: error.message, progress };
  }
}

async function cancelled(client, [name, args]) {
  const stop = new AbortController();
  const options = { signal: stop.signal, onprogress: () => stop.abort("enough") };
  try {
    await client.callTool({ name, arguments: args }, undefined, options);
    return { tool: name, cancelled: false };
  } catch {
    return { tool: name, cancelled: true };
  }
}

function shuffled(calls, seed) {
  let state = seed + 1;
  return calls
    .map((each) => [(state = (state * 48271) % 2147483647), each])
    .sort((one, other) => one[0] - other[0])
    .map(([, each]) => each);
}

async function run(number) {
  const numbered = plan.calls.map((each, at) => [at, each]);
  const calls = plan.shuffle == null ? numbered : shuffled(numbered, plan.shuffle + number);
  const client = new Client(
    { name: "client", version: "1" },
    { capabilities: { elicitation: {}, sampling: {}, roots: { listChanged: true } } },
  );
  client.setRequestHandler(ElicitRequestSchema, async () =>
    (plan.consent ?? "accept") === "accept"
      ? { action: "accept", content: plan.content ?? { yes: true } }
      : { action: plan.consent },
  );
  client.setRequestHandler(CreateMessageRequestSchema, async () => ({
    role: "assistant",
    model: "m",
    content: { type: "text", text: plan.poem ?? "roses" },
  }));
  client.setRequestHandler(ListRootsRequestSchema, async () => ({ roots: [] }));
  await client.connect(makeTransport());
  const listed = (await client.listTools()).tools.map((tool) => tool.name);
  const done = [];
  const how = (each) => (each[2] === "cancel" ? cancelled(client, each) : call(client, each));
  if (plan.together) {
    done.push(...(await Promise.all(calls.map(([, each]) => how(each)))));
  } else {
    for (const [, each] of calls) done.push(await how(each));
  }
  const told = calls.map(([at], n) => [at, done[n]]).sort((one, other) => one[0] - other[0]);
  await client.close();
  return plan.list ? listed : told.map(([, each]) => each);
}

const runs = [];
for (let number = 0; number < (plan.runs ?? 1); number += 1) runs.push(await run(number));
console.log(JSON.stringify(runs));
