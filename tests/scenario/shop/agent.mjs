// The shop's agent in Node: the same two tools, nothing but the standard library. Serves HTTP (--port N), or speaks JSON lines.
import { createServer } from "node:http";
import { createInterface } from "node:readline";

const prompt = process.env.SHOP_PROMPT ?? "You work for a lamp shop.";
const orders = { "A-1": { item: "lamp", status: "delivered on May 2", paid: 30 } };
const actions = {
  look_up_order: ({ id }) => orders[id] ?? { error: "no such order" },
  refund: ({ id, amount }) => ({ order: id, refunded: amount }),
};
const tools = Object.keys(actions).map((name) => ({ type: "function", function: { name, parameters: { type: "object" } } }));

async function ask(messages) {
  const answer = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${process.env.OPENAI_API_KEY ?? "none"}` },
    body: JSON.stringify({ model: "gpt-4o", messages, tools }),
  });
  if (!answer.ok) throw new Error(`the model answered ${answer.status}: ${await answer.text()}`);
  return (await answer.json()).choices[0].message;
}

async function respond(history) {
  const messages = [{ role: "system", content: prompt }, ...history];
  for (;;) {
    const said = await ask(messages);
    if (!said.tool_calls?.length) return said.content;
    messages.push(said);
    for (const { id, function: { name, arguments: given } } of said.tool_calls)
      messages.push({ role: "tool", tool_call_id: id, content: JSON.stringify(actions[name](JSON.parse(given))) });
  }
}

if (process.argv[2] === "--port") {
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    const [status, value] = await respond(JSON.parse(body).history).then(
      (text) => [200, { text }],
      (error) => [500, { error: error.message }],
    );
    response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
  });
  server.listen(Number(process.argv[3]), "127.0.0.1", () => console.log(server.address().port));
} else {
  for await (const line of createInterface({ input: process.stdin })) {
    const { id, messages } = JSON.parse(line);
    console.log(JSON.stringify({ id, text: await respond(messages) }));
  }
}
