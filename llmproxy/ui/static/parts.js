// Small parts that several views show: texts that may be long, facts, buttons, what went wrong.
import { html, useState, useEffect, useErrorBoundary, useRef } from "./view.js";
import { visible, size, pretty } from "./format.js";

const SHOWN = 4000;
const MORE = 40000;

// A text of any length: its beginning, and more of it when asked for, so that five megabytes never become one node.
export function Text({ text, code = false, most = SHOWN, lang = undefined }) {
  const all = text || "";
  const [more, show] = useState({});  // how much of which text: another one begins anew
  const shown = more.all === all ? more.shown : most;
  const rest = all.length - shown;
  return html`<div class=${code ? "text code" : "text"} dir="auto" lang=${lang}>${visible(all.slice(0, shown))}${
    rest > 0 && html`<button class="more" onClick=${() => show({ all, shown: shown + MORE })}>… ${size(rest)} more</button>`
  }</div>`;
}

const [later, never] = window.requestIdleCallback ? [(act) => requestIdleCallback(act, { timeout: 100 }), (n) => cancelIdleCallback(n)] : [(act) => setTimeout(act, 16), (n) => clearTimeout(n)];

// Nodes of many things, drawn by `draw(thing, n)`: a few at once, more when nothing else is to do, so that no task is long. What is drawn is kept as it is.
export function useGrowing(things, draw, step = 12) {
  const made = useRef({});
  if (made.current.things !== things) made.current = { things, nodes: [] };
  const { nodes } = made.current;
  const [, grow] = useState(0);
  for (const to = Math.min(things.length, nodes.length + step); nodes.length < to;) nodes.push(draw(things[nodes.length], nodes.length));
  useEffect(() => {
    if (nodes.length >= things.length) return undefined;
    const soon = later(() => grow((n) => n + 1));
    return () => never(soon);
  });
  return [...nodes];
}

// JSON as one reads it, a text as it is.
export const Code = ({ text, most }) => html`<${Text} code text=${pretty(text)} most=${most} />`;

// Something that can be opened; open from the beginning where `open`.
export function Fold({ title, open = false, children, kind = "" }) {
  const [is, set] = useState(open);
  useEffect(() => set(open), [open]);
  return html`<details class=${"fold " + kind} open=${is} onToggle=${(event) => set(event.currentTarget.open)}>
    <summary>${title}</summary>${is && children}
  </details>`;
}

export function Copy({ text, label = "copy" }) {
  const [done, set] = useState("");
  useEffect(() => {
    if (!done) return undefined;
    const soon = setTimeout(() => set(""), 1500);
    return () => clearTimeout(soon);
  }, [done]);
  return html`<button class="copy" onClick=${() => toClipboard(text).then(() => set("copied"), () => set("not copied: select it"))}>${done || label}</button>`;
}

async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");  // a file, or http: no clipboard is given to these
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("not copied");
  return undefined;
}

// A command to type, ready to copy; what a terminal would obey on its way in is copied as it is shown, by its number.
export const Command = ({ text, about }) => html`<div class="command">
  ${about && html`<p>${about}</p>`}<div><pre tabindex="0">${visible(text)}</pre><${Copy} text=${visible(text)} /></div>
</div>`;

export const Failure = ({ error }) => html`<div class="failure" role="alert"><p>${visible(error.message)}</p>${error.hint && html`<p class="soft">${visible(error.hint)}</p>`}</div>`;

// What stands inside is left out where it cannot be drawn, and the rest of the page stays.
export function Whole({ children }) {
  const [error, again] = useErrorBoundary();
  return error ? html`<div class="failure broken" role="alert"><p>This cannot be shown: ${visible(String(error.message))}</p><button onClick=${again}>try again</button></div>` : children;
}

export function Media({ media }) {
  return html`<div class="media">${(media || []).map((each, n) => each.type.startsWith("image/")
    ? html`<img key=${n} alt=${`picture ${n + 1} of this message, ${each.type}`} src=${`data:${each.type};base64,${each.data}`} />`
    : html`<audio key=${n} controls src=${`data:${each.type};base64,${each.data}`} aria-label=${`sound, ${each.type}`}></audio>`)}</div>`;
}

// A row of tabs, as ARIA's practices want them: one stop for Tab, arrows between.
export function Tabs({ tabs, chosen, choose, label }) {
  const list = useRef();
  const step = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const at = tabs.findIndex(([name]) => name === chosen);
    const next = tabs[(at + by + tabs.length) % tabs.length][0];
    choose(next);
    list.current.querySelector(`[data-tab="${next}"]`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} ref=${list} onKeyDown=${step}>${tabs.map(([name, title]) => html`
    <button key=${name} role="tab" data-tab=${name} id=${"tab-" + name} aria-selected=${name === chosen} aria-controls="panel"
      tabindex=${name === chosen ? 0 : -1} onClick=${() => choose(name)}>${title}</button>`)}</div>`;
}
