// What one types to go on from here: looked at in the terminal, compared, asked again, made a test.
import { quoted, session } from "./format.js";

const LEFT_OUT = new Set(["host", "content-length", "connection", "accept-encoding", "transfer-encoding", "user-agent"]);
const KEYS = { authorization: "Bearer $OPENAI_API_KEY", "x-api-key": "$ANTHROPIC_API_KEY", "api-key": "$AZURE_OPENAI_API_KEY", "x-goog-api-key": "$GEMINI_API_KEY" };

// A command about a recording; a name that looks like an option stands behind `--`.
const about = (words, { cassette, sample }, at, more = "") => {
  const name = quoted(session(cassette, sample));
  return name.startsWith("-") ? `llmproxy ${words}${more}${at} -- ${name}` : `llmproxy ${words} ${name}${more}${at}`;
};

// Of one call; `place` is how many stand before it in its recording.
export function commands(call, bodies, given, place) {
  const at = given.store_words || "";
  const again = bodies?.request.text !== undefined ? [["Ask the provider again (this costs money)", curl(call, bodies.request.text)]] : [];
  if (given.file) return [["Take this file into the store of this folder", `llmproxy import ${quoted(given.file)}`], ["As a step of a suite", step(call)], ...again];
  const found = [["Look at it in the terminal", `llmproxy show ${call.id}${at}`]];
  if (call.previous) found.push(["What it differs in from the call before", `llmproxy diff ${call.previous} ${call.id}${at}`]);
  if (place !== undefined) found.push(["Begin another recording as this one does, up to here", about("fork", call, at, ` --at ${place + 1}`)]);
  return [...found, ["As a step of a suite", step(call)], ...again];
}

// Of a whole recording.
export function commandsOf(recording, given) {
  const at = given.store_words || "";
  if (given.file) return [["Take this file into the store of this folder", `llmproxy import ${quoted(given.file)}`]];
  const { cassette, sample } = recording;
  const own = `--cassette=${quoted(cassette)}${sample > 1 ? ` --sample ${sample}` : ""}`;
  const file = quoted(`${cassette.replace(/[^\w.-]+/g, "-").replace(/^-+/, "") || "recording"}.html`);
  return [
    ["Read it in the terminal", about(/^\d+$/.test(cassette) ? "show --cassette" : "show", recording, at)],
    ["Share it: one file for a browser; it makes no network requests", `llmproxy export ${file} ${own}${at}`],
    ["Replay it", `llmproxy start --mode replay --cassette=${quoted(session(cassette, sample))}${at}`],
    ["Make a test of it", about("suite from-session", { cassette, sample: 1 }, at, sample > 1 ? ` --sample ${sample}` : "")],
  ];
}

// A YAML text: JSON's form is one, whatever stands in it.
const yaml = (text) => JSON.stringify(text);

export function step(call) {
  const asked = call.messages.filter((each) => each.role === "user").at(-1)?.text || "";
  const counts = new Map();
  for (const each of call.answer?.calls || []) counts.set(each.name, (counts.get(each.name) || 0) + 1);
  const tools = [...counts].map(([name, count]) => `${yaml(name)}: ${count}`).join(", ");
  const said = (call.answer?.text || "").trim().split("\n")[0].slice(0, 80);
  return [`- chat: ${yaml(asked)}`, tools && `  tools: {${tools}}`, said && `  response: {contains: ${yaml(said)}}`].filter(Boolean).join("\n");
}

export function curl(call, body) {
  const fields = call.request.headers.filter(([name]) => !LEFT_OUT.has(name.toLowerCase()));
  const shown = fields.map(([name, value]) => {
    const key = KEYS[name.toLowerCase()];
    return key ? `  -H "${name}: ${key}"` : `  -H ${quoted(`${name}: ${value}`)}`;
  });
  const lines = new Set(body.split("\n"));
  let mark = "BODY";
  while (lines.has(mark)) mark += "_";  // a line of the body must not end it: the shell would run the next one
  const head = [`curl -N -X ${quoted(call.method)} ${quoted((call.upstream || "https://unknown.invalid") + call.target)}`, ...shown, ...(body ? ["  --data-binary @-"] : [])].join(" \\\n");
  return body ? `${head} <<'${mark}'\n${body}\n${mark}` : head;
}
