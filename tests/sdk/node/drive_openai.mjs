// Drive openai for Node.
import { SCHEMA, TOOL_RESULT, WEATHER, collect, key, main, prompt, sdk } from "./driver.mjs";

const { default: OpenAI, toFile } = await sdk("openai");
const client = new OpenAI({ apiKey: key("OPENAI_API_KEY") });
const model = "gpt-4o-mini";
const tool = { name: "get_weather", description: "Current weather", parameters: WEATHER, strict: true };
const user = (name) => [
  { role: "system", content: "You are brief." },
  { role: "user", content: prompt(name) },
];
const chat = (name, more = {}) => client.chat.completions.create({ model, messages: user(name), temperature: 0.5, ...more });
const respond = (name, more = {}, turn = 0) =>
  client.responses.create({ model, instructions: "Be brief.", input: prompt(name, turn), ...more });

async function tools(name, ask) {
  const messages = user(name);
  const results = [];
  for (;;) {
    const answer = await ask({ model, messages, tools: [{ type: "function", function: tool }] });
    results.push(answer);
    const { tool_calls: calls = [], content } = answer.choices[0].message;
    if (!calls?.length) return results;
    messages.push({ role: "assistant", content, tool_calls: calls });
    for (const call of calls) messages.push({ role: "tool", tool_call_id: call.id, content: TOOL_RESULT });
  }
}

async function responsesTools() {
  const input = [{ role: "user", content: prompt("responses_tools") }];
  const results = [];
  for (;;) {
    const answer = await client.responses.create({ model, input, tools: [{ type: "function", ...tool }] });
    results.push(answer);
    const calls = answer.output.filter((item) => item.type === "function_call");
    if (!calls.length) return results;
    input.push(...answer.output);
    for (const call of calls) input.push({ type: "function_call_output", call_id: call.call_id, output: TOOL_RESULT });
  }
}

await main({
  plain: () => chat("plain"),
  stream: async () => collect(await chat("stream", { stream: true })),
  stream_usage: async () => collect(await chat("stream_usage", { stream: true, stream_options: { include_usage: true } })),
  tools: () => tools("tools", (body) => client.chat.completions.create(body)),
  tools_stream: () => tools("tools_stream", (body) => client.chat.completions.stream(body).finalChatCompletion()),
  structured: () =>
    client.chat.completions.parse({
      model,
      messages: user("structured"),
      response_format: { type: "json_schema", json_schema: { name: "capital", schema: SCHEMA, strict: true } },
    }),
  responses: () => respond("responses"),
  responses_stream: async () => collect(await respond("responses_stream", { stream: true })),
  responses_chain: async () => {
    const first = await respond("responses_chain");
    return [first, await respond("responses_chain", { previous_response_id: first.id }, 1)];
  },
  responses_tools: responsesTools,
  embeddings: () => client.embeddings.create({ model: "text-embedding-3-small", input: prompt("embeddings") }),
  audio: async () =>
    client.audio.transcriptions.create({
      model: "whisper-1",
      file: await toFile(Buffer.from("RIFF$\0\0\0WAVEfmt and then the sound"), "harbour.wav"),
      language: "en",
    }),
  models: async () => collect(await client.models.list()),
  retry: () => chat("retry"),
  error: () => chat("error"),
});
