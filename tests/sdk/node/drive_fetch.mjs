// Drive plain fetch, as a program without any SDK does.
import { TOOL_RESULT, WEATHER, collect, key, main, prompt } from "./driver.mjs";

const base = process.env.OPENAI_BASE_URL ?? "https://api.openai.com/v1";
const tool = { type: "function", function: { name: "get_weather", description: "Current weather", parameters: WEATHER } };

async function ask(body) {
  const response = await fetch(`${base}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${key("OPENAI_API_KEY")}` },
    body: JSON.stringify({ model: "gpt-4o-mini", ...body }),
  });
  if (!response.ok) throw Object.assign(new Error(await response.text()), { status: response.status });
  return response;
}

const user = (name) => [{ role: "user", content: prompt(name) }];

async function tools() {
  const messages = user("tools");
  const results = [];
  for (;;) {
    const answer = await (await ask({ messages, tools: [tool] })).json();
    results.push(answer);
    const { message } = answer.choices[0];
    if (!message.tool_calls?.length) return results;
    messages.push(message);
    for (const call of message.tool_calls) messages.push({ role: "tool", tool_call_id: call.id, content: TOOL_RESULT });
  }
}

await main({
  plain: async () => (await ask({ messages: user("plain") })).json(),
  stream: async () => {
    const { body } = await ask({ messages: user("stream"), stream: true });
    return (await collect(body.pipeThrough(new TextDecoderStream()))).join("");
  },
  tools,
  error: async () => (await ask({ messages: user("error") })).json(),
});
