// Two recordings side by side: the steps of both aligned, what is equal folded, the first difference first.
import { html, useEffect, useMemo, useRef, useState } from "./view.js";
import { counted, duration, given as onOneLine, money, number, pretty, quoted, session, short, visible } from "./format.js";
import { given, useAsk } from "./source.js";
import { Command, Failure, Fold } from "./parts.js";
import { Change, compare } from "./differences.js";
import { useKeys } from "./keys.js";
import { diffArrays } from "./vendor/diff.js";

const AROUND = 1;  // equal steps that stay on each side of a difference
const HEADS = { user: "asked", answer: "answered", says: "said", failed: "failed", call: "called", tool: "did" };
const CHANGES = 40;

const textOf = (step) => (step.kind === "tool" ? `${step.name || "(no name)"} ${onOneLine(step.given)}\n→ ${step.result === null ? "(no result seen)" : pretty(step.result)}` : step.text || "");
const signature = (step) => JSON.stringify([step.kind, step.depth, textOf(step)]);

// Rows {old, now, same}: equal steps, changed ones beside each other, and those that only one side has.
export function aligned(old, now) {
  const rows = [];
  let [a, b] = [0, 0];
  let pending = [];
  const settle = () => {
    const [removed, added] = [pending.filter((each) => each.old), pending.filter((each) => each.now)];
    while (removed.length || added.length) {
      const [left, right] = [removed[0], added[0]];
      if (left && right && left.old.kind === right.now.kind) rows.push({ old: removed.shift().old, now: added.shift().now });
      else rows.push(left && (!right || removed.length >= added.length) ? removed.shift() : added.shift());
    }
    pending = [];
  };
  for (const part of diffArrays(old.map(signature), now.map(signature))) {
    for (let n = 0; n < part.count; n++) {
      if (part.removed) pending.push({ old: old[a++] });
      else if (part.added) pending.push({ now: now[b++] });
      else {
        settle();
        rows.push({ old: old[a++], now: now[b++], same: true });
      }
    }
  }
  settle();
  return rows;
}

// [{rows, folded}]: equal stretches beside what differs stay, the rest is folded.
export function folded(rows) {
  const near = rows.map((row, n) => rows.slice(Math.max(0, n - AROUND), n + AROUND + 1).some((each) => !each.same));
  const groups = [];
  rows.forEach((row, n) => {
    if (groups.at(-1)?.folded !== !near[n]) groups.push({ folded: !near[n], rows: [] });
    groups.at(-1).rows.push(row);
  });
  return groups;
}

export function Compare({ old, now, show }) {
  const [left, right] = [useAsk("steps", old), useAsk("steps", now)];
  const [at, move] = useState(0);
  const rows = useMemo(() => (left.value && right.value ? aligned(left.value.steps, right.value.steps) : null), [left.value, right.value]);
  const differing = rows ? rows.filter((row) => !row.same) : [];
  const marks = useRef([]);
  marks.current = [];
  useEffect(() => { marks.current[at]?.scrollIntoView({ block: "center" }); marks.current[at]?.focus({ preventScroll: true }); }, [at, rows]);
  const step = (by) => move(Math.max(0, Math.min(differing.length - 1, at + by)));
  useKeys({ j: () => step(1), k: () => step(-1), Escape: () => show(now), s: () => show({ old: now, now: old }) });
  const error = left.error || right.error;
  if (error) return html`<${Failure} error=${error} />`;
  return html`<div class="recording"><header class="head"><h1>${visible(session(old.cassette, old.sample))} <span class="soft">and</span> ${visible(session(now.cassette, now.sample))}</h1>
      <p class="soft">${!rows ? "reading …" : differing.length ? `${counted(differing.length, "difference")}; the first: ${told(differing[0])}` : "nothing differs in what was asked, done and answered"}</p>
      ${differing.length > 1 && html`<span class="steps"><button onClick=${() => step(-1)}>previous (k)</button> <button onClick=${() => step(1)}>next (j)</button> <span class="soft">${at + 1} of ${differing.length}</span></span>`}
      <button onClick=${() => show({ old: now, now: old })}>swap (s)</button></header>
    <main class="compare" aria-label="both recordings">
      <div class="pair sums"><${Sums} of=${old} show=${show} /><${Sums} of=${now} show=${show} /></div>
      ${rows && folded(rows).map((group, n) => (group.folded ? html`<${Fold} key=${n} kind="equal" title=${`${counted(group.rows.length, "equal step")}`}>${group.rows.map((row, m) => html`<${Pair} key=${m} row=${row} sides=${[old, now]} show=${show} />`)}<//>`
        : group.rows.map((row, m) => {
          const place = row.same ? -1 : differing.indexOf(row);
          return html`<${Pair} key=${`${n}.${m}`} row=${row} sides=${[old, now]} show=${show} chosen=${place === at} mark=${(node) => { if (place >= 0) marks.current[place] = node; }} />`;
        })))}
      ${rows && !given.file && html`<${Fold} title="the same in the terminal"><${Command} text=${`llmproxy diff ${[old, now].map((each) => quoted(session(each.cassette, each.sample))).join(" ")}${given.store_words || ""}`} /><//>`}
      ${rows && [[old, left.value], [now, right.value]].filter(([, steps]) => steps.calls < steps.of).map(([side, steps]) => html`<p class="soft">Of ${visible(session(side.cassette, side.sample))} these are the first ${counted(steps.calls, "call")} of ${counted(steps.of, "call")}.</p>`)}
    </main></div>`;
}

function told({ old, now }) {
  const one = now || old;
  const what = one.kind === "tool" ? `the tool ${visible(one.name || "")}` : HEADS[one.kind];
  if (!old) return `${what}, only on the right`;
  if (!now) return `${what}, only on the left`;
  if (one.kind === "tool" && onOneLine(old.given) === onOneLine(now.given)) return `${what} returned something else`;
  return one.kind === "tool" ? `${what} was called otherwise` : `what was ${what}`;
}

function Sums({ of, show }) {
  const { value } = useAsk("calls", { ...of, sums: 1, limit: 1 });
  const sums = value?.sums;
  return html`<div class="side"><button class="link" onClick=${() => show(of)}>${visible(session(of.cassette, of.sample))}</button>
    <p class="soft">${sums && [counted(sums.calls, "call"), `${number(sums.in)} → ${number(sums.out)} tokens`, sums.cost === null ? "cost unknown" : money(sums.cost), sums.to > sums.from && duration((sums.to - sums.from) * 1000)].filter(Boolean).join(" · ")}</p></div>`;
}

function Pair({ row, sides, show, chosen = false, mark }) {
  const { old, now, same } = row;
  const parts = useMemo(() => (old && now && !same ? compare(textOf(old), textOf(now)) : null), [old, now]);
  const [asked, ask] = useState(false);
  const side = (step, n) => html`<div class=${"side " + (step ? step.kind : "none")} style=${{ marginInlineStart: `${Math.min(step?.depth || 0, 6)}rem` }}>
    ${step ? html`<p class="soft"><span>${HEADS[step.kind]}</span>${step.call && html` <button class="link" onClick=${() => show({ ...sides[n], id: step.call })}>#${step.call}</button>`}</p>
      <div class="text code">${parts ? parts.map((part, m) => html`<${Part} key=${m} part=${part} side=${n} />`) : same ? visible(textOf(step).slice(0, 600)) : html`<${n ? "ins" : "del"}>${visible(textOf(step).slice(0, 4000))}<//>`}</div>` : html`<p class="soft">nothing here</p>`}</div>`;
  const isPair = old?.call && now?.call && !same;
  return html`<div role="group" class=${"pair" + (same ? " same" : " differs") + (chosen ? " chosen" : "")} ref=${mark} tabindex=${same ? undefined : -1} aria-label=${same ? "equal" : told(row)}>
    ${side(old, 0)}${side(now, 1)}
    ${isPair && html`<p class="wide">${asked ? html`<${Requests} old=${old.call} now=${now.call} />` : html`<button class="link" onClick=${() => ask(true)}>how the requests differ</button>`}</p>`}</div>`;
}

const Part = ({ part, side }) => {
  if (part.left) return html`${visible(part.before)}<span class="soft"> … ${short(part.left)} equal characters … </span>${visible(part.after)}`;
  if (part.added) return side === 1 && html`<ins>${visible(part.value)}</ins>`;
  if (part.removed) return side === 0 && html`<del>${visible(part.value)}</del>`;
  return visible(part.value);
};

// Both requests, leaf by leaf.
function Requests({ old, now }) {
  const [one, other] = [useAsk("bodies", { id: old }), useAsk("bodies", { id: now })];
  const error = one.error || other.error;
  if (error) return html`<${Failure} error=${error} />`;
  if (!one.value || !other.value) return html`<span class="soft">reading …</span>`;
  const found = leaves(tree(one.value.request), tree(other.value.request), "$", []);
  return html`<span>${found.length ? `${counted(found.length, "place")} of the requests differ${found.length === 1 ? "s" : ""}` : "The requests are equal: the answer is another one."}</span>${found.map((change) => html`<${Change} key=${change.path} change=${change} />`)}`;
}

function tree(body) {
  try { return JSON.parse(body.text); } catch { return body.text ?? `(${body.base64?.length ?? 0} characters of base64)`; }
}

const isTree = (value) => value !== null && typeof value === "object";

export function leaves(old, now, path, found) {
  if (found.length >= CHANGES || old === now) return found;
  if (!isTree(old) || !isTree(now) || Array.isArray(old) !== Array.isArray(now)) {
    if (JSON.stringify(old) !== JSON.stringify(now)) found.push({ path, old, new: now });
    return found;
  }
  const names = Array.isArray(old) ? Array.from({ length: Math.max(old.length, now.length) }, (_, n) => n) : [...new Set([...Object.keys(old), ...Object.keys(now)])];
  for (const name of names) leaves(old[name], now[name], Array.isArray(old) ? `${path}[${name}]` : `${path}.${name}`, found);
  return found;
}
