// What there is to look at: the cassettes of a store.
import { html } from "./view.js";
import { counted, HALVES, line, session, short, visible, when } from "./format.js";
import { given, useAsk } from "./source.js";
import { Failure } from "./parts.js";

export function Home({ show }) {
  const { value, error } = useAsk("cassettes", {});
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<p class="soft pad">reading …</p>`;
  const { cassettes, store } = value;
  return html`<main class="home"><h1>${visible(store)}</h1>
    ${cassettes.length === 0 ? html`<p>Nothing is recorded yet. Start the proxy, point your agent's base URL at it, and come back:</p><pre>llmproxy start --mode record${given.store_words || ""}</pre>`
      : html`<p class="soft">${counted(cassettes.length, "recording")}</p>
    <ul class="cassettes">${cassettes.map((each) => html`<li key=${session(each.name, each.sample)}>
      <a href=${address({ cassette: each.name, sample: each.sample })} onClick=${(event) => { event.preventDefault(); show({ cassette: each.name, sample: each.sample }); }}>${visible(session(each.name, each.sample))}</a>
      ${each.asked && html`<p>${line(each.asked, 160)}</p>`}<span class="soft">${[counted(each.live, "call"), `${short(each.tokens_in)} → ${short(each.tokens_out)} tokens`, when(each.last_at), each.holder ? "is being recorded" : !each.closed_cleanly && "not closed", each.fork].filter(Boolean).map(visible).join(" · ")}</span></li>`)}</ul>`}
  </main>`;
}

// A name in an address; half a surrogate pair has no place in one.
const worded = (each) => encodeURIComponent(session(each.cassette, each.sample ?? 1).replace(HALVES, "\ufffd"));

export function address({ cassette, sample = 1, id, tab, old, now, report, place }) {
  if (report) return `#/report${place === undefined ? "" : `/${place}`}`;
  if (old) return `#/d/${worded(old)}/${worded(now)}`;
  return ["#/c", worded({ cassette, sample }), ...(id ? [id, ...(tab && tab !== "said" ? [tab] : [])] : [])].join("/");
}
