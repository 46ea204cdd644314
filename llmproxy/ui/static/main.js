// The page: which view the address means, and what all views share.
import { html, render, useState, useEffect, useLayoutEffect } from "./view.js";
import { given, useReport } from "./source.js";
import { Home, address } from "./home.js";
import { Recording } from "./recording.js";
import { Live } from "./live.js";
import { Compare } from "./compare.js";
import { Report } from "./report.js";
import { Whole } from "./parts.js";
import { HELP, useKeys } from "./keys.js";

// "demo~2" -> {cassette, sample}
function named(text) {
  const [, cassette, sample] = /^(.*?)(?:~(\d+))?$/s.exec(decodeURIComponent(text));
  return { cassette, sample: Number(sample || 1) };
}

// "#/c/demo~2/12/time" -> {view, cassette, sample, id, tab}; "#/d/demo/demo~2" -> {view, old, now}
function read(hash) {
  try {
    return meant(hash);
  } catch {  // no address of ours
    return { view: "home" };
  }
}

function meant(hash) {
  const [, view, name, id, tab] = hash.replace(/^#/, "").split("/");
  if (view === "live" && given.live) return { view, key: name };
  if (view === "report" && (given.report !== undefined || given.tests)) return { view, place: name === undefined ? undefined : Number(name) };
  if (view === "d" && name && id) return { view, old: named(name), now: named(id) };
  if (view !== "c" || !name) return given.start && view !== "home" ? meant(given.start) : { view: "home" };
  return { view, ...named(name), id: id ? Number(id) : undefined, tab: tab || "said" };
}

// What leads to the report says how far its test is.
function testsWord(report) {
  if (!report?.running) return "tests";
  const over = report.scenarios.flatMap((each) => each.runs).filter((run) => run.finished).length;
  return `tests (${over} of ${report.wanted.runs})`;
}

function Page() {
  const [route, set] = useState(() => read(location.hash));
  const [help, ask] = useState(false);
  useLayoutEffect(() => {
    const moved = () => set(read(location.hash));
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useKeys({ "?": () => ask(!help) });
  const show = (to) => {
    const hash = address(to);
    if (location.hash !== hash) location.hash = hash;
  };
  useEffect(() => { document.title = [route.cassette || (route.view === "d" && `${route.old.cassette} and ${route.now.cassette}`), "llmproxy"].filter(Boolean).join(" · "); }, [route.cassette]);
  const { report, error } = useReport();
  const pages = [
    given.live && ["live", "live"],
    (given.report !== undefined || report?.at || report?.running) && ["report", testsWord(report)],
    (given.report === undefined || given.recordings) && ["home", "recordings"],
  ].filter(Boolean);
  const here = pages.some(([view]) => view === route.view) ? route.view : "home";
  return html`<nav class="top" aria-label="pages"><a href=${`#/${pages[0][0]}`}>llmproxy</a>${pages.length > 1 && pages.map(([view, title]) => html`<a key=${view} class="nav" href=${`#/${view}`} aria-current=${view === here ? "page" : undefined}>${title}</a>`)}<button class="link" onClick=${() => ask(!help)} aria-expanded=${help}>keys (?)</button></nav>
    ${help && html`<section aria-label="keys"><dl class="keys">${HELP.map(([key, about]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${about}</dd></div>`)}</dl></section>`}
    <${Whole} key=${route.view}>${route.view === "live" ? html`<${Live} show=${show} report=${report} wanted=${route.key} />` : route.view === "report" ? html`<${Report} report=${report} error=${error} place=${route.place} show=${show} />` : route.view === "d" ? html`<${Compare} key=${address(route)} ...${route} show=${show} />` : route.view === "c" ? html`<${Recording} key=${route.cassette + "~" + route.sample} ...${route} show=${show} />` : html`<${Home} show=${show} />`}<//>`;
}

render(html`<${Page} />`, document.getElementById("app"));
