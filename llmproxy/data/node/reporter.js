// What the run came to, in a line: hits, misses, what was recorded, and what somebody should look at although a test passed.
import { existsSync, readFileSync, rmSync } from "node:fs";
import { files } from "./proxy.js";

const LISTED = 5;
const INEXACT = { bound: "bound: ", carried: "carried under ", stale: "older than its max age" };

/** What the tests of this process's run came to, as lines; nothing where none of them asked a model. */
export function summary(file = files(process.pid).sums) {
  const done = read(file);
  rmSync(file, { force: true }); // of a watch run the next one begins anew
  if (!done.length) return [];
  const add = (name) => done.reduce((sum, each) => sum + (each[name] ?? 0), 0);
  const remarks = [...done.flatMap((each) => [...remarksOf(each)]), ...tooLate(done)];
  const lines = remarks.slice(0, LISTED);
  if (remarks.length > LISTED) lines.push(`... and ${remarks.length - LISTED} more`);
  const tests = new Set(done.map((each) => each.test).filter((test) => test.includes("::"))).size;
  const money = [price(add("cost_not_spent"), "not spent"), price(add("cost_spent"), "spent")].filter(Boolean).join(", ");
  const counts = `${hits(done, add)}, ${count(add("misses"), "miss", "misses")}, ${add("recorded")} recorded`;
  lines.push(`${count(tests, "test", "tests")}: ${counts}${money && `; ${money}`}`);
  if (add("misses")) lines.push("Record what is missing, with your keys: LLMPROXY_MODE=auto and the same command");
  return lines.map((line) => `llmproxy: ${line}`);
}

const count = (number, one, more) => `${number} ${number === 1 ? one : more}`;
const price = (cost, words) => cost && `$${cost.toFixed(cost < 0.0001 ? 1 - Math.floor(Math.log10(cost)) : 4)} ${words}`; // a small sum is not 0

/** Hits, and how many are not exact, as pytest has it: `38 hits (2 bound: date; 3 carried under system-3f2a)`. */
function hits(done, add) {
  const names = (kind) => [...new Set(done.flatMap((each) => each[`${kind}_names`] ?? []))].toSorted().join(", ");
  const how = Object.keys(INEXACT).filter((kind) => add(kind)).map((kind) => `${add(kind)} ${INEXACT[kind]}${names(kind)}`);
  return count(add("hits"), "hit", "hits") + (how.length ? ` (${how.join("; ")})` : "");
}

function read(file) {
  return (existsSync(file) ? readFileSync(file, "utf8") : "").trim().split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

function* remarksOf({ test, passed, failed, misses, miss_texts: texts, unused, unused_total: left }) {
  if (failed) yield `${test}: ${failed} answers could not be recorded: its cassette is incomplete`;
  if (passed && misses) yield `${test}: passed with ${misses} ${misses > 1 ? "misses" : "miss"}: ${texts[0]?.split("\n")[0].slice(0, 200) ?? ""}`;
  if (passed && left) yield `${test}: ${left} recorded but not asked for: ${unused.slice(0, 3).map((row) => `#${row.id}`).join(", ")}`;
}

function* tooLate(done) {
  const late = done.filter((each) => each.late).map((each) => each.test);
  for (const test of new Set(late)) yield `${test}: ${late.filter((each) => each === test).length} calls came after it had ended, and were refused`;
}

/** Print what this process's run came to. */
const print = () => process.stdout.write(summary().map((line) => `${line}\n`).join(""));

/** The reporter: vitest calls onTestRunEnd, Jest onRunComplete, Playwright onEnd. */
export default class Reporter {
  onTestRunEnd = print;
  onRunComplete = print;
  onEnd = print;

  printsToStdio = () => false;
}
