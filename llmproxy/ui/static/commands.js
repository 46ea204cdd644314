// What one types to go on from here: looked at in the terminal, compared, asked again, made a test.
import { quoted, session } from "./format.js";

const LEFT_OUT = new Set(["host", "content-length", "connection", "accept-encoding", "transfer-encoding", "user-agent"]);
const KEYS = { authorization: "Bearer $OPENAI_API_KEY", "x-api-key": "$ANTHROPIC_API_KEY", "api-key": "$AZURE_OPENAI_API_KEY", "x-goog-api-key": "$GEMINI_API_KEY" };

export function commands(call, bodies, store) {
  const at = store && store !== "llmproxy.db" ? ` --store ${quoted(store)}` : "";
  const found = [["Look at it in the terminal", `llmproxy show ${call.id}${at}`]];
  if (call.previous) found.push(["What it differs in from the call before", `llmproxy diff ${call.previous} ${call.id}${at}`]);
  found.push(["Begin another recording as this one does, up to here", `llmproxy fork ${quoted(session(call.cassette, call.sample))}${at}`]);
  found.push(["Make a test of this session", `llmproxy suite from-session ${quoted(call.cassette)}${at}`]);
  found.push(["As a step of a suite", step(call)]);
  if (bodies?.request.text !== undefined) found.push(["Ask the provider again (this costs money)", curl(call, bodies.request.text)]);
  return found;
}

// A YAML text: JSON's form is one, whatever stands in it.
const yaml = (text) => JSON.stringify(text);

export function step(call) {
  const asked = call.messages.filter((each) => each.role === "user").at(-1)?.text || "";
  const counts = {};
  for (const each of call.answer?.calls || []) counts[each.name] = (counts[each.name] || 0) + 1;
  const tools = Object.entries(counts).map(([name, count]) => `${yaml(name)}: ${count}`).join(", ");
  const said = (call.answer?.text || "").trim().split("\n")[0].slice(0, 80);
  return [`- chat: ${yaml(asked)}`, tools && `  tools: {${tools}}`, said && `  response: {contains: ${yaml(said)}}`].filter(Boolean).join("\n");
}

export function curl(call, body) {
  const fields = call.request.headers.filter(([name]) => !LEFT_OUT.has(name.toLowerCase()));
  const shown = fields.map(([name, value]) => {
    const key = KEYS[name.toLowerCase()];
    return key ? `  -H "${name}: ${key}"` : `  -H ${quoted(`${name}: ${value}`)}`;
  });
  const mark = body.includes("\nBODY\n") ? "BODY_OF_THE_REQUEST" : "BODY";
  const head = [`curl -N -X ${quoted(call.method)} ${quoted((call.upstream || "https://unknown.invalid") + call.target)}`, ...shown, ...(body ? ["  --data-binary @-"] : [])].join(" \\\n");
  return body ? `${head} <<'${mark}'\n${body}\n${mark}` : head;
}
