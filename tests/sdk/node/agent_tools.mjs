// The tools of the agents under test, as agent_tools.py has them: each answers something else on every run.
import { randomBytes, randomInt, randomUUID } from "node:crypto";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

const described = {
  make_task: ["Make a task", { title: "string" }],
  mint_token: ["Make a token", {}],
  close_task: ["Close a task", { task_id: "integer", token: "string" }],
  write_note: ["Write a note into a temporary file", { text: "string" }],
  read_note: ["Read a note", { path: "string" }],
  serve: ["Serve the notes", {}],
  fetch: ["Fetch a page", { url: "string" }],
  look_at_clock: ["Say what time it is", {}],
  delegate: ["Let two others look", { first: "string", second: "string" }],
  count: ["Count things", { what: "string" }],
};

export const functions = Object.entries(described).map(([name, [description, members]]) => ({
  name,
  description,
  parameters: {
    type: "object",
    properties: Object.fromEntries(Object.entries(members).map(([key, type]) => [key, { type }])),
    required: Object.keys(members),
  },
}));

// An object, its keys in any order.
function shuffled(members) {
  const left = Object.entries(members);
  const found = {};
  while (left.length) {
    const [[key, value]] = left.splice(randomInt(left.length), 1);
    found[key] = value;
  }
  return JSON.stringify(found);
}

async function serve() {
  const server = createServer((_, answer) => answer.end("the notes"));
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return `serving on http://127.0.0.1:${server.address().port}/`;
}

function writeNote({ text }) {
  const path = join(mkdtempSync(join(tmpdir(), "note-")), "note.txt");
  writeFileSync(path, text);
  return `written: ${path}`;
}

// Without an agent of its own: globalThis.fetch may be told to use the proxy for everything.
async function fetchPage({ url }) {
  const answer = await fetch(url);
  return `${answer.status} ${await answer.text()}`;
}

const acts = {
  make_task: ({ title }) =>
    shuffled({ id: randomInt(1000, 10_000_000), title, created_at: new Date().toISOString(), labels: ["home", "shop"] }),
  mint_token: () => randomUUID(),
  close_task: ({ task_id, token }) => shuffled({ task_id, token, closed: true, left: 0 }),
  write_note: writeNote,
  read_note: ({ path }) => readFileSync(path, "utf8"),
  serve,
  fetch: fetchPage,
  look_at_clock: () => new Date().toISOString().slice(0, 19) + "Z",
  count: ({ what }) => shuffled({ what, number: what.length, run: randomBytes(6).toString("hex") }),
};

// Run a tool; `ask(question)` runs a whole agent and returns what it says at its end.
export async function perform(name, given, ask) {
  try {
    if (name === "delegate") return (await Promise.all([ask(given.first), ask(given.second)])).join("\n");
    return await acts[name](given);
  } catch (error) {
    return `failed: ${error.message}`;
  }
}
