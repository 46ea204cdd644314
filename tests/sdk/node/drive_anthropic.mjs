// Drive @anthropic-ai/sdk.
import { TOOL_RESULT, WEATHER, collect, key, main, prompt, sdk } from "./driver.mjs";

const { default: Anthropic } = await sdk("@anthropic-ai/sdk");
const client = new Anthropic({ apiKey: key("ANTHROPIC_API_KEY") });
const base = { model: "claude-haiku-4-5", max_tokens: 200 };
const toolset = [{ name: "get_weather", description: "Current weather", input_schema: WEATHER }];
const user = (name) => [{ role: "user", content: prompt(name) }];
const create = (name, more = {}) => client.messages.create({ ...base, system: "You are brief.", messages: user(name), ...more });

async function tools(name, ask) {
  const messages = user(name);
  const results = [];
  for (;;) {
    const answer = await ask({ ...base, messages, tools: toolset });
    results.push(answer);
    const calls = answer.content.filter((block) => block.type === "tool_use");
    if (!calls.length) return results;
    messages.push({ role: "assistant", content: answer.content });
    const told = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: TOOL_RESULT }));
    messages.push({ role: "user", content: told });
  }
}

await main({
  plain: () => create("plain"),
  stream: async () => {
    const stream = client.messages.stream({ ...base, messages: user("stream") });
    return [await collect(stream), await stream.finalMessage()];
  },
  stream_usage: async () => collect(await create("stream_usage", { stream: true })),
  tools: () => tools("tools", (body) => client.messages.create(body)),
  tools_stream: () => tools("tools_stream", (body) => client.messages.stream(body).finalMessage()),
  count_tokens: () => client.messages.countTokens({ model: base.model, messages: user("count_tokens") }),
  retry: () => create("retry"),
  error: () => create("error"),
});
