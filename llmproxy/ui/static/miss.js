// A request that was never recorded: which recording is nearest, where it differs, what to type.
import { html } from "./view.js";
import { counted, visible } from "./format.js";
import { useAsk } from "./source.js";
import { Command, Copy, Failure, Fold, Text } from "./parts.js";
import { Change } from "./differences.js";

export function Miss({ row }) {
  const { value, error } = useAsk("miss", { at: row.at, session: row.session, key: row.key || "" });
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<p class="soft pad">reading …</p>`;
  const [first] = value.text.split("\n");
  return html`<section class="miss"><header class="facts"><h2>miss <span class="status bad">${row.status}</span></h2><p>${visible(first.replace(/^llmproxy: /, ""))}</p></header>
    ${value.places.length > 0 && html`<h3>${counted(value.places.length, "difference")} from the nearest recording, #${value.nearest}</h3>
      <p class="soft"><del>recorded</del> <ins>asked now</ins></p>
      ${value.places.map((place, n) => html`<${Change} key=${n} change=${place} />`)}`}
    <h3>What to do</h3>
    ${value.steps.map((step, n) => html`<${Step} key=${n} step=${step} />`)}
    ${value.suggestion && html`<h3>If that changes by itself</h3><${Command} about="into pyproject.toml, [tool.llmproxy.normalize]" text=${value.suggestion.toml} />`}
    <${Fold} title="what the client read"><${Text} code text=${value.text} /><${Copy} text=${visible(value.text)} /><//>
  </section>`;
}

// Why, and what to type.
function Step({ step }) {
  return step.commands.length ? html`<${Command} about=${visible(step.about)} text=${step.commands.join("\n")} />` : html`<p>${visible(step.about)}</p>`;
}
