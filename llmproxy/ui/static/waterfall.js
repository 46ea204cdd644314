// Time: the strip of a whole recording, the bar of one call, the chunks of a stream.
import { html, useMemo } from "./view.js";
import { clock, duration, size, visible } from "./format.js";

const PAUSE = 0.04;  // what a long pause takes of the width, however long it was

// Where on the width each moment stands: long pauses, in which nothing was asked, are folded, so that calls stay visible.
export function scale(strip) {
  const spans = strip.map(([, at, ms]) => [at * 1000, at * 1000 + (ms || 0)]).sort((a, b) => a[0] - b[0]);
  const busy = [];
  for (const [from, to] of spans) {
    const last = busy[busy.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else busy.push([from, to]);
  }
  const working = busy.reduce((sum, [from, to]) => sum + to - from, 0) || 1;
  const gaps = busy.slice(1).map(([from], n) => from - busy[n][1]);
  const most = working * PAUSE;
  const folded = gaps.map((gap) => Math.min(gap, most));
  const whole = working + folded.reduce((sum, gap) => sum + gap, 0);
  const marks = [];
  let place = 0;
  busy.forEach(([from, to], n) => {
    marks.push({ from, to, place });
    place += to - from + (folded[n] || 0);
  });
  const position = (ms) => {
    let low = 0;
    let high = marks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (marks[middle].from <= ms) low = middle;
      else high = middle - 1;
    }
    const mark = marks[low];
    return mark ? (mark.place + Math.max(0, Math.min(ms, mark.to) - mark.from)) / whole : 0;
  };
  const pauses = gaps.map((gap, n) => ({ gap, from: position(busy[n][1]), to: position(busy[n + 1][0]) })).filter(({ gap }) => gap > most);
  return { position, pauses, busy, working };
}

const STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600];

// [{at, text}]: moments of the axis, in time since the first call; none in pauses, none upon another.
function ticked({ position, busy, working }) {
  const wished = working / 8;
  const small = 10 ** Math.floor(Math.log10(Math.max(wished, 1)));
  const step = wished < 1000 ? small * [1, 2, 5, 10].find((each) => small * each >= wished) : 1000 * (STEPS.find((each) => each * 1000 >= wished) || Math.ceil(wished / 3.6e6) * 3600);
  const begun = busy[0][0];
  const found = [];
  for (const [from, to] of busy) {
    const inside = [];
    for (let past = Math.ceil((from - begun) / step) * step; begun + past <= to; past += step) inside.push(past);
    if (!inside.length) inside.push(from - begun);  // of each time of work at least its beginning
    for (const past of inside) {
      const at = position(begun + past);
      if (at < 0.96 && (!found.length || at - found.at(-1).at > 0.07)) found.push({ at, text: past ? duration(past) : "0" });
    }
  }
  return found;
}

const percent = (part) => `${(part * 100).toFixed(3)}%`;

export function Strip({ strip, chosen, choose }) {
  const { places, drawn, height, ticks, parties } = useMemo(() => drawnStrip(strip), [strip]);
  const to = (event) => event.target.dataset.id && choose(Number(event.target.dataset.id));
  return html`<section class="time" aria-label="The calls in time; long pauses are folded. The list below holds the same.">
    <div class="strip" style=${{ height: `${height}px` }} onClick=${to}>${drawn}${places.has(chosen) && html`<span class="mark" style=${places.get(chosen)}></span>`}</div>
    <div class="axis soft">${ticks.map(({ at, text }) => html`<span key=${at} style=${{ left: percent(at) }}>${text}</span>`)}${parties.length > 1 && html`<span class="legend">${parties.map((party) => html`<i key=${party} class=${colour(party)}></i>${visible(party)} `)}</span>`}</div></section>`;
}

// Who asked: of a second judge as of the first.
const colour = (party) => `by-${{ agent: "agent", user: "user", judge: "judge" }[party.split(".")[0]] || "other"}`;

// What the strip holds, made once: stepping from call to call moves the mark alone.
function drawnStrip(strip) {
  const scaled = scale(strip);
  const { position, pauses } = scaled;
  const lanes = laned(strip);
  const height = Math.max(1, lanes.count);
  const places = new Map(strip.map(([id, at, ms], n) => {
    const from = position(at * 1000);
    const width = position(at * 1000 + (ms || 0)) - from;
    return [id, { left: percent(from), width: `max(3px, ${percent(width)})`, top: percent(lanes.of[n] / height), height: `calc(${percent(1 / height)} - 1px)` }];
  }));
  const drawn = html`<div>${pauses.map((each, n) => html`<span key=${"p" + n} class="pause" title=${`pause of ${duration(each.gap)}`} style=${{ left: percent(each.from), width: percent(each.to - each.from) }}><span>${duration(each.gap)}</span></span>`)}
    ${strip.map(([id, at, ms, first, failed, party = "agent", model = ""], n) => html`<span key=${id} class=${`span ${colour(party)}${failed ? " failed" : ""}`} data-id=${id} style=${places.get(id)}
      title=${visible([`call ${n + 1}, #${id}`, party, model, clock(at), duration(ms), first && `first byte after ${duration(first)}`, failed && "failed"].filter(Boolean).join("\n"))}>${parseFloat(places.get(id).width.slice(9)) > 7 && visible(model)}</span>`)}</div>`;
  return { places, drawn, height: Math.max(24, height * 16), ticks: ticked(scaled), parties: [...new Set(strip.map(([, , , , , party = "agent"]) => party))].sort() };
}

// Calls that ran at the same time stand below each other.
export function laned(strip, most = 6) {
  const ends = [];
  const of = strip.map(([, at, ms]) => {
    const free = ends.findIndex((end) => end <= at * 1000);
    const lane = free >= 0 ? free : Math.min(ends.length, most - 1);
    ends[lane] = at * 1000 + (ms || 0);
    return lane;
  });
  return { of, count: Math.min(ends.length, most) };
}

// The bar of one call in a list: waiting pale, answering full.
export function Bar({ row, position }) {
  if (!position || row.ms === null) return null;
  const from = position(row.at * 1000);
  const first = position(row.at * 1000 + (row.first || 0));
  const to = position(row.at * 1000 + row.ms);
  return html`<span class="bars" aria-hidden="true"><span class="bar" style=${{ left: percent(from), width: `max(2px, ${percent(to - from)})` }}>
    <span style=${{ left: percent(to > from ? (first - from) / (to - from) : 0) }}></span></span></span>`;
}

// The chunks of one answer: when each came, and how much of the whole was there.
export function Chunks({ timing }) {
  const { chunks, last, head, token } = timing;
  const total = chunks.reduce((sum, [, bytes]) => sum + bytes, 0) || 1;
  let sum = 0;
  const steps = chunks.map(([ms, bytes]) => {
    sum += bytes;
    return [(ms / (last || 1)) * 1000, 100 - (sum / total) * 96];
  });
  const path = steps.map(([x, y], n) => `${n ? "" : `M ${x.toFixed(1)} 100 `}H ${x.toFixed(1)} V ${y.toFixed(1)}`).join(" ");
  const mark = (ms, text) => ms !== null && html`<line x1=${(ms / (last || 1)) * 1000} x2=${(ms / (last || 1)) * 1000} y1="0" y2="100" class=${text} vector-effect="non-scaling-stroke" />`;
  return html`<figure class="chunks">
    <svg viewBox="0 0 1000 104" preserveAspectRatio="none" role="img" aria-label=${`${timing.count} chunks in ${duration(last)}`}>
      <path d=${path + " H 1000 V 100 Z"} class="area" />
      ${chunks.length <= 400 && steps.map(([x], n) => html`<line key=${n} x1=${x} x2=${x} y1="96" y2="104" class="tick" vector-effect="non-scaling-stroke" />`)}
      ${mark(head, "head")}${mark(token, "token")}
    </svg>
    <figcaption><span>0</span><span>${timing.count} ${timing.count === 1 ? "chunk" : "chunks"}, ${size(total)}</span><span>${duration(last)}</span></figcaption>
  </figure>`;
}
