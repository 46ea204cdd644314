// The agent of loop.py in JavaScript: plain fetch, chat completions, streamed if told so.
import { appendFileSync } from "node:fs";

const tools = [{ type: "function", function: { name: "get_weather", parameters: { type: "object" } } }];
const stream = process.argv.includes("--stream");

async function ask(messages) {
  const body = { model: "gpt-4o", messages, tools, ...(stream ? { stream: true } : {}) };
  const answer = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  const text = await answer.text();
  if (!answer.ok) {
    console.error(`HTTP ${answer.status}: ${text}`);
    process.exit(1);
  }
  if (!stream) return JSON.parse(text).choices[0].message;
  let content = "";
  const calls = [];
  for (const line of text.split("\n")) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    for (const { delta } of JSON.parse(line.slice(6)).choices) {
      content += delta.content ?? "";
      for (const piece of delta.tool_calls ?? []) {
        const call = (calls[piece.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
        call.id ||= piece.id ?? "";
        call.function.name ||= piece.function.name ?? "";
        call.function.arguments += piece.function.arguments ?? "";
      }
    }
  }
  return { role: "assistant", content: content || null, ...(calls.length ? { tool_calls: calls } : {}) };
}

function get_weather({ city }) {
  appendFileSync(process.env.RUNS, `${city}\n`);
  return JSON.stringify({ city, temp: 21 });
}

const messages = [];
for (const question of process.argv.slice(2).filter((word) => word !== "--stream")) {
  messages.push({ role: "user", content: question });
  for (;;) {
    const message = await ask(messages);
    messages.push(message);
    if (!message.tool_calls) {
      console.log(message.content);
      break;
    }
    for (const call of message.tool_calls) {
      const content = get_weather(JSON.parse(call.function.arguments));
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}
