// Asks the same by fetch, node:https and node:http, and a host that NO_PROXY exempts; prints a line of JSON each.
import http from "node:http";
import https from "node:https";

const body = JSON.stringify({ model: "gpt-4o", messages: [{ role: "user", content: "hi" }] });
const headers = { "content-type": "application/json", authorization: "Bearer sk-test" };
const url = "https://api.openai.com/v1/chat/completions";

async function byFetch(to) {
  try {
    const answer = await fetch(to, { method: "POST", headers, body });
    return { status: answer.status, text: await answer.text() };
  } catch (error) {
    return { error: String(error.cause ?? error) };
  }
}

const byRequest = (library, to, options = {}) => new Promise((done) => {
  const asked = library.request(to, { method: "POST", headers, ...options }, (answer) => {
    let text = "";
    answer.setEncoding("utf8").on("data", (part) => { text += part; }).on("end", () => done({ status: answer.statusCode, text }));
  });
  asked.on("error", (error) => done({ error: String(error) })).end(body);
});

const tell = (name, what) => console.log(JSON.stringify({ name, ...what }));
tell("fetch", await byFetch(url));
tell("again", await byFetch(url));
tell("https", await byRequest(https, url));
tell("agent", await byRequest(https, url, { agent: new https.Agent({ keepAlive: true, maxSockets: 1 }) }));
tell("http", await byRequest(http, url.replace("https", "http")));
tell("stranger", await byFetch("https://stranger.example/v1"));
tell("exempt", await byFetch(process.env.EXEMPT));
process.exit(0);
