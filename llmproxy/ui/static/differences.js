// Where two values differ: leaf by leaf, and in texts word by word.
import { html, useMemo } from "./view.js";
import { visible, pretty } from "./format.js";
import { diffWordsWithSpace, diffLines } from "./vendor/diff.js";

const WORDS = 30000;  // characters up to which words are compared; beyond it lines
const AROUND = 160;  // unchanged characters that stay around a change

// [{value, added, removed}] with long equal stretches folded.
export function compare(old, now) {
  const is = old.length + now.length <= WORDS ? diffWordsWithSpace : diffLines;
  const found = is(old, now, { timeout: 400 }) || [{ value: old, removed: true }, { value: now, added: true }];
  return found.map((part, n) => (part.added || part.removed ? part : folded(part, n === 0, n === found.length - 1)));
}

function folded(part, first, last) {
  const { value } = part;
  const before = first ? "" : value.slice(0, AROUND);
  const after = last ? "" : value.slice(-AROUND);
  if (value.length <= before.length + after.length + 40) return part;
  return { before, after, left: value.length - before.length - after.length };
}

export function Words({ old, now }) {
  const parts = useMemo(() => compare(old, now), [old, now]);
  return html`<div class="text code words">${parts.map((part, n) => {
    if (part.left) return html`<span key=${n}>${visible(part.before)}<span class="soft equal"> … ${part.left.toLocaleString("en")} equal characters … </span>${visible(part.after)}</span>`;
    const text = visible(part.value);
    return part.added ? html`<ins key=${n}>${text}</ins>` : part.removed ? html`<del key=${n}>${text}</del>` : html`<span key=${n}>${text}</span>`;
  })}</div>`;
}

const shown = (value) => (typeof value === "string" ? value : pretty(value));

// One place: what it was, what it is.
export function Change({ change }) {
  const { path, where, old, new: now, looks, before = 0, after = 0 } = change;
  const what = old === undefined ? "added" : now === undefined ? "removed" : "changed";
  return html`<section class="change"><h4>${where ? `${visible(where)} ` : ""}<code>${visible(path)}</code> <span class=${"tag " + what}>${what}</span>${looks && html` <span class="tag">looks like ${visible(looks)}</span>`}</h4>
    ${before > 0 && html`<p class="soft">… ${before.toLocaleString("en")} equal characters before</p>`}${what === "changed" ? html`<${Words} old=${shown(old)} now=${shown(now)} />`
      : html`<div class="text code">${what === "added" ? html`<ins>${visible(shown(now).slice(0, 4000))}</ins>` : html`<del>${visible(shown(old).slice(0, 4000))}</del>`}</div>`}${after > 0 && html`<p class="soft">… ${after.toLocaleString("en")} after</p>`}
  </section>`;
}
