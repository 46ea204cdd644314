// OpenAI's Realtime over `ws`, as its Node SDK ships it: node drive_websocket.mjs BASE_URL
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "sk-test-0123456789abcdef" });
const realtime = new OpenAIRealtimeWS({ model: "gpt-realtime" }, client);
const asks = ["Hello", "What is the weather in Oslo?"];

function ask() {
  const content = [{ type: "input_text", text: asks.shift() }];
  realtime.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
  realtime.send({ type: "response.create" });
}

realtime.socket.on("open", () => {
  realtime.send({ type: "session.update", session: { type: "realtime", output_modalities: ["text"], instructions: "Be brief." } });
  ask();
});
realtime.on("event", (event) => {
  console.log(JSON.stringify(event));
  if (event.type !== "response.done") return;
  if (asks.length) ask();
  else realtime.close();
});
realtime.on("error", (error) => {
  console.log(JSON.stringify({ error: error.message }));
  process.exitCode = 1;
});
