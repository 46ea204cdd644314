// A test-suite in Node that knows llmproxy only as a URL: `LLMPROXY_URL=http://127.0.0.1:8080 node --test suite.test.mjs`.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

const URL_ = process.env.LLMPROXY_URL;
const QUESTION = "How is the weather?";

async function control(method, path, body) {
  const answer = await fetch(`${URL_}/_llmproxy/${path}`, { method, body: body && JSON.stringify(body) });
  return { status: answer.status, ...(await answer.json()) };
}

const session = (name) => `sessions/${encodeURIComponent(name)}`;

function ask(name, content, more = {}, headers = {}) {
  return fetch(`${URL_}/s/${encodeURIComponent(name)}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: "Bearer none", ...headers },
    body: JSON.stringify({ model: "gpt-4o", messages: [{ role: "user", content }], ...more }),
  });
}

const text = async (answer) => (await (await answer).json()).choices[0].message.content;

let name;
beforeEach(async () => {
  name = "weather";
  assert.equal((await control("POST", "sessions", { name })).status, 201);
});
afterEach(async () => {
  await control("POST", `${session(name)}/close`);
});

test("the same question gets its recorded answers in order, then the last again", async () => {
  assert.equal(await text(ask(name, QUESTION)), "Rain.");
  assert.equal(await text(ask(name, QUESTION)), "Sun.");
  assert.equal(await text(ask(name, QUESTION)), "Sun.");
});

test("a reset starts over, and close tells what came of it", async () => {
  await text(ask(name, QUESTION));
  await control("POST", `${session(name)}/reset`);
  assert.equal(await text(ask(name, QUESTION)), "Rain.");
  const report = await control("POST", `${session(name)}/close`);
  assert.equal(report.hits, 2);
  assert.equal(report.misses, 0);
  assert.equal(report.live_calls, 0);
  assert.equal(report.unused.length, 2);
  assert.equal(report.tokens.input > 0, true);
});

test("a stream is replayed as a stream", async () => {
  const answer = await ask(name, QUESTION, { stream: true });
  assert.match(answer.headers.get("content-type"), /^text\/event-stream/);
  let said = "";
  for (const line of (await answer.text()).split("\n")) {
    if (line.startsWith("data: {")) said += JSON.parse(line.slice(6)).choices[0]?.delta?.content ?? "";
  }
  assert.equal(said, "Snow.");
});

test("what was never recorded is a 404 that says what is nearest, and is counted", async () => {
  const answer = await ask(name, "How is the wether?");
  assert.equal(answer.status, 404);
  assert.match((await answer.json()).error.message, /How is the weather\?.*How is the wether\?/s);
  const { misses } = await control("GET", `misses?session=${name}`);
  assert.equal(misses.length > 0, true);
  assert.equal((await control("GET", session(name))).misses, 1);
});

test("a process whose URL is fixed is bound to each test's session", async () => {
  assert.equal((await control("POST", "sessions/fixed/bind", { session: name })).status, 200);
  assert.equal(await text(ask("fixed", QUESTION)), "Rain.");
  assert.equal((await control("POST", "sessions/fixed/bind", { session: name })).status, 409);
  assert.equal((await control("POST", "sessions/fixed/unbind")).status, 200);
});

test("names with slashes and unicode are names", async () => {
  const odd = "suite/große Frage 日本";
  assert.equal((await control("POST", "sessions", { name: odd })).cassette, odd);
  assert.equal((await ask(odd, QUESTION)).status, 404);
  assert.equal((await control("POST", `${session(odd)}/close`)).misses, 1);
});

test("a replay proxy does not go live", async () => {
  const refused = await control("POST", "sessions", { name: "live", mode: "record" });
  assert.equal(refused.status, 403);
  assert.match(refused.error.hint, /--allow-live/);
});

test("fifty sessions at once stay apart", async () => {
  const reports = await Promise.all(
    Array.from({ length: 50 }, async (_, n) => {
      const own = `weather~${n + 2}`; // samples that were never recorded: each call is a miss of its own session
      await control("POST", "sessions", { name: own });
      for (let i = 0; i <= n % 3; i++) assert.equal((await ask(own, QUESTION)).status, 404);
      return control("POST", `${session(own)}/close`);
    }),
  );
  reports.forEach((report, n) => assert.equal(report.misses, 1 + (n % 3)));
});
