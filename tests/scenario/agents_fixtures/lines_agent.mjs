// An agent in JavaScript that speaks JSON lines: asks the model, runs its one tool, asks again.
import { createInterface } from "node:readline";

const tools = [{ type: "function", function: { name: "get_weather", parameters: { type: "object" } } }];
const histories = new Map();

async function respond(history) {
  for (;;) {
    const answer = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: "Bearer none" },
      body: JSON.stringify({ model: "gpt-4o", messages: history, tools }),
    });
    if (!answer.ok) throw new Error(`the model answered ${answer.status}: ${await answer.text()}`);
    const message = (await answer.json()).choices[0].message;
    history.push(message);
    if (!message.tool_calls?.length) return message.content;
    for (const call of message.tool_calls) history.push({ role: "tool", tool_call_id: call.id, content: "12" });
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, conversation, message } = JSON.parse(line);
  if (!histories.has(conversation)) histories.set(conversation, []);
  const history = histories.get(conversation);
  history.push({ role: "user", content: message });
  console.log(JSON.stringify({ id, text: await respond(history) }));
}
