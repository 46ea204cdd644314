// The page: which view the address means, and what all views share.
import { html, render, useState, useEffect, useLayoutEffect } from "./view.js";
import { given } from "./source.js";
import { Home, address } from "./home.js";
import { Recording } from "./recording.js";
import { Live } from "./live.js";
import { Compare } from "./compare.js";
import { Report } from "./report.js";
import { HELP, useKeys } from "./keys.js";

// "demo~2" -> {cassette, sample}
function named(text) {
  const [, cassette, sample] = /^(.*?)(?:~(\d+))?$/s.exec(decodeURIComponent(text));
  return { cassette, sample: Number(sample || 1) };
}

// "#/c/demo~2/12/time" -> {view, cassette, sample, id, tab}; "#/d/demo/demo~2" -> {view, old, now}
function read(hash) {
  const [, view, name, id, tab] = hash.replace(/^#/, "").split("/");
  if (view === "live" && given.live) return { view };
  if (view === "report" && given.report !== undefined) return { view, place: name === undefined ? undefined : Number(name) };
  if (view === "d" && name && id) return { view, old: named(name), now: named(id) };
  if (view !== "c" || !name) return given.start && view !== "home" ? read(given.start) : { view: "home" };
  return { view, ...named(name), id: id ? Number(id) : undefined, tab: tab || "said" };
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
  return html`<nav class="top" aria-label="pages"><a href=${given.report !== undefined ? "#/report" : "#/home"}>llmproxy</a>${given.report !== undefined && given.recordings && html`<a class="nav" href="#/report" aria-current=${route.view === "report"}>report</a><a class="nav" href="#/home" aria-current=${route.view !== "report"}>recordings</a>`}${given.live && html`<a class="nav" href="#/live" aria-current=${route.view === "live"}>live</a><a class="nav" href="#/home" aria-current=${route.view !== "live"}>recordings</a>`}<button class="link" onClick=${() => ask(!help)} aria-expanded=${help}>keys (?)</button></nav>
    ${help && html`<dl class="keys">${HELP.map(([key, about]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${about}</dd>`)}</dl>`}
    ${route.view === "live" ? html`<${Live} show=${show} />` : route.view === "report" ? html`<${Report} place=${route.place} show=${show} />` : route.view === "d" ? html`<${Compare} key=${address(route)} ...${route} show=${show} />` : route.view === "c" ? html`<${Recording} key=${route.cassette + "~" + route.sample} ...${route} show=${show} />` : html`<${Home} show=${show} />`}`;
}

render(html`<${Page} />`, document.getElementById("app"));
