// Where data comes from: the server that gave the page, or the page itself when it is a file.
import { useState, useEffect, useRef } from "./view.js";
import { inFile } from "./infile.js";

export const given = JSON.parse(document.getElementById("data").textContent);

const TOKEN = "llmproxy-token";

function token() {
  const found = /^#token=([\w-]+)/.exec(location.hash);
  if (found) {  // out of the address, so that it is in no history and in no screenshot
    sessionStorage.setItem(TOKEN, found[1]);
    history.replaceState(null, "", location.pathname + "#" + location.hash.slice(found[0].length).replace(/^[&#]/, ""));
  }
  return sessionStorage.getItem(TOKEN) || "";
}

const known = given.served ? given.token || token() : "";

export class Refused extends Error {
  constructor(told) {
    super(told.message);
    this.hint = told.hint;
  }
}

async function served(question, query) {
  let answer;
  try {
    const headers = known ? { "x-llmproxy-token": known } : {};
    answer = await fetch(`data/${question}?${new URLSearchParams(query)}`, { headers });
  } catch {
    throw new Refused({ message: "The server does not answer: it has ended.", hint: "Start it again, and reload this page." });
  }
  const value = await answer.json();
  if (!answer.ok) throw new Refused(value.error);
  return value;
}

export const ask = given.served ? served : async (question, query) => inFile(given, question, query);

// What a person says of a verdict, for `llmproxy judge calibrate`.
let labelled = Promise.resolve();

/* One after the other: of two pressed quickly the second is what is kept, and what is shown. */
export function label(said) {
  const asked = labelled.then(() => putLabel(said));
  labelled = asked.catch(() => {});
  return asked;
}

async function putLabel(said) {
  const headers = { "content-type": "application/json", ...(known ? { "x-llmproxy-token": known } : {}) };
  const answer = await fetch("label", { method: "POST", headers, body: JSON.stringify(said) });
  const value = await answer.json();
  if (!answer.ok) throw new Refused(value.error);
  return value;
}

const LATEST = 40;  // answers that are kept: going back and forth asks nothing twice
const kept = new Map();

export async function askOnce(question, query) {
  const name = question + "?" + new URLSearchParams(query);
  if (!kept.has(name)) {
    if (kept.size >= LATEST) kept.delete(kept.keys().next().value);
    kept.set(name, ask(question, query).catch((error) => { kept.delete(name); throw error; }));
  }
  return kept.get(name);
}

// {value, error}: what is asked, anew whenever the question changes; the old value stays until the new one is there.
export function useAsk(question, query) {
  const name = question && JSON.stringify([question, query]);
  const [found, set] = useState({});
  useEffect(() => {
    let wanted = true;
    if (!name) return undefined;
    askOnce(question, query).then(
      (value) => wanted && set({ value, name }),
      (error) => wanted && set({ error, name }),
    );
    return () => { wanted = false; };
  }, [name]);
  return { ...found, late: found.name !== name };
}

const SOON = 700;  // milliseconds between two questions about a test that runs
const NOW_AND_THEN = 3000;

// {report, error}: a report of tests; while its test runs, and for the next one, it is asked again, for what changed.
export function useReport() {
  const [state, set] = useState({});
  const kept = useRef(state);
  useEffect(() => {
    if (given.report === undefined && !given.tests) return undefined;
    let next;
    const put = (found) => { kept.current = found; set(found); };
    const look = async () => {
      const { report, error } = kept.current;
      if (!document.hidden || !report) {
        try {
          const told = await ask("report", report ? { test: report.test, after: report.count } : {});
          const now = joined(report, told);
          if (now !== report || error) put({ report: now });
        } catch (refused) {
          put({ report, error: refused });
        }
      }
      if (given.served) next = setTimeout(look, kept.current.report?.running ? SOON : NOW_AND_THEN);
    };
    look();
    return () => clearTimeout(next);
  }, []);
  return state;
}

// Of the same test only the scenarios come in which something happened.
export function joined(old, told) {
  const named = told.scenarios.map((each, n) => ({ n, ...each }));
  if (!old || !told.test || old.test !== told.test) return old && !told.test ? old : { ...told, scenarios: named };
  if (old.count === told.count) return old;
  const scenarios = [...old.scenarios];
  for (const each of named) scenarios[each.n] = each;
  return { ...told, trend: old.trend, scenarios };
}
