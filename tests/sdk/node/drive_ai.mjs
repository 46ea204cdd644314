// Drive the Vercel AI SDK on its openai (responses and chat), anthropic and google providers.
import { TOOL_RESULT, WEATHER, collect, key, main, numbered, prompt, sdk } from "./driver.mjs";

const { createAnthropic } = await sdk("@ai-sdk/anthropic");
const { createGoogleGenerativeAI } = await sdk("@ai-sdk/google");
const { createOpenAI } = await sdk("@ai-sdk/openai");
const { generateText, jsonSchema, stepCountIs, streamText, tool } = await sdk("ai");
const openai = createOpenAI({ apiKey: key("OPENAI_API_KEY") });
const anthropic = createAnthropic({ apiKey: key("ANTHROPIC_API_KEY"), baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1` });
const google = createGoogleGenerativeAI({
  apiKey: key("GEMINI_API_KEY"),
  baseURL: `${process.env.GOOGLE_GEMINI_BASE_URL}/v1beta`,
});
const models = {
  openai: openai("gpt-4o-mini"),
  chat: openai.chat("gpt-4o-mini"),
  anthropic: anthropic("claude-haiku-4-5"),
  google: google("gemini-2.5-flash"),
};
const tools = {
  get_weather: tool({ description: "Current weather", inputSchema: jsonSchema(WEATHER), execute: async () => TOOL_RESULT }),
};

// What the SDK understood; ids that it makes up (16 letters and digits) are numbered, times and HTTP headers left out.
const steps = (all) =>
  numbered(
    all.map(({ text, toolCalls, toolResults, finishReason, usage, content }) => ({
      text, toolCalls, toolResults, finishReason, usage, content,
    })),
    /^(aitxt-)?[A-Za-z0-9]{16,24}$/,
  );

function cases(name, model) {
  return {
    [`${name}_plain`]: async () => steps((await generateText({ model, prompt: prompt("plain"), temperature: 0.5 })).steps),
    [`${name}_stream`]: async () => {
      let failure = null;
      const result = streamText({ model, prompt: prompt("stream"), onError: ({ error }) => (failure = error) });
      const parts = await collect(result.textStream);
      if (failure) throw failure;
      return [parts, steps(await result.steps)];
    },
    [`${name}_error`]: async () => steps((await generateText({ model, prompt: prompt("error") })).steps),
    [`${name}_tools`]: async () =>
      steps((await generateText({ model, prompt: prompt("tools"), tools, stopWhen: stepCountIs(3) })).steps),
  };
}

await main(Object.assign({}, ...Object.entries(models).map(([name, model]) => cases(name, model))));
