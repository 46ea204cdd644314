// What generated tests do (tests/sdk/node_suites.py): each asks with its own name in the text, by clients that all of them share.
const { EventEmitter } = require("node:events");
const http = require("node:http");
const { default: OpenAI } = require("openai");

const client = new OpenAI({ maxRetries: 0 });
const bus = new EventEmitter().on("ask", (who, given, done, failed) => ask(who, given).then(done, failed));
const body = (text) => ({ model: "gpt-4o-mini", messages: [{ role: "user", content: text }] });
const headers = { "content-type": "application/json", authorization: "Bearer k" };
const url = `${process.env.OPENAI_BASE_URL}/chat/completions`;
const said = (answer) => answer.choices?.[0].message.content ?? JSON.stringify(answer);

const ways = {
  openai: async (text) => said(await client.chat.completions.create(body(text))),
  fetch: async (text) => said(await (await fetch(url, { method: "POST", headers, body: JSON.stringify(body(text)) })).json()),
  http: (text) =>
    new Promise((resolve, reject) => {
      const asked = http.request(url, { method: "POST", headers }, async (response) => {
        let data = "";
        for await (const piece of response) data += piece;
        resolve(said(JSON.parse(data)));
      });
      asked.on("error", reject).end(JSON.stringify(body(text)));
    }),
};

async function ask(who, [number, way]) {
  const text = `${who} asks ${number}`;
  const answer = await ways[way](text);
  if (answer !== text) throw new Error(`${who} was told ${answer}`);
}

const steps = {
  ask,
  wait: (who, [ms]) => new Promise((done) => setTimeout(done, ms)),
  all: (who, given) => Promise.all(given.map((each) => play(who, [each]))),
  timer: (who, [ms, each]) => new Promise((done, failed) => setTimeout(() => play(who, [each]).then(done, failed), ms)),
  emitter: (who, given) => new Promise((done, failed) => bus.emit("ask", who, given, done, failed)),
  late: (who, [ms, ...given]) => void setTimeout(() => void ask(who, given).catch(() => "refused"), ms), // nobody waits for it
};

async function play(who, program) {
  for (const [name, ...given] of program) await steps[name](who, given);
}

exports.play = play;
