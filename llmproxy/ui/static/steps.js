// What happened, on one screen: asked, done, answered.
import { html, useMemo, useRef } from "./view.js";
import { counted, duration, given as onOneLine, line, visible } from "./format.js";
import { given, useAsk } from "./source.js";
import { Code, Command, Failure, Fold, Text, useGrowing } from "./parts.js";
import { commandsOf } from "./commands.js";

const NONE = [];

export function Steps({ cassette, sample, go }) {
  const { value, error } = useAsk("steps", { cassette, sample });
  const to = useRef();
  to.current = go;
  const nested = useMemo(() => nest(value?.steps || NONE), [value]);
  const drawn = useGrowing(nested, (each, n) => html`<${Nested} key=${n} each=${each} go=${(id) => to.current(id)} />`);
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<p class="soft pad">reading …</p>`;
  const { steps, calls, of } = value;
  return html`<section class="steps" aria-label="what happened">
    ${steps.length === 0 && html`<p class="soft">No conversation was recorded here: the list holds what was asked.</p>`}
    ${drawn}
    ${drawn.length === nested.length && html`<${Fold} title=${html`<b>use this recording</b> <span class="soft">read, share, replay, test it</span>`}>${commandsOf({ cassette, sample }, given).map(([about, text], n) => html`<${Command} key=${n} about=${about} text=${text} />`)}<//>`}
    ${calls < of && html`<p class="soft">These are the first ${counted(calls, "call")} of ${counted(of, "call")}; the list holds all.</p>`}
  </section>`;
}

// Steps of a sub-agent stand inside of what called it: [step, [step, step], step].
export function nest(steps, depth = 0) {
  const found = [];
  for (let n = 0; n < steps.length; n++) {
    if (steps[n].depth <= depth) {
      found.push(steps[n]);
      continue;
    }
    const from = n;
    while (n + 1 < steps.length && steps[n + 1].depth > depth) n += 1;
    found.push(nest(steps.slice(from, n + 1), depth + 1));
  }
  return found;
}

function Nested({ each, go }) {
  if (!Array.isArray(each)) return html`<${Step} step=${each} go=${go} />`;
  const inside = each.flat(Infinity);
  const asked = inside.find(({ kind }) => kind === "user");
  return html`<${Fold} kind="inside" open title=${html`<b>sub-agent</b> <span class="soft">${counted(inside.length, "step")}${asked && ` · ${line(asked.text, 100)}`}</span>`}>${each.map((one, n) => html`<${Nested} key=${n} each=${one} go=${go} />`)}<//>`;
}

const HEADS = { user: "asked", answer: "answered", says: "said", failed: "failed", call: "called" };

function Step({ step, go }) {
  const to = step.call && html`<button class="link to" onClick=${() => go(step.call)} aria-label=${`open call ${step.call}`}>#${step.call}</button>`;
  if (step.kind === "tool") return html`<div class="step tool"><details><summary><span class="head">did</span>
      <span class="does"><span class="name">${visible(step.name || "(no name)")}</span> <span class="soft">${line(onOneLine(step.given), 140)}</span></span>
      <span class="returns">${step.result === null ? html`<span class="soft">no result seen</span>` : line(step.result, 140)}</span>
      <span class="soft">${duration(step.ms)}</span></summary>
    <${Code} text=${step.given} /><p class="soft">returned</p><${Code} text=${step.result || ""} /></details>${to}</div>`;
  return html`<div class=${"step " + step.kind}><span class="head">${HEADS[step.kind]}</span>
    <${Text} text=${(step.text || "(nothing)") + (step.again ? " (asked again)" : "")} most=${1500} />${to}</div>`;
}
