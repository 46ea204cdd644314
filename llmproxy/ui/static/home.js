// What there is to look at: the recordings of a store, as a table.
import { html, useEffect, useRef, useState } from "./view.js";
import { ago, counted, HALVES, line, money, session, short, visible, when } from "./format.js";
import { given, useAsk } from "./source.js";
import { Failure } from "./parts.js";
import { useKeys } from "./keys.js";

const state = (each) => [each.holder ? "is being recorded" : !each.closed_cleanly && "incomplete", each.failed && `${each.failed} failed`, each.fork && "fork"].filter(Boolean).join(", ");
const COLUMNS = [
  ["recording", (each) => session(each.name, each.sample)], ["model", (each) => (each.models || []).join(", ")], ["calls", (each) => each.live], ["tokens", (each) => (each.tokens_in ?? -1) + (each.tokens_out ?? 0)],
  ["cost", (each) => each.cost ?? -1], ["age", (each) => -(each.last_at || 0)], ["state", state],
];

// "test_weather.test_rain-0a1b2c3d" -> ["test_weather", "test_rain"]: of a test, its file and its title.
export function filed(name) {
  const [, file, title] = /^([^./]+(?:\.(?:test|spec))?)(?:\.(.+))?-[0-9a-f]{8}$/s.exec(name) || [];
  return file ? [file, title || "outside of its tests"] : ["", name];
}

const ordered = (by, down) => (one, other) => {
  const [a, b] = [by(one), by(other)];
  return (down ? -1 : 1) * (typeof a === "number" ? a - b : a.localeCompare(b));
};

export function Home({ show }) {
  const { value, error } = useAsk("cassettes", {});
  const [find, seek] = useState("");
  const [[column, down], sort] = useState([0, false]);
  const [chosen, choose] = useState(-1);
  const input = useRef();
  const all = value?.cassettes || [];
  const only = all.length === 1 && !/^#\/home/.test(location.hash) ? all[0] : null;
  useEffect(() => { if (only) location.replace(address({ cassette: only.name, sample: only.sample })); }, [only]);
  const words = find.toLowerCase();
  const found = all.filter((each) => [session(each.name, each.sample), each.asked, ...(each.models || [])].some((text) => (text || "").toLowerCase().includes(words))).sort(ordered(COLUMNS[column][1], down));
  const files = new Map();
  for (const each of found) {
    const [file] = filed(each.name);
    files.set(file, [...(files.get(file) || []), each]);
  }
  const groups = [...files].sort(([a], [b]) => (a === "" ? -1 : b === "" ? 1 : 0));
  const byFile = files.size > 1 || !files.has("");
  const rows = groups.flatMap(([, own]) => own);
  const open = (each) => each && show({ cassette: each.name, sample: each.sample });
  const step = (by) => rows.length && choose(Math.max(0, Math.min(rows.length - 1, chosen + by)));
  useKeys({ j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1), "/": () => input.current?.focus(), Escape: () => seek(""), ...(chosen >= 0 ? { Enter: () => open(rows[chosen]) } : {}) });
  useEffect(() => { document.querySelector(".cassettes .chosen")?.scrollIntoView({ block: "nearest" }); }, [chosen]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!value || only) return html`<p class="soft pad">reading …</p>`;
  if (!all.length) return html`<main class="home"><h1>${visible(value.store)}</h1><p>Nothing is recorded yet. Start the proxy, point your agent's base URL at it, and come back:</p><pre>llmproxy start --mode record${given.store_words || ""}</pre></main>`;
  return html`<main class="home"><h1>${visible(value.store)}</h1>
    <div class="tools wide"><input ref=${input} type="search" placeholder="find (/)" aria-label="find in names, prompts, models" value=${find} onInput=${(event) => { choose(-1); seek(event.currentTarget.value); }} /><span class="soft" role="status">${found.length < all.length ? `${found.length} of ` : ""}${counted(all.length, "recording")}</span></div>
    <table class="cassettes"><thead><tr>${COLUMNS.map(([name], n) => html`<th key=${name} aria-sort=${n !== column ? undefined : down ? "descending" : "ascending"}><button class="link" onClick=${() => sort([n, n === column && !down])}>${name}${n !== column ? "" : down ? " ↓" : " ↑"}</button></th>`)}</tr></thead>
      ${groups.map(([file, own]) => html`<tbody key=${file}>${byFile && html`<tr class="file"><th colspan=${COLUMNS.length} scope="rowgroup">${visible(file || "other recordings")} <span class="soft">${counted(own.length, "recording")}</span></th></tr>`}
        ${own.map((each) => html`<${Row} key=${session(each.name, each.sample)} each=${each} inFile=${file !== ""} chosen=${each === rows[chosen]} open=${open} />`)}</tbody>`)}
    </table>${found.length === 0 && html`<p class="soft">No recording is like that.</p>`}</main>`;
}

function Row({ each, inFile, chosen, open }) {
  const own = { cassette: each.name, sample: each.sample };
  const tokens = each.tokens_in === null && each.tokens_out === null ? "?" : `${short(each.tokens_in)} → ${short(each.tokens_out)}`;
  const mark = state(each);
  return html`<tr class=${chosen ? "chosen" : ""} onClick=${(event) => { if (!event.target.closest("a")) open(each); }}>
    <td><a href=${address(own)}>${visible(session(inFile ? filed(each.name)[1] : each.name, each.sample))}</a>${each.asked && html`<p class="soft">${line(each.asked, 120)}</p>`}</td>
    <td>${line((each.models || []).join(", ") || "?", 60)}</td><td class="number">${short(each.live)}</td><td class="number">${tokens}</td><td class="number">${money(each.cost) || "?"}</td>
    <td title=${when(each.last_at)}>${ago(each.last_at)}</td><td class=${mark === "fork" ? "soft" : "is-flaky"} title=${visible(each.fork || "")}>${visible(mark)}</td></tr>`;
}

// A name in an address; half a surrogate pair has no place in one.
const worded = (each) => encodeURIComponent(session(each.cassette, each.sample ?? 1).replace(HALVES, "\ufffd"));

export function address({ cassette, sample = 1, id, tab, old, now, report, place }) {
  if (report) return `#/report${place === undefined ? "" : `/${place}`}`;
  if (old) return `#/d/${worded(old)}/${worded(now)}`;
  return ["#/c", worded({ cassette, sample }), ...(id ? [id, ...(tab && tab !== "said" ? [tab] : [])] : [])].join("/");
}
