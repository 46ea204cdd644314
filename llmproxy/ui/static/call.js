// One call: the conversation as a person reads it, what changed since the call before, bytes, time, and what to type.
import { html, useEffect, useRef } from "./view.js";
import { ago, duration, money, number, size, when, visible, counted, isFailed } from "./format.js";
import { askOnce, useAsk, given } from "./source.js";
import { Text, Code, Fold, Tabs, Failure, Command, Whole } from "./parts.js";
import { Message } from "./message.js";
import { Change } from "./differences.js";
import { Chunks } from "./waterfall.js";
import { commands } from "./commands.js";

export const TABS = [["said", "Conversation"], ["changed", "What changed"], ["time", "Time"], ["bytes", "Bytes"], ["use", "Use it"]];

export function Call({ id, tab, choose, go }) {
  const { value: call, error, late } = useAsk("call", { id });
  const top = useRef();
  useEffect(() => { top.current?.scrollIntoView({ block: "start" }); }, [id, tab]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!call) return html`<p class="soft pad">reading …</p>`;
  const View = VIEWS[tab] || Said;
  return html`<div class=${late ? "call late" : "call"} ref=${top}>
    <${Facts} call=${call} go=${go} />
    <${Tabs} tabs=${TABS} chosen=${tab} choose=${choose} label="views of this call" />
    <div class="panel" id="panel" role="tabpanel" aria-labelledby=${"tab-" + tab}><${Whole} key=${`${id} ${tab}`}><${View} call=${call} go=${go} /><//></div>
  </div>`;
}

function Facts({ call, go }) {
  const { usage } = call;
  const tokens = usage.input === null && usage.output === null ? "" : `${number(usage.input)} → ${number(usage.output)} tokens`;
  const more = [usage.cached && `${number(usage.cached)} cached`, usage.cache_written && `${number(usage.cache_written)} written to the cache`, usage.reasoning && `${number(usage.reasoning)} reasoning`].filter(Boolean).join(", ");
  return html`<header class="facts">
    <h2>call #${call.id} <span class=${"status " + (isFailed(call) ? "bad" : "good")}>${call.status}${call.ending !== "complete" ? ` ${call.ending}` : ""}</span></h2>
    <p>${[call.party, `${call.provider} ${call.operation}`, call.model, call.stream && "streamed"].filter(Boolean).map(visible).join(" · ")}</p>
    <p class="soft">${[when(call.at), call.recorded_at > call.at ? `asked again ${when(call.recorded_at)}` : "", call.recorded_at && `${ago(call.recorded_at)} old`, call.timing && duration(call.timing.last), tokens && tokens + (more ? ` (${more})` : ""), money(call.cost) || (tokens && "price unknown"), call.occurrence > 1 && `number ${call.occurrence} of this request`, call.redacted && "a secret was taken out of the answer"].filter(Boolean).join(" · ")}</p>
    ${(call.client || call.answered_by) && html`<p class="soft">${[call.client && `asked by ${visible(call.client)}`, call.answered_by && `answered by ${visible(call.answered_by)}`].filter(Boolean).join(" · ")}</p>`}
    ${call.error && html`<p class="why">${visible(call.error)}</p>`}
    ${call.retry && html`<p class="soft">asked again after <button class="link" onClick=${() => go(call.previous)}>#${call.previous}</button> failed</p>`}
  </header>`;
}

function Said({ call, go }) {
  if (call.frames) return html`<${Frames} frames=${call.frames} />`;
  const names = toolNames(call.messages);
  const system = call.messages.filter((message, n) => message.role === "system" && n < 3);
  const known = call.messages.slice(0, call.known).filter((message) => !system.includes(message));
  const fresh = call.messages.slice(call.known).filter((message) => !system.includes(message));
  return html`${system.map((message, n) => html`<${Message} key=${"s" + n} message=${message} />`)}
    ${call.tools.length > 0 && html`<${Tools} tools=${call.tools} />`}
    ${known.length > 0 && html`<${Fold} kind="before" title=${html`<b>said before</b> <span class="soft">${counted(known.length, "message")}, sent again</span>`}>
      ${known.map((message, n) => html`<${Message} key=${n} message=${message} results=${resultsIn(call.messages)} names=${names} open=${false} />`)}<//>`}
    <h3>${call.previous ? html`New in this request <span class="soft">since <button class="link" onClick=${() => go(call.previous)}>#${call.previous}</button></span>` : "Asked"}</h3>
    ${fresh.map((message, n) => html`<${Message} key=${n} message=${message} names=${names} />`)}
    ${fresh.length === 0 && (call.messages.length ? html`<p class="soft">nothing: the same conversation once more</p>` : html`<${Body} id=${call.id} side="request" />`)}
    <h3>Answered</h3>
    ${call.answer ? html`<${Message} message=${call.answer} results=${new Map(Object.entries(call.results))} go=${go} />` : html`<${Body} id=${call.id} side="response" />`}
    ${call.finish.length > 0 && html`<p class="soft">finished: ${call.finish.map(visible).join(", ")}</p>`}`;
}

// Names of tools by the ids of their calls.
const toolNames = (messages) => new Map(messages.flatMap((each) => each.calls || []).map((each) => [each.id, each.name]));

// Results that stand in the history itself, by the id of their call.
const resultsIn = (messages) => new Map(messages.filter((each) => each.role === "tool" && each.of).map((each) => [each.of, { text: each.text }]));

const Frames = ({ frames }) => html`<h3>Messages of the WebSocket</h3><ol class="frames">${frames.slice(0, 2000).map((text, n) => html`<li key=${n} class="text code">${visible(text)}</li>`)}</ol>
  ${frames.length > 2000 && html`<p class="soft">and ${number(frames.length - 2000)} more: llmproxy show</p>`}`;

const Tools = ({ tools }) => html`<${Fold} kind="tools" title=${html`<b>${counted(tools.length, "tool")} offered</b> <span class="soft">${tools.slice(0, 12).map((each) => visible(each.name)).join(", ")}</span>`}>
  <dl class="given">${tools.map((each, n) => html`<dt key=${n}>${visible(each.name)}</dt><dd><${Text} text=${each.about} most=${400} /></dd>`)}</dl><//>`;

// A body that is no conversation.
function Body({ id, side }) {
  const { value, error } = useAsk("bodies", { id });
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return null;
  const body = value[side];
  return body.text === undefined ? html`<p class="soft">${size((body.base64.length * 3) / 4)} that are no text</p>` : body.text ? html`<${Code} text=${body.text} />` : html`<p class="soft">(an empty body)</p>`;
}

function Changed({ call, go }) {
  if (!call.previous) return html`<p class="soft">Nothing came before it: this call begins a conversation.</p>`;
  const added = call.messages.length - call.known;
  const names = toolNames(call.messages);
  return html`<p>Since <button class="link" onClick=${() => go(call.previous)}>#${call.previous}</button>: ${counted(added, "new message")}${call.changes.length ? `, and ${counted(call.changes.length, "other difference")}` : "; everything else is the same"}.</p>
    ${call.changes.length > 0 && html`<h3>Different</h3>`}${call.changes.map((change, n) => html`<${Change} key=${n} change=${change} />`)}
    ${added > 0 && html`<h3>New</h3>`}${call.messages.slice(call.known).map((message, n) => html`<${Message} key=${n} message=${message} names=${names} />`)}`;
}

function Time({ call }) {
  const { timing } = call;
  if (!timing) return html`<p class="soft">No times were recorded: another program made this recording.</p>`;
  const moments = [["head", timing.head, "head"], ["first byte", timing.first], ["first token", timing.token, "token"], ["last byte", timing.last]];
  return html`<dl class="times">${moments.map(([name, ms, drawn]) => ms !== null && html`<div key=${name}><dt class=${drawn && `at-${drawn}`}>${name}</dt> <dd>${duration(ms)}</dd></div>`)}</dl>
    <${Chunks} timing=${timing} />`;
}

function Bytes({ call }) {
  const { value, error } = useAsk("bodies", { id: call.id });
  if (error) return html`<${Failure} error=${error} />`;
  return html`${["request", "response"].map((side) => html`<section key=${side}>
    <h3>${side} <span class="soft">${size(call[side].bytes)}</span></h3>
    <p class="soft mono">${side === "request" ? `${visible(call.method)} ${visible(call.upstream)}${visible(call.target)}` : `${call.status} ${visible(call.reason)}`}</p>
    <${Fold} title=${counted(call[side].headers.length, "header field")}><dl class="given">${call[side].headers.map(([name, text], n) => html`<dt key=${n}>${visible(name)}</dt><dd class="mono">${visible(text)}</dd>`)}</dl><//>
    ${value && (value[side].text !== undefined ? html`<${Text} code text=${value[side].text} /><${Readable} text=${value[side].text} />` : html`<${Text} code text=${value[side].base64} />`)}
  </section>`)}`;
}

const Readable = ({ text }) => (/^\s*[[{]/.test(text) ? html`<${Fold} title="the same, indented"><${Code} text=${text} most=${20000} /><//>` : null);

function Use({ call }) {
  const { value } = useAsk("bodies", { id: call.id });
  const { value: placed } = useAsk("place", { id: call.id });
  return html`${commands(call, value, given, placed?.place).map(([about, text], n) => html`<${Command} key=${n} about=${about} text=${text} />`)}`;
}

const VIEWS = { said: Said, changed: Changed, time: Time, bytes: Bytes, use: Use };

// Read ahead, so that stepping through shows at once.
export const ahead = (id) => id && askOnce("call", { id }).catch(() => undefined);
