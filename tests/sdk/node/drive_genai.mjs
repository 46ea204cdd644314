// Drive @google/genai.
import { SCHEMA, TOOL_RESULT, WEATHER, collect, key, main, prompt, sdk } from "./driver.mjs";

const { GoogleGenAI } = await sdk("@google/genai");
const client = new GoogleGenAI({ apiKey: key("GEMINI_API_KEY") });
const model = "gemini-2.5-flash";
const config = { systemInstruction: "You are brief.", temperature: 0.5 };
const open = ({ additionalProperties: _, ...schema }) => schema;
const declared = { name: "get_weather", description: "Current weather", parametersJsonSchema: open(WEATHER) };
// HTTP headers of the answer are no part of what the provider said.
const said = ({ sdkHttpResponse: _, ...answer }) => answer;

async function tools() {
  const contents = [{ role: "user", parts: [{ text: prompt("tools") }] }];
  const results = [];
  for (;;) {
    const answer = await client.models.generateContent({ model, contents, config: { tools: [{ functionDeclarations: [declared] }] } });
    results.push(said(answer));
    if (!answer.functionCalls?.length) return results;
    contents.push(answer.candidates[0].content);
    const told = answer.functionCalls.map(({ name }) => ({ functionResponse: { name, response: { result: TOOL_RESULT } } }));
    contents.push({ role: "user", parts: told });
  }
}

await main({
  plain: async () => said(await client.models.generateContent({ model, contents: prompt("plain"), config })),
  stream: async () => (await collect(await client.models.generateContentStream({ model, contents: prompt("stream"), config }))).map(said),
  error: async () => said(await client.models.generateContent({ model, contents: prompt("error"), config })),
  tools,
  structured: async () =>
    said(
      await client.models.generateContent({
        model,
        contents: prompt("structured"),
        config: { responseMimeType: "application/json", responseJsonSchema: open(SCHEMA) },
      }),
    ),
});
