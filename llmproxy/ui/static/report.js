// A report of tests: overview with failures first, then each run: what was checked with what was seen, the judge's findings with their evidence
// marked in the conversation, and what to type.
import { html, useEffect, useMemo, useRef, useState } from "./view.js";
import { counted, duration, given as onOneLine, line, money, number, pretty, session, visible, when } from "./format.js";
import { ask, given, label } from "./source.js";
import { Code, Command, Failure, Fold, Text } from "./parts.js";
import { useKeys } from "./keys.js";

const NAMES = { passed: "passed", failed: "failed", agent_error: "agent error", environment_error: "environment error", skipped: "skipped", flaky: "flaky", running: "running" };
const SHORT = { passed: "✓", agent_error: "agent", environment_error: "env.", skipped: "–" };  // where many stand side by side
const ORDER = ["agent_error", "failed", "environment_error", "flaky", "running", "skipped", "passed"];
const LABELS = ["passed", "failed", "inconclusive"];
const WORST = ["failed", "inconclusive", "passed"];
const SAID = { true: "passes", false: "fails", null: "goes on" };

const Mark = ({ of }) => html`<span class=${"status is-" + of} role="img" aria-label=${NAMES[of] || of} title=${NAMES[of] || of}>${SHORT[of] || NAMES[of] || visible(of)}</span>`;

const Status = ({ of }) => html`<span class=${"status is-" + of}>${NAMES[of] || visible(of)}</span>`;

const words = new WeakMap();  // what is looked through for a word; made when one is typed

function textOfScenario(scenario) {
  if (!words.has(scenario)) words.set(scenario, JSON.stringify(scenario).toLowerCase());
  return words.get(scenario);
}

export function Report({ report, error, place, show }) {
  const [find, seek] = useState("");
  const [only, choose] = useState("");
  const input = useRef();
  const all = report?.scenarios || [];
  const ranked = useMemo(() => [...all].sort((a, b) => ORDER.indexOf(a.status) - ORDER.indexOf(b.status) || a.n - b.n), [report]);
  const listed = ranked.filter((each) => (!only || each.status === only) && (!find || textOfScenario(each).includes(find.toLowerCase())));
  const at = all.find((each) => each.n === place) || null;
  const to = (n) => show({ report: true, place: n });
  const ended = report && !report.running;
  useEffect(() => {  // whoever asked for no place in it: the first failure
    const bad = ended && !/^#\/report/.test(location.hash) && ranked.find((each) => !["passed", "skipped"].includes(each.status));
    if (bad) location.replace(`#/report/${bad.n}`);
  }, [ended]);
  const step = (by) => {
    const from = listed.indexOf(listed.find((each) => each.n === place));
    const next = listed[from < 0 ? (by > 0 ? 0 : listed.length - 1) : Math.max(0, Math.min(listed.length - 1, from + by))];
    if (next) to(next.n);
  };
  useKeys({ j: () => step(1), k: () => step(-1), "/": () => input.current?.focus(), f: () => choose(only === "failed" ? "" : "failed"), Escape: () => (find ? seek("") : to(undefined)) });
  if (error && !report) return html`<${Failure} error=${error} />`;
  if (!report) return html`<p class="soft pad">reading …</p>`;
  return html`<div class="recording report"><${Head} report=${report} />${error && html`<${Failure} error=${error} />`}
    <main class=${"split" + (at ? "" : " listed")}>
      <nav class="left" aria-label="scenarios">
        <div class="tools"><input ref=${input} type="search" placeholder="find (/)" aria-label="find in scenarios, conversations and checks" value=${find} onInput=${(event) => seek(event.currentTarget.value)} /></div>
        <div class="tools chips" role="group" aria-label="show only">${ORDER.filter((status) => all.some((each) => each.status === status)).map((status) => html`
          <button key=${status} aria-pressed=${only === status} class=${"is-" + status} onClick=${() => choose(only === status ? "" : status)}>${all.filter((each) => each.status === status).length} ${NAMES[status]}</button>`)}</div>
        ${!at && html`<p class="tools narrow">${[["matrix", matrices(all).length > 0], ["trend", report.trend?.length > 1]].map(([name, is]) => is && html`<button key=${name} onClick=${() => document.getElementById(name).scrollIntoView()}>${name}</button>`)}</p>`}
        <ul class="scenarios">${listed.map((each) => html`<li key=${each.n}><button class="scenario" aria-current=${each.n === place} onClick=${() => to(each.n)}>
          <span class="name">${visible(each.name)}</span> <${Status} of=${each.status} /><span class="soft">${[each.suite, each.runs.length > 1 && counted(each.runs.length, "run"), rate(each, report)].filter(Boolean).map(visible).join(" · ")}</span>
          ${each.status !== "passed" && html`<span class=${each.status === "skipped" ? "soft" : "why"}>${line(whyOf(each), 140)}</span>`}</button></li>`)}</ul>
        ${listed.length === 0 && html`<p class="soft pad">${all.length ? "No scenario is like that." : report.running ? "None has begun yet." : "Nothing was run."}</p>`}
      </nav>
      <section class="right" aria-label="what is chosen">
        <p class="switch"><button onClick=${() => to(undefined)}>all ${counted(all.length, "scenario")}</button></p>
        ${at ? html`<${Scenario} key=${at.n} scenario=${at} show=${show} />` : html`<${Overview} report=${report} all=${all} to=${to} />`}
      </section>
    </main></div>`;
}

// Why the first run that did not pass did not.
function whyOf(scenario) {
  const run = scenario.runs.find((each) => each.status !== "passed");
  if (!run) return "";
  const failed = run.parts.flatMap((part) => part.assertions || []).find((each) => each.status !== "passed");
  return failed ? `${failed.name}: ${failed.message || failed.status}` : run.why || "";
}

// How many passed of those that say something about the agent, with the interval where it was worked out.
function rate(scenario, report) {
  const runs = scenario.runs.filter((each) => ["passed", "failed", "agent_error"].includes(each.status));
  if (scenario.runs.length < 2) return "";
  const interval = report.summary.find((row) => row.scenario === scenario.id)?.interval;
  const percent = (value) => `${Math.round(value * 100)}%`;
  return `${runs.filter((each) => each.status === "passed").length} of ${runs.length} passed${interval ? `, 95 %: ${percent(interval[0])} to ${percent(interval[1])}` : ""}`;
}

function Head({ report }) {
  const runs = report.scenarios.flatMap((each) => each.runs);
  const ended = report.running ? null : report.seconds === null ? report.at && "the test did not end" : duration(report.seconds * 1000);
  const many = report.running ? report.wanted : { scenarios: report.scenarios.length, runs: runs.length };
  const about = [(many.runs > 0 || !report.running) && `${counted(many.scenarios, "scenario")}, ${counted(many.runs, "run")}`, report.at && when(report.at), report.mode && `mode ${report.mode}`, ended, report.exit_code !== null && `exit code ${report.exit_code}`];
  return html`<header class="head"><h1>${visible(report.title || "tests")}</h1><p class="soft">${about.filter(Boolean).map(visible).join(" · ")}</p>${report.running && html`<${Progress} report=${report} runs=${runs} />`}
    ${report.notes.length > 0 && html`<ul class="notes">${report.notes.map((text, n) => html`<li key=${n}>${visible(text)}</li>`)}</ul>`}</header>`;
}

// How far a test is that runs.
export function Progress({ report, runs = report.scenarios.flatMap((each) => each.runs) }) {
  const over = runs.filter((run) => run.finished).length;
  const bad = runs.filter((run) => run.finished && run.status !== "passed" && run.status !== "skipped").length;
  if (!report.at) return html`<p class="progress" role="status">The test begins …</p>`;
  return html`<p class="progress"><progress max=${report.wanted.runs} value=${over} aria-label="runs that have ended"></progress>
    <span role="status">${over} of ${counted(report.wanted.runs, "run")} ended${bad ? html`, <b class="is-failed">${bad} not passed</b>` : ""}</span> <span class="soft"><${Since} at=${report.at} /></span></p>`;
}

// Seconds that go on by themselves.
function Since({ at }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const each = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(each);
  }, []);
  const seconds = Math.max(0, Math.round(Date.now() / 1000 - at));
  return at ? `for ${seconds < 60 ? `${seconds} s` : duration(seconds * 1000)}` : "";
}

// Cells of a matrix have names like "refund[gpt-4o, short]".
function matrices(all) {
  const found = new Map();
  for (const each of all) {
    const [, base, cell] = /^(.*)\[(.*)\]$/s.exec(each.name) || [];
    if (base) found.set(base, [...(found.get(base) || []), { ...each, cell }]);
  }
  return [...found].filter(([, cells]) => cells.length > 1);
}

function Overview({ report, all, to }) {
  const grids = matrices(all);
  const cells = [...new Set(grids.flatMap(([, each]) => each.map(({ cell }) => cell)))];
  const under = all.filter((each) => each.status === "running");
  const bad = all.filter((each) => !["passed", "skipped", "running"].includes(each.status));
  if (report.running) {
    if (!report.at) return null;
    return html`<h2 class="third">Under way</h2>${under.length === 0 && html`<p class="soft">Nothing at this moment.</p>`}<ul class="checks">${under.map((each) => html`<${UnderWay} key=${each.n} scenario=${each} to=${to} />`)}</ul>
      ${bad.length > 0 && html`<p>${counted(bad.length, "scenario")} already ${bad.length === 1 ? "needs" : "need"} a look: first in the list.</p>`}`;
  }
  return html`<p>${all.length === 0 ? (report.at ? "Nothing was run." : html`No test was run in this folder yet: <code>llmproxy test</code>`) : bad.length ? `${counted(bad.length, "scenario")} ${bad.length === 1 ? "needs a look: it is" : "need a look: they are"} first in the list.` : "Everything passed."}</p>
    ${grids.length > 0 && html`<h2 class="third" id="matrix">Matrix</h2><div class="wide"><table class="matrix"><thead><tr><th>scenario</th>${cells.map((cell) => html`<th key=${cell}>${visible(cell)}</th>`)}</tr></thead>
      <tbody>${grids.map(([base, own]) => html`<tr key=${base}><th>${visible(base)}</th>${cells.map((cell) => {
        const one = own.find((each) => each.cell === cell);
        return html`<td key=${cell} class=${one ? `at is-${one.status}` : ""}>${one && html`<button class=${"link is-" + one.status} onClick=${() => to(one.n)}>${one.runs.length > 1 ? rate(one, report).replace(" passed", "") : NAMES[one.status]}</button>`}</td>`;
      })}</tr>`)}</tbody></table></div>`}
    ${report.trend?.length > 1 && html`<${Trend} tests=${report.trend} all=${all} to=${to} />`}
    ${report.left?.length > 0 && html`<h2 class="third">Not in this file</h2>${report.left.map((each, n) => (each.command ? html`<${Command} key=${n} about=${each.told} text=${each.command} />` : html`<p key=${n}>${visible(each.told)}</p>`))}`}`;
}

// A scenario that runs: since when, and what was said last.
function UnderWay({ scenario, to }) {
  const run = scenario.runs.find((each) => !each.finished) || scenario.runs.at(-1);
  const last = run.parts.findLast((part) => part.event === "message");
  return html`<li><button class="link" onClick=${() => to(scenario.n)}>${visible(scenario.name)}</button>${run.started.runs > 1 && ` run ${run.started.sample} of ${run.started.runs}`} <span class="soft"><${Since} at=${run.started.at} /></span>
    ${last && html`<p><span class="soft">${visible(String(last.message.role || "?"))}</span> ${line(textOf(last.message.content), 200)}</p>`}</li>`;
}

// The last tests side by side, the newest at the right; what got worse since the one before comes first.
function Trend({ tests, all, to }) {
  const [whole, showWhole] = useState(false);
  const box = useRef();
  useEffect(() => { if (box.current) box.current.scrollLeft = box.current.scrollWidth; }, [tests]);  // where not all have room: the newest
  const bad = (status) => (status === undefined ? -1 : ORDER.length - ORDER.indexOf(status));
  const [before, last] = tests.slice(-2).map((test) => test.statuses);
  const worse = (each) => (before[each.id] && last[each.id] ? bad(last[each.id]) - bad(before[each.id]) : 0);
  const rows = all.filter((each) => tests.some((test) => test.statuses[each.id])).sort((a, b) => worse(b) - worse(a) || bad(last[b.id]) - bad(last[a.id]));
  const calm = (each) => worse(each) === 0 && tests.every((test) => [undefined, "passed"].includes(test.statuses[each.id]));
  const [told, rest] = [rows.filter((each) => !calm(each)), rows.filter(calm)];
  const shown = whole ? rows : told;
  return html`<h2 class="third" id="trend">The last ${counted(tests.length, "test")}</h2>${shown.length > 0 && html`<div class="wide" ref=${box}><table class="matrix"><thead><tr><th>scenario</th>${tests.map((test, n) => html`<th key=${n} class="when">${when(test.at).slice(5, 16)}</th>`)}<td></td></tr></thead>
    <tbody>${shown.map((each) => html`<tr key=${each.n}><th><button class="link" onClick=${() => to(each.n)}>${visible(each.name)}</button></th>
      ${tests.map((test, n) => html`<td key=${n}>${test.statuses[each.id] ? html`<${Mark} of=${test.statuses[each.id]} />` : ""}</td>`)}<td class="soft">${worse(each) > 0 ? "worse" : worse(each) < 0 ? "better" : ""}</td></tr>`)}</tbody></table></div>`}
    ${rest.length > 0 && html`<p class="soft">${counted(rest.length, "scenario")} passed every time. <button class="link" onClick=${() => showWhole(!whole)}>${whole ? "hide" : "show"}</button></p>`}`;
}

function Scenario({ scenario, show }) {
  const first = scenario.runs[0].started;
  return html`<header class="facts"><h2>${visible(scenario.name)} <${Status} of=${scenario.status} /></h2>
      ${first.description && html`<p><${Text} text=${first.description.trim()} most=${600} /></p>`}
      <p class="soft">${[scenario.id !== scenario.name && scenario.id, scenario.suite, first.place, ...(first.tags || [])].filter(Boolean).map(visible).join(" · ")}</p></header>
    ${scenario.runs.map((run) => html`<${Fold} key=${run.started.run_id} kind="run" open=${run.status !== "passed" || scenario.runs.length === 1}
      title=${html`${scenario.runs.length > 1 && html`<b>run ${run.started.sample} of ${run.started.runs}</b> `}<${Status} of=${run.status} /> <span class="soft">${taken(run)}</span>`}><${Run} run=${run} show=${show} /><//>`)}`;
}

function taken({ finished, status }) {
  if (status === "running") return "";
  if (!finished) return "did not end";
  const bound = finished.bound ? `${number(finished.bound)} bound: ${finished.bound_names.join(", ")}` : "";
  const carried = finished.carried ? `${number(finished.carried)} carried under ${finished.carried_names.join(", ")}` : "";
  const stale = finished.stale ? `${number(finished.stale)} older than its max age` : "";
  return [finished.total_seconds !== null && duration(finished.total_seconds * 1000), finished.agent_seconds !== null && `${duration(finished.agent_seconds * 1000)} in the agent`, finished.replayed && "replayed", bound, carried, stale, ...(finished.labels || [])].filter(Boolean).map(visible).join(" · ");
}

function criteriaOf(run) {
  if (run.finished?.criteria?.length) return run.finished.criteria;
  return run.parts.filter((part) => part.event === "verdict" && part.criteria?.length).at(-1)?.criteria || [];
}

function Run({ run, show }) {
  const criteria = [...criteriaOf(run)].sort((a, b) => WORST.indexOf(a.status) - WORST.indexOf(b.status));
  const quotes = criteria.filter((each) => each.evidence);
  return html`${run.why && html`<p class=${run.status === "passed" ? "soft" : "why"}><${Text} text=${run.why} most=${2000} /></p>`}
    ${criteria.length > 0 && html`<h3>Judged</h3><ul class="checks">${criteria.map((each, n) => html`<${Criterion} key=${n} criterion=${each} run=${run} />`)}</ul>`}
    <h3>What happened</h3>
    ${run.parts.map((part, n) => (part.event === "message" ? html`<${Said} key=${n} part=${part} quotes=${quotes} />` : part.event === "verdict" ? html`<${Verdict} key=${n} verdict=${part} />` : html`<${Checked} key=${n} step=${part} run=${run} show=${show} />`))}
    ${(run.finished?.misses || []).map((text, n) => html`<pre key=${n} class="text code miss">${visible(text)}</pre>`)}
    ${run.status === "running" && html`<p class="soft">… and it goes on, <${Since} at=${run.started.at} /></p>`}
    ${run.finished && html`<dl class="times">${Object.entries(run.finished.usage || {}).map(([party, use]) => html`<div key=${party}><dt>${visible(party)}</dt> <dd>${counted(use.calls, "call")}, ${number(use.input_tokens)} → ${number(use.output_tokens)} tokens, ${use.cost_usd === null ? "price unknown" : money(Number(use.cost_usd))}</dd></div>`)}</dl>`}
    ${(run.finished?.rerun || run.started.rerun) && html`<${Command} about="run only this again" text=${run.finished?.rerun || run.started.rerun} />`}`;
}

function Criterion({ criterion, run }) {
  const [said, say] = useState("");
  const [error, fail] = useState(null);
  const put = (text) => label({ run: run.started.run_id, criterion: criterion.text, label: text }).then(() => say(text), fail);
  return html`<li><span class=${"status is-" + criterion.status}>${visible(criterion.status)}</span> <${Text} text=${criterion.text} most=${400} />
    ${criterion.reason && html`<p class="soft"><${Text} text=${criterion.reason} most=${1500} /></p>`}
    ${criterion.evidence && html`<p><q>${visible(criterion.evidence)}</q></p>`}
    ${criterion.votes?.length > 1 && html`<p class="soft">votes: ${criterion.votes.map(visible).join(", ")}</p>`}
    ${given.labels && html`<p class="label" role="group" aria-label=${`what you say of: ${criterion.text}`}><span class="soft">${said ? "you say" : "what do you say?"}</span> ${LABELS.map((text) => html`<button key=${text} aria-pressed=${said === text} onClick=${() => put(text)}>${text}</button>`)}</p>`}
    ${error && html`<${Failure} error=${error} />`}</li>`;
}

const Verdict = ({ verdict }) => (verdict.reasoning ? html`<p class="soft"><b>${visible(verdict.judge || "judge")} ${SAID[verdict.success]}</b> ${visible(verdict.reasoning)}</p>` : null);

const textOf = (content) => (typeof content === "string" ? content : Array.isArray(content) ? content.map((part) => part?.text ?? `[${part?.type || "part"}]`).join("\n") : content ? JSON.stringify(content) : "");

// A text with what the judge quoted marked in it.
export function Marked({ text, quotes }) {
  const places = quotes.map((each) => ({ at: text.indexOf(each.evidence), each })).filter(({ at }) => at >= 0).sort((a, b) => a.at - b.at);
  const parts = [];
  let from = 0;
  for (const { at, each } of places) {
    if (at < from) continue;
    parts.push(visible(text.slice(from, at)), html`<mark class=${"is-" + each.status} title=${`evidence: ${visible(each.text)}`}>${visible(each.evidence)}</mark>`);
    from = at + each.evidence.length;
  }
  return html`<div class="text" dir="auto">${parts}${visible(text.slice(from))}</div>`;
}

function Said({ part, quotes }) {
  const { message } = part;
  const calls = part.tool_calls?.length ? part.tool_calls : (message.tool_calls || []).map((each) => ({ name: each.function?.name, arguments: each.function?.arguments }));
  const text = textOf(message.content);
  const role = String(message.role || "?");
  return html`<article class=${"message " + (["user", "assistant", "tool", "system"].includes(role) ? role : "")} aria-label=${role}><header>${[role, part.author, part.conversation, part.ms !== null && duration(part.ms)].filter(Boolean).map(visible).join(" · ")}</header>
    ${calls.map((each, n) => html`<div key=${n} class="toolcall"><p class="does"><span class="name">${visible(String(each.name))}</span> <span class="soft">${line(onOneLine(each.arguments ?? "{}"), 400)}</span></p>
      ${each.result !== undefined && each.result !== null && html`<div class="result"><${Code} text=${pretty(each.result)} most=${600} /></div>`}</div>`)}
    ${text && (text.length > 20000 ? html`<${Text} text=${text} />` : html`<${Marked} text=${text} quotes=${quotes} />`)}</article>`;
}

function Checked({ step, run, show }) {
  if (!step.assertions?.length && !step.message && step.status === "passed") return null;
  return html`<section class="checked"><h4>${visible(step.label || `${step.kind} ${step.index + 1}`)} <${Status} of=${step.status} /> <span class="soft">${step.ms !== null && duration(step.ms)}</span>
      ${step.interactions?.length > 0 && html` <span class="soft">on </span>${step.interactions.map((id) => html`<${Interaction} key=${id} id=${id} run=${run} show=${show} /> `)}`}</h4>
    ${step.message && html`<p class="why">${visible(step.message)}</p>`}
    ${step.assertions?.length > 0 && html`<ul class="checks">${[...step.assertions].sort((a, b) => (a.status === "passed") - (b.status === "passed")).map((each, n) => html`<${Assertion} key=${n} assertion=${each} run=${run} show=${show} />`)}</ul>`}</section>`;
}

// Opens the call where its recording is at hand: in this file as far as there was room, or at the server, where another store may have its number.
function Interaction({ id, run, show }) {
  const { cassette, sample } = run.started;
  const [error, fail] = useState(null);
  const inside = given.calls?.[id];
  if (!given.served) return inside?.cassette === cassette ? html`<button class="link" onClick=${() => show({ cassette, sample: inside.sample, id })}>#${id}</button>` : html`<code title=${`llmproxy show ${id}${given.store_words || ""}`}>#${id}</code>`;
  if (!cassette || given.recordings === false) return html`<code>#${id}</code>`;
  const open = async () => {
    const found = await ask("place", { id }).catch((refused) => ({ refused }));
    const known = named(run).get(id);
    const isIt = found.cassette === cassette && found.sample === sample && (!known || known.startsWith(`${found.recording}@`));
    if (isIt) show({ cassette, sample, id });
    else fail({ message: `The store that is shown here does not hold this call of ${session(cassette, sample)}.`, hint: "Look at the store of that test: llmproxy ui --store PATH" });
  };
  return html`<button class="link" onClick=${open}>#${id}</button>${error && html`<${Failure} error=${error} />`}`;
}

// What the calls of a run are called in every store, by their numbers.
const named = (run) => new Map(run.parts.flatMap((part) => {
  const names = (part.recordings || []).filter(Boolean);
  return (part.interactions || []).map((id, n) => [id, names[n]]);
}));

function Assertion({ assertion, run, show }) {
  const { name, status, message, expected, actual, evidence, where } = assertion;
  const on = /^interaction (\d+)/.exec(where || "");
  const words = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1) ?? "nothing");
  return html`<li><${Status} of=${status} /> <code>${visible(name)}</code> ${message && visible(message)}
    ${status !== "passed" && html`<dl class="given"><dt>expected</dt><dd><${Code} text=${words(expected)} most=${1500} /></dd><dt>seen</dt><dd><${Code} text=${words(actual)} most=${1500} /></dd></dl>`}
    ${(evidence || where) && html`<p class="soft">${evidence && `evidence: ${visible(evidence)} `}${on ? html`<${Interaction} id=${Number(on[1])} run=${run} show=${show} />` : visible(where || "")}</p>`}</li>`;
}
