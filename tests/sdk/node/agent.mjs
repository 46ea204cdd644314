// An agent on the SDK that is named, as agent.py: `node agent.mjs openai|anthropic|google|ai QUESTION`.
import { functions, perform } from "./agent_tools.mjs";

const SYSTEM = "You keep notes.";
const key = (name) => process.env[name] || "unused";
const told = (calls, ask) => Promise.all(calls.map(({ name, given }) => perform(name, given, ask)));

const agents = {
  async openai() {
    const { default: OpenAI } = await import("openai");
    const client = new OpenAI({ apiKey: key("OPENAI_API_KEY") });
    const tools = functions.map((each) => ({ type: "function", function: each }));
    return async function ask(question) {
      const messages = [{ role: "system", content: SYSTEM }, { role: "user", content: question }];
      for (;;) {
        const answer = await client.chat.completions.create({ model: "gpt-4o-mini", messages, tools });
        const { content, tool_calls: calls = [] } = answer.choices[0].message;
        if (!calls?.length) return content;
        messages.push({ role: "assistant", content, tool_calls: calls });
        const results = await told(calls.map(({ function: f }) => ({ name: f.name, given: JSON.parse(f.arguments) })), ask);
        calls.forEach(({ id }, n) => messages.push({ role: "tool", tool_call_id: id, content: results[n] }));
      }
    };
  },

  async anthropic() {
    const { default: Anthropic } = await import("@anthropic-ai/sdk");
    const client = new Anthropic({ apiKey: key("ANTHROPIC_API_KEY") });
    const tools = functions.map(({ parameters, ...each }) => ({ ...each, input_schema: parameters }));
    const more = { model: "claude-haiku-4-5", max_tokens: 500, system: SYSTEM, tools };
    return async function ask(question) {
      const messages = [{ role: "user", content: question }];
      for (;;) {
        const answer = await client.messages.stream({ ...more, messages }).finalMessage();
        const calls = answer.content.filter((block) => block.type === "tool_use");
        if (!calls.length) return answer.content[0].text;
        const results = await told(calls.map(({ name, input }) => ({ name, given: input })), ask);
        messages.push({ role: "assistant", content: answer.content });
        const blocks = calls.map(({ id }, n) => ({ type: "tool_result", tool_use_id: id, content: results[n] }));
        messages.push({ role: "user", content: blocks });
      }
    };
  },

  async google() {
    const { GoogleGenAI } = await import("@google/genai");
    const client = new GoogleGenAI({ apiKey: key("GEMINI_API_KEY") });
    const declared = functions.map(({ parameters, ...each }) => ({ ...each, parametersJsonSchema: parameters }));
    const config = { systemInstruction: SYSTEM, tools: [{ functionDeclarations: declared }] };
    return async function ask(question) {
      const contents = [{ role: "user", parts: [{ text: question }] }];
      for (;;) {
        const answer = await client.models.generateContent({ model: "gemini-2.5-flash", contents, config });
        const calls = answer.functionCalls ?? [];
        if (!calls.length) return answer.text;
        const results = await told(calls.map(({ name, args }) => ({ name, given: args ?? {} })), ask);
        contents.push(answer.candidates[0].content);
        const parts = calls.map(({ name }, n) => ({ functionResponse: { name, response: { result: results[n] } } }));
        contents.push({ role: "user", parts });
      }
    };
  },

  async ai() {
    const { generateText, jsonSchema, stepCountIs, tool } = await import("ai");
    const { createOpenAI } = await import("@ai-sdk/openai");
    const model = createOpenAI({ apiKey: key("OPENAI_API_KEY") })("gpt-5");
    const tools = Object.fromEntries(functions.map(({ name, description, parameters }) => [
      name, tool({ description, inputSchema: jsonSchema(parameters), execute: (given) => perform(name, given, ask) }),
    ]));
    async function ask(question) {
      return (await generateText({ model, system: SYSTEM, prompt: question, tools, stopWhen: stepCountIs(20) })).text;
    }
    return ask;
  },
};

const ask = await agents[process.argv[2]]();
console.log(await ask(process.argv[3]));
process.exit(0);
