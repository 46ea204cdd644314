// Every client of Node asks at the same time, each in a test of its own, with clients that were made at import.
import http from "node:http";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI } from "@google/genai";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, streamText } from "ai";
import axios from "axios";
import got from "got";
import OpenAI from "openai";
import { Agent, request } from "undici";
import { expect, test } from "vitest";
import { session } from "llmproxy-replay";

const MODEL = "gpt-4o-mini";
const base = process.env.OPENAI_BASE_URL;
const openai = new OpenAI();
const anthropic = new Anthropic();
const google = new GoogleGenAI({ apiKey: process.env.GEMINI_API_KEY });
const vercel = createOpenAI();
const claude = createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1` });
const langchain = new ChatOpenAI({ model: MODEL });
const dispatcher = new Agent();

const url = `${base}/chat/completions`;
const headers = { "content-type": "application/json", authorization: "Bearer k" };
const body = (text) => ({ model: MODEL, messages: [{ role: "user", content: text }] });
const said = (answer) => answer.choices[0].message.content;

function byHttp(text) {
  return new Promise((resolve, reject) => {
    const asked = http.request(url, { method: "POST", headers }, async (response) => {
      let data = "";
      for await (const piece of response) data += piece;
      resolve(said(JSON.parse(data)));
    });
    asked.on("error", reject).end(JSON.stringify(body(text)));
  });
}

const clients = {
  openai: async (text) => said(await openai.chat.completions.create(body(text))),
  "openai responses": async (text) => (await openai.responses.create({ model: MODEL, input: text })).output_text,
  anthropic: async (text) =>
    (await anthropic.messages.create({ model: "claude-haiku-4-5", max_tokens: 9, messages: body(text).messages })).content[0].text,
  google: async (text) => (await google.models.generateContent({ model: "gemini-2.5-flash", contents: text })).text,
  ai: async (text) => (await generateText({ model: vercel.chat(MODEL), prompt: text })).text,
  "ai stream": async (text) => {
    const route = () => streamText({ model: claude("claude-haiku-4-5"), prompt: text }).toTextStreamResponse();
    return route().text(); // what a route handler gives its UI
  },
  langchain: async (text) => (await langchain.invoke(text)).content,
  fetch: async (text) => said(await (await fetch(url, { method: "POST", headers, body: JSON.stringify(body(text)) })).json()),
  undici: async (text) => said(await (await request(url, { method: "POST", headers, body: JSON.stringify(body(text)), dispatcher })).body.json()),
  axios: async (text) => said((await axios.post(url, body(text), { headers })).data),
  got: async (text) => said(await got.post(url, { json: body(text), headers }).json()),
  "node:http": byHttp,
};

test.concurrent.each(Object.entries(clients))("%s", async (name, ask) => {
  const text = `I am ${name}`;
  expect(await ask(text)).toBe(text);
  const { arrived, misses } = await (await session()).report();
  expect([arrived, misses]).toEqual([1, 0]);
});
