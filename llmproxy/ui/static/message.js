// One message of a conversation: its words, its thoughts, the tools it calls with what they answered, its pictures.
import { html } from "./view.js";
import { line, size, given, visible } from "./format.js";
import { Text, Code, Fold, Media } from "./parts.js";

const NAMES = { system: "system prompt", user: "user", assistant: "assistant", tool: "tool result" };

const NONE = new Map();

export function Message({ message, results = NONE, names = NONE, go, open = true }) {
  const { role, text, sent, reasoning, calls, of, media } = message;
  if (role === "system") return html`<${System} text=${text} />`;
  return html`<article class=${"message " + role} aria-label=${NAMES[role] || role}>
    <header>${NAMES[role] || visible(role)}${of && html` of <b>${visible(names.get(of) || of)}</b>`}</header>
    ${reasoning && html`<${Fold} kind="thought" title=${html`thought <span class="soft">${line(reasoning, 90)}</span>`}><${Text} text=${reasoning} /><//>`}
    ${text && (role === "tool" ? html`<${Code} text=${text} most=${open ? 1200 : 300} />` : html`<${Text} text=${text} />`)}
    ${sent && html`<${Fold} title=${html`${text ? "with what the client wrote around it" : "written by the client"} <span class="soft">${size(sent.length)}</span>`}><${Text} text=${sent} /><//>`}
    ${media && html`<${Media} media=${media} />`}
    ${(calls || []).map((call, n) => html`<${ToolCall} key=${n} call=${call} result=${results.get(call.id) || results.get(call.name)} go=${go} />`)}
    ${!text && !sent && !calls && !media && !reasoning && html`<p class="soft">(nothing)</p>`}
  </article>`;
}

export const System = ({ text }) => html`<${Fold} kind="system" title=${html`<b>system prompt</b> <span class="soft">${size(text.length)} · ${line(text, 120)}</span>`}><${Text} text=${text} /><//>`;

function ToolCall({ call, result, go }) {
  const answered = call.output ?? result?.text;
  return html`<div class="toolcall">
    <p class="does"><span class="name">${visible(call.name || "(no name)")}</span>${call.hosted && html` <span class="tag">run by the provider</span>`}${call.pending && html` <span class="tag">waits for approval</span>`}</p>
    <${Arguments} text=${call.arguments} />
    ${answered !== undefined && answered !== null
      ? html`<div class="result"><span class="soft">${call.failed ? "failed" : "returned"}${result && go && html` <button class="link" onClick=${() => go(result.in)}>in the next call</button>`}</span><${Code} text=${answered} most=${1200} /></div>`
      : html`<p class="soft">no result in this recording</p>`}
  </div>`;
}

// Arguments as one reads them: long texts as texts, the rest as JSON.
function Arguments({ text }) {
  let value;
  try { value = JSON.parse(text); } catch { value = null; }
  const isPlain = value && typeof value === "object" && !Array.isArray(value);
  if (!isPlain) return text ? html`<${Code} text=${text} />` : null;
  const entries = Object.entries(value);
  const isShort = given(value).length < 100 && !entries.some(([, one]) => typeof one === "string" && one.includes("\n"));
  if (isShort) return html`<div class="text code">${visible(given(value))}</div>`;
  return html`<dl class="given">${entries.map(([name, one]) => html`<dt key=${name}>${visible(name)}</dt><dd><${Code} text=${typeof one === "string" ? one : JSON.stringify(one)} most=${1500} /></dd>`)}</dl>`;
}
