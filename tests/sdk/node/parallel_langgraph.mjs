// A LangGraph whose nodes run at once, and whose last node reads what they said in the order in which they ended;
// environment as of python/parallel.py, and MODULES: a folder whose node_modules hold it.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const { MODULES: modules, OPENAI_BASE_URL: baseURL, RESET: reset } = process.env;
const [calls, gap, runs] = [+(process.env.CALLS ?? 3), +(process.env.GAP ?? 0.02), +(process.env.RUNS ?? 1)];
const require = createRequire(`${modules}/x.js`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const [{ ChatOpenAI }, { StateGraph, Annotation, START, END }] = [await load("@langchain/openai"), await load("@langchain/langgraph")];
const model = new ChatOpenAI({ model: "m", apiKey: "x", maxRetries: 0, configuration: { baseURL } });
const ask = async (text) => (await model.invoke(text)).content;

async function once() {
  const heard = [];
  const graph = new StateGraph(Annotation.Root({ said: Annotation({ reducer: (a, b) => a.concat(b), default: () => [] }) }));
  const names = Array.from({ length: calls }, (_, n) => `q${n}`);
  for (const [n, name] of names.entries())
    graph.addNode(name, async () => {
      heard.push(await ask(`q${n} wait=${(0.03 + gap * (calls - n)).toFixed(4)}`));
      return { said: heard.slice(-1) };
    }).addEdge(START, name);
  graph.addNode("join", async () => ({ said: [await ask(`join ${heard.join(" ")}`)] })).addEdge(names, "join").addEdge("join", END);
  return (await graph.compile().invoke({ said: [] })).said.at(-1);
}

for (let n = 0; n < runs; n++) {
  if (reset) await (await fetch(reset, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" })).text();
  const began = performance.now();
  const said = await once().catch((error) => String(error));
  console.log(`${((performance.now() - began) / 1000).toFixed(3)} ${said.replaceAll("\n", " ")}`);
}
