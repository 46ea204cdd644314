// What happens now: each call as it comes, newest last; a miss opens as a difference, with the commands to type.
import { html, useState, useEffect, useMemo, useRef } from "./view.js";
import { clock, counted, duration, line, money, short, visible } from "./format.js";
import { ask, useAsk } from "./source.js";
import { List } from "./list.js";
import { Call } from "./call.js";
import { Miss } from "./miss.js";
import { Failure } from "./parts.js";
import { Progress } from "./report.js";
import { useKeys } from "./keys.js";

const EVERY = 700;  // milliseconds between two questions
const KEPT = 5000;
const [HEIGHT, NARROW_HEIGHT] = [54, 76];  // where it is narrow, who answered and what it cost have a line of their own
const NARROW = 416;  // pixels
const TAIL = 14;  // letters that a long name keeps
const WORDS = { hit: "replayed", bound: "bound", carried: "carried", miss: "miss", recorded: "recorded", passed: "passed on", fault: "fault", refused: "refused" };
const STANDS_OUT = (row) => ["miss", "fault", "refused"].includes(row.what) || row.lost || row.status >= 400;

// {rows, ...}: what the proxy told so far, asked again and again while the page is seen.
function useLive(paused) {
  const [state, set] = useState({ rows: [], count: 0, sessions: [], open: [], late: 0 });
  const kept = useRef(state);
  const still = useRef(paused);
  still.current = paused;
  useEffect(() => {
    let next;
    const look = async () => {
      if (!document.hidden) {
        try {
          const told = await ask("live", { after: kept.current.count });
          const restarted = told.count < kept.current.count;
          const rows = still.current ? kept.current.rows : [...(restarted ? [] : kept.current.rows), ...told.rows].slice(-KEPT);
          const isNews = told.rows.length || told.open.length || kept.current.open.length || restarted || !kept.current.mode || kept.current.error;
          const count = restarted ? 0 : still.current ? kept.current.count : told.count;
          kept.current = { ...told, rows, count, late: still.current ? told.count - count : 0 };
          if (isNews) set(kept.current);
        } catch (error) {
          kept.current = { ...kept.current, error };
          set(kept.current);
        }
      }
      next = setTimeout(look, EVERY);
    };
    look();
    return () => clearTimeout(next);
  }, []);
  return state;
}

export function Live({ show, report, wanted }) {
  const [paused, pause] = useState(false);
  const [find, seek] = useState("");
  const [out, onlyOut] = useState(false);
  const [beside, lay] = useState(false);
  const [chosen, choose] = useState(null);
  const [tab, turn] = useState("said");
  const [listed, list] = useState(true);
  const state = useLive(paused);
  const input = useRef();
  const right = useRef();
  const enter = () => setTimeout(() => right.current?.focus());  // when it is drawn
  const rows = useMemo(() => state.rows.filter((row) => matches(row, find, out)), [state.rows, find, out]);
  const at = chosen ? rows.findIndex((row) => row.n === chosen.n) : -1;
  const pick = (row) => { choose(row); if (row) list(false); };
  const step = (by) => rows.length && pick(rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? rows.length - 1 : at + by))]);
  useKeys({
    j: () => step(1), k: () => step(-1), p: () => pause(!paused), f: () => onlyOut(!out), "/": () => input.current?.focus(),
    m: () => { pick(rows.findLast((row) => row.what === "miss") || chosen); enter(); }, Escape: () => (find ? seek("") : pick(null)),
  });
  const meant = wanted && state.rows.findLast((row) => row.what === "miss" && row.key?.startsWith(`v2:${wanted}`));
  useEffect(() => { if (meant) pick(meant); }, [meant?.key]);  // whom a miss's own text brought here
  if (state.error && !state.mode) return html`<${Failure} error=${state.error} />`;
  const sessions = [...new Set(rows.map((row) => row.session))].slice(-4);
  const lists = beside && sessions.length > 1 ? sessions : [null];
  return html`<div class="recording live">
    <header class="head"><h1>live</h1><p class="soft">${[state.mode && `mode ${state.mode}`, state.store && visible(state.store), counted(state.count, "call"), state.open.length && `${counted(state.open.length, "call")} open`].filter(Boolean).join(" · ")}</p>
      ${state.error && html`<p class="why" role="alert">${visible(state.error.message)}</p>`}</header>
    <section class="tools wide" aria-label="what is shown">
      <input ref=${input} type="search" placeholder="find (/)" aria-label="find in sessions, models, prompts, answers" value=${find} onInput=${(event) => seek(event.currentTarget.value)} />
      <label><input type="checkbox" checked=${out} onChange=${() => onlyOut(!out)} /> what stands out</label>
      <label><input type="checkbox" checked=${beside} onChange=${() => lay(!beside)} /> sessions side by side</label>
      ${listed && html`<button class="narrow" onClick=${() => { choose(null); list(false); }}>sessions</button>`}
      <button onClick=${() => pause(!paused)} aria-pressed=${paused}>${paused ? `go on${state.late ? ` (${state.late} more)` : ""}` : "pause"}</button>
    </section>
    <main class=${`split${listed ? " listed" : ""}${lists.length > 1 ? " beside" : ""}`}>
      <nav class="left columns" aria-label="calls">${rows.length === 0 && html`<p class="soft pad">${state.rows.length ? "Nothing is like that." : "Nothing has been asked yet. Point your agent's base URL here:"}${!state.rows.length && html`<code>${location.origin}/v1</code>`}</p>`}
        ${lists.map((session) => html`<${Column} key=${session} session=${session} rows=${session === null ? rows : rows.filter((row) => row.session === session)} chosen=${chosen} pick=${pick} enter=${enter} follow=${!paused} />`)}</nav>
      <section class="right" aria-label="what is chosen" ref=${right} tabindex="-1">
        <p class="switch"><button onClick=${() => list(!listed)}>${listed ? "back" : "all calls"}</button></p>
        ${chosen === null ? html`${report?.running && html`<section aria-label="the test that runs"><h2 class="third">A test runs</h2><${Progress} report=${report} /><p><button class="link" onClick=${() => show({ report: true })}>what it found so far</button></p></section>`}<${Sessions} sessions=${state.sessions} began=${state.count > 0} seek=${seek} show=${show} open=${state.open} now=${state.now} />` : html`<${Chosen} row=${chosen} tab=${tab} turn=${turn} pick=${pick} show=${show} />`}
      </section>
    </main>
  </div>`;
}

function matches(row, find, out) {
  if (out && !STANDS_OUT(row)) return false;
  const wanted = find.toLowerCase();
  return !wanted || [row.session, row.party, row.provider, row.model, row.operation, row.what, row.asked, row.answered, row.note].some((text) => (text || "").toLowerCase().includes(wanted));
}

function Column({ session, rows, chosen, pick, enter, follow }) {
  const at = chosen ? rows.findIndex((row) => row.n === chosen.n) : -1;
  const box = useRef();
  const [narrow, set] = useState(false);
  useEffect(() => {
    const seen = new ResizeObserver(([{ contentRect }]) => set(contentRect.width < NARROW));
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);
  return html`<section class="column" ref=${box}>${session !== null && html`<h2>${visible(session)}</h2>`}
    <${List} id=${`live-${session || ""}`} count=${rows.length} height=${narrow ? NARROW_HEIGHT : HEIGHT} chosen=${at} choose=${(n) => pick(rows[n])} enter=${enter} follow=${follow && at < 0} label=${counted(rows.length, "call")} facts=${(n) => [rows[n], session !== null, narrow]} row=${(row, alone, small) => html`<${Row} row=${row} alone=${alone} narrow=${small} />`} /></section>`;
}

const says = (row) => row.answered || (row.what === "miss" ? "" : row.note) || (row.bound.length ? `bound: ${row.bound.join(", ")}` : "");

// Long names begin alike and part at their ends: where there is no room the middle goes.
const Name = ({ text }) => html`<span class="tag name" title=${text}><span>${text.slice(0, -TAIL)}</span><span class="tail">${text.slice(-TAIL)}</span></span>`;

function Row({ row, alone, narrow }) {
  const tokens = row.in === null && row.out === null ? "" : `${short(row.in)}→${short(row.out)}`;
  const answered = html`<span class="model">${visible([row.model || row.operation, row.provider].filter(Boolean).join(" "))}</span><span class="end">${row.status >= 400 && html`<b>${row.status}</b> `}${tokens} <span class="soft">${duration(row.ms)} ${money(row.cost)}</span></span>`;
  return html`<div class=${`one ${row.what}${row.lost ? " lost" : ""}`}>
    <div class="first"><span class="soft">${clock(row.at)}</span><span class="what">${row.lost ? "not recorded" : WORDS[row.what]}</span>${row.channel && row.channel !== "llm" && html`<span class="tag">${row.channel}</span>`}${!alone && row.session !== "default" && html`<${Name} text=${visible(row.session)} />`}${row.party !== "agent" && html`<span class="tag">${visible(row.party)}</span>`}
      ${!narrow && answered}</div>
    ${narrow && html`<div class="first">${answered}</div>`}
    <div class="second">${row.asked && html`<span class="asked">${line(row.asked, 110)}</span>`}${says(row) && html`<span class="answered">${line(says(row), 160)}</span>`}</div>
  </div>`;
}

function Chosen({ row, tab, turn, pick, show }) {
  if (row.what === "miss") return html`<${Miss} row=${row} />`;
  if (row.id === null) return html`<section class="facts"><h2>${WORDS[row.what]} <span class="status bad">${row.status || "no answer"}</span></h2><p>${[row.session, row.party, row.provider, row.operation, row.model].filter(Boolean).map(visible).join(" · ")}</p><p class="why">${visible(row.note)}</p></section>`;
  return html`${row.carried?.length > 0 && html`<p class="why">given although its request has changed, under: ${row.carried.map(visible).join(", ")}</p>`}${row.bound.length > 0 && html`<p class="soft">replayed with this run's values of: ${row.bound.map(visible).join(", ")}</p>`}${row.note && html`<p class="soft">${visible(row.note)}</p>`}
    <${Call} id=${row.id} tab=${tab} choose=${turn} go=${(id) => pick({ ...row, n: -1, id })} />
    <${InRecording} id=${row.id} show=${show} />`;
}

function InRecording({ id, show }) {
  const { value } = useAsk("place", { id });
  return value ? html`<p><button class="link" onClick=${() => show({ ...value, id })}>in its recording, ${visible(value.cassette)}</button></p>` : null;
}

function Sessions({ sessions, began, seek, open, now }) {
  return html`<section class="sessions"><h2 class="third">Sessions</h2>
    ${sessions.length === 0 && html`<p class="soft">${began ? "None is open any more." : "None has begun."}</p>`}
    ${sessions.length > 0 && html`<table><thead><tr><th>session</th><th>mode</th><th>replayed</th><th>misses</th><th>recorded</th><th>not spent</th><th>spent</th></tr></thead>
    <tbody>${sessions.map((each) => html`<tr key=${each.name}><td><button class="link" onClick=${() => seek(each.name)}>${visible(each.name)}</button></td><td>${each.mode}</td><td>${each.hits}${each.bound ? ` (${each.bound} bound)` : ""}${each.carried ? ` (${each.carried} carried)` : ""}</td><td class=${each.misses ? "why" : ""}>${each.misses}</td><td>${each.recorded}</td><td>${money(each.cost_not_spent)}</td><td>${money(each.cost_spent)}</td></tr>`)}</tbody></table>`}
    ${open.length > 0 && html`<h3>Open now</h3><ul>${open.slice(0, 20).map((each, n) => html`<li key=${n}>${visible([each.party, each.operation, each.model].filter(Boolean).join(" · "))} <span class="soft">for ${duration((now - each.at) * 1000)}</span></li>`)}</ul>`}
  </section>`;
}
