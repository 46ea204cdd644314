// A recording: the strip of time above, the calls left, and right what happened, or the call that was chosen.
import { html, useState, useEffect, useMemo, useRef } from "./view.js";
import { clock, counted, day, duration, isFailed, line, money, session, short, visible } from "./format.js";
import { ask, useAsk, given } from "./source.js";
import { List } from "./list.js";
import { Bar, Strip, scale } from "./waterfall.js";
import { Call, TABS, ahead } from "./call.js";
import { Steps } from "./steps.js";
import { Failure } from "./parts.js";
import { useKeys } from "./keys.js";

const PAGE = 100;
const PATIENCE = 60;  // milliseconds
const HEIGHT = 58;

// Rows of a list that is read a window at a time. Who draws them hears of each window; who draws the rest does not.
class Pages {
  constructor(query) {
    this.query = query;
    this.found = new Map();
    this.heard = new Set();
    this.seen = null;
  }

  load(page) {
    if (!this.found.has(page)) {
      const rows = ask("calls", { ...this.query, offset: page * PAGE, limit: PAGE }).then((value) => {
        this.found.set(page, value.rows);
        this.heard.forEach((hear) => hear());
        return value.rows;
      }, (error) => {
        this.found.delete(page);
        this.lost?.(error);
        return [];
      });
      this.found.set(page, rows);
    }
    return this.found.get(page);
  }

  row(n) {
    const page = this.found.get(Math.floor(n / PAGE));
    return Array.isArray(page) ? page[n % PAGE] : undefined;
  }

  read = async (n) => (await this.load(Math.floor(n / PAGE)))[n % PAGE];

  hear = (hear) => {
    this.heard.add(hear);
    return () => this.heard.delete(hear);
  };

  see = (from, to) => {  // what flies past is not asked for
    const waits = this.seen !== null;
    this.seen = [from, to];
    if (!waits) setTimeout(() => {
      const [first, last] = this.seen;
      this.seen = null;
      for (let page = Math.floor(first / PAGE); page * PAGE < last; page++) this.load(page);
    }, PATIENCE);
  };
}

// {pages, first, lost}: the windows of a question, the first of them once it is there, and why the last one is not.
function usePages(query) {
  const name = JSON.stringify(query);
  const pages = useMemo(() => new Pages(query), [name]);
  const [told, tell] = useState({});
  useEffect(() => {
    pages.lost = (error) => tell((old) => ({ ...old, lost: error }));
    Promise.resolve(pages.load(0)).then((first) => tell({ name, first }));  // the first rows wait for no sum over all of them
  }, [pages]);
  return { pages, first: told.name === name ? told.first : undefined, lost: told.lost };
}

export function Recording({ cassette, sample, id, tab = "said", show }) {
  const [find, seek] = useState("");
  const [failed, onlyFailed] = useState(false);
  const [model, ofModel] = useState("");
  const [tool, ofTool] = useState("");
  const [listed, list] = useState(false);
  const { value: whole } = useAsk("calls", { cassette, sample, sums: 1, limit: 1 });
  const { value: told } = useAsk("steps", { cassette, sample });
  const callsOf = useMemo(() => {
    const found = new Map();
    for (const { kind, name, call } of told?.steps || []) if (kind === "tool" && name && call) found.set(name, [...new Set(found.get(name)).add(call)]);
    return found;
  }, [told]);
  const query = { cassette, sample, ...(find ? { find } : {}), ...(failed ? { failed: 1 } : {}), ...(model ? { model } : {}), ...(tool ? { ids: callsOf.get(tool).join(",") } : {}) };
  const { value, error, late: counting } = useAsk("calls", { ...query, sums: 1, limit: 1 });
  const { pages, first, lost } = usePages(query);
  const { read } = pages;
  const { value: placed, late } = useAsk(id ? "place" : null, { ...query, id });
  const cursor = useRef({});  // where the keyboard is: known here before the server has said so
  const filter = JSON.stringify(query);
  const isOurs = cursor.current.filter === filter && [cursor.current.id, cursor.current.from].includes(id);
  if (!isOurs) cursor.current = { filter, from: id };
  const own = cursor.current.id === id ? cursor.current.n : undefined;
  const chosen = id ? (own ?? (placed && !late ? placed.place : -1)) : -1;
  const count = (counting && first ? first.length : value?.sums.calls) || 0;
  const go = (to, on = tab) => { list(false); show({ cassette, sample, id: to, tab: on }); };
  const choose = (n) => {
    cursor.current = { ...cursor.current, to: n };
    read(n).then((found) => {
      if (!found || cursor.current.to !== n) return;
      cursor.current = { filter, from: id, id: found.id, n, to: n };
      go(found.id);
    });
  };
  const step = (by) => {
    const from = cursor.current.to ?? chosen;
    if (count && (by > 0 || !counting)) choose(Math.max(0, Math.min(count - 1, from < 0 ? (by > 0 ? 0 : count - 1) : from + by)));
  };
  useEffect(() => { if (chosen >= 0 && chosen + 1 < count) read(chosen + 1).then((next) => ahead(next?.id)); }, [chosen, count]);
  const input = useRef();
  const right = useRef();
  useEffect(() => { if (right.current) right.current.scrollTop = 0; }, [id, tab]);  // another call, another view: from its beginning
  useKeys({
    j: () => step(1), k: () => step(-1),
    Escape: () => (find ? seek("") : show({ cassette, sample })),
    "/": () => input.current?.focus(),
    f: () => onlyFailed(!failed),
    ...Object.fromEntries(TABS.map(([name], n) => [String(n + 1), () => id && go(id, name)])),
  });
  const strip = value?.strip || [];
  const position = useMemo(() => (strip.length ? scale(strip).position : null), [strip]);
  if (error) return html`<${Failure} error=${error} />`;
  return html`<div class="recording">
    <${Head} cassette=${cassette} sample=${sample} sums=${value?.sums} show=${show} />
    ${value?.left > 0 && html`<p class="pad soft">${counted(value.left, "call")} of this recording ${value.left === 1 ? "is" : "are"} not in this file: <code>llmproxy ui ${visible(session(cassette, sample))}${given.store_words || ""}</code></p>`}
    ${strip.length > 1 && html`<${Strip} strip=${strip} chosen=${id} choose=${go} />`}
    <main class=${"split" + (listed ? " listed" : "")}>
      <nav class="left" aria-label="calls">
        <div class="tools">
          <input ref=${input} type="search" placeholder="find (/)" aria-label="find in prompts, answers, models" value=${find} onInput=${(event) => seek(event.currentTarget.value)} />
          <label><input type="checkbox" checked=${failed} onChange=${() => onlyFailed(!failed)} /> failed</label>
        </div>
        ${(whole?.sums.models?.length > 1 || callsOf.size > 0) && html`<div class="tools"><${Only} what="model" from=${whole?.sums.models || []} value=${model} choose=${ofModel} /><${Only} what="tool" from=${[...callsOf.keys()].sort()} value=${tool} choose=${ofTool} /></div>`}
        ${value && !counting && count === 0 && html`<p class="soft pad">No call ${find || failed || model || tool ? "is like that" : "is recorded here"}.</p>`}
        ${lost && html`<${Failure} error=${lost} />`}
        <${List} enter=${() => right.current?.focus()} count=${count} height=${HEIGHT} facts=${(n) => pages.row(n) && [pages.row(n), n > 0 && pages.row(n - 1)?.asked === pages.row(n).asked, position]} heard=${pages.hear} see=${pages.see} chosen=${chosen} choose=${choose}
          label=${counting ? "calls" : counted(count, "call")} row=${(row, again, place) => html`<${Row} row=${row} again=${again} position=${place} />`} />
      </nav>
      <section class="right" aria-label="what is chosen" ref=${right} tabindex="-1">
        <p class="switch"><button onClick=${() => list(!listed)}>${listed ? "back" : counting ? "all calls" : counted(count, "call")}</button>${id && html`<button onClick=${() => show({ cassette, sample })}>what happened</button>`}</p>
        ${id ? html`<${Call} id=${id} tab=${tab} choose=${(name) => go(id, name)} go=${go} />` : html`<${Steps} cassette=${cassette} sample=${sample} go=${go} />`}
      </section>
    </main>
  </div>`;
}

// What the list is limited to.
function Only({ what, from, value, choose }) {
  if (from.length < (what === "model" ? 2 : 1)) return null;
  return html`<select aria-label=${`only calls of a ${what}`} value=${value} onChange=${(event) => choose(event.currentTarget.value)}><option value="">every ${what}</option>${from.map((name) => html`<option key=${name} value=${name}>${visible(name)}</option>`)}</select>`;
}

function Head({ cassette, sample, sums, show }) {
  const about = sums && [
    counted(sums.calls, "call"), sums.failed && `${short(sums.failed)} failed`,
    sums.in !== null || sums.out !== null ? `${short(sums.in)} → ${short(sums.out)} tokens` : "tokens unknown",
    sums.cost !== null && `${money(sums.cost)}${sums.unpriced ? ` and ${counted(sums.unpriced, "call")} without price or tokens` : ""}`,
    sums.to > sums.from && duration((sums.to - sums.from) * 1000), day(sums.from),
  ].filter(Boolean).join(" · ");
  return html`<header class="head"><h1>${visible(session(cassette, sample))}</h1><p class="soft">${about}</p>${sums && html`<${Beside} cassette=${cassette} sample=${sample} show=${show} />`}</header>`;
}

// Which recording to lay beside this one: its parent first, then its other samples.
function Beside({ cassette, sample, show }) {
  const { value } = useAsk("cassettes", {});
  const known = value?.cassettes || [];
  const own = known.find((each) => each.name === cassette && each.sample === sample);
  const rank = (each) => (session(each.name, each.sample) === own?.parent ? 0 : each.name === cassette ? 1 : each.parent === session(cassette, sample) ? 2 : 3);
  const others = known.filter((each) => each !== own).sort((a, b) => rank(a) - rank(b)).slice(0, 200);
  const why = ["its parent", "another sample", "its child", ""];
  const [n, choose] = useState(0);
  if (!others.length) return null;
  const other = others[n] || others[0];
  const to = () => show({ old: { cassette: other.name, sample: other.sample }, now: { cassette, sample } });
  return html`<div class="other"><label>compare with <select value=${n} onChange=${(event) => choose(Number(event.currentTarget.value))}>
    ${others.map((each, n) => html`<option key=${n} value=${n}>${visible(session(each.name, each.sample))}${why[rank(each)] && ` (${why[rank(each)]})`}</option>`)}</select></label> <button onClick=${to}>side by side</button></div>`;
}

function Row({ row, again, position }) {
  const tokens = row.in === null && row.out === null ? "" : `${short(row.in)}→${short(row.out)}`;
  return html`<div class=${isFailed(row) ? "one failed" : "one"}>
    <div class="first"><span class="id">#${row.id}</span><span class="soft">${clock(row.at)}</span>${row.party !== "agent" && html`<span class="tag">${visible(row.party)}</span>`}${row.channel && row.channel !== "llm" && html`<span class="tag">${row.channel}</span>`}
      <span class="model">${visible(row.model || row.operation)}</span><span class="end">${isFailed(row) && html`<b>${row.status}${row.ending === "complete" ? "" : ` ${row.ending}`}</b> `}${tokens} <span class="soft">${duration(row.ms)}</span></span></div>
    <div class="second">${row.asked && !(again && row.answered) && html`<span class="asked">${line(row.asked, 110)}</span>`}<span class="answered">${line(row.answered, 160)}</span></div>
    <${Bar} row=${row} position=${position} />
  </div>`;
}
