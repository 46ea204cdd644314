// Values as people read them. Pure; what is unknown is said, never 0.

// Controls, marks that turn the direction of text, halves of surrogate pairs: shown as their numbers.
export const HALVES = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const UNSEEN = new RegExp(`[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff]|${HALVES.source}`, "g");

export const visible = (text) => text.replace(UNSEEN, (found) => "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0"));

export const counted = (n, one, many = one + "s") => `${number(n)} ${n === 1 ? one : many}`;

export const number = (n) => (n === null || n === undefined ? "?" : Math.round(n).toLocaleString("en"));

export function short(n) {
  if (n === null || n === undefined) return "?";
  if (n < 10000) return number(n);
  return n < 1e6 ? `${(n / 1000).toFixed(n < 1e5 ? 1 : 0)}k` : `${(n / 1e6).toFixed(1)}M`;
}

export function money(usd) {
  if (usd === null || usd === undefined) return "";
  if (usd === 0) return "$0";
  if (usd >= 1e9) return `$${usd.toPrecision(2)}`;
  return usd < 0.0001 ? `$${usd.toFixed(Math.min(1 - Math.floor(Math.log10(usd)), 100))}` : usd < 1 ? `$${usd.toFixed(4)}` : `$${usd.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  if (Math.round(ms) < 1000) return ms < 1 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`;
  if (Math.round(ms / 100) < 600) return `${(ms / 1000).toFixed(1)} s`;
  const whole = Math.round(ms / 1000);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(ms / 60000);
  return `${number(Math.floor(minutes / 60))} h ${minutes % 60} min`;
}

export function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

const two = (n) => String(n).padStart(2, "0");

export function clock(unix) {
  if (!unix) return "";
  const at = new Date(unix * 1000);
  if (Number.isNaN(at.getTime())) return "?";
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function day(unix) {
  if (!unix) return "";
  const at = new Date(unix * 1000);
  if (Number.isNaN(at.getTime())) return "?";
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export const when = (unix) => (unix ? `${day(unix)} ${clock(unix)}` : "");

// How long ago: "3 days".
export function ago(unix, now = Date.now() / 1000) {
  if (!unix) return "";
  const past = Math.max(0, now - unix);
  const found = [[86400, "day"], [3600, "hour"], [60, "minute"]].find(([size]) => past >= size);
  return found ? counted(Math.floor(past / found[0]), found[1]) : "just now";
}

// One line, cut: what stands in a list.
export function line(text, most = 300) {
  const flat = visible((text || "").slice(0, most * 2)).replace(/\s+/g, " ").trim();
  return flat.length > most ? flat.slice(0, most - 1) + "…" : flat;
}

// JSON as one reads it; anything else as it is.
export function pretty(text) {
  if (typeof text !== "string") return JSON.stringify(text, null, 2) ?? "";
  const first = text.trimStart()[0];
  if (first !== "{" && first !== "[") return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// The arguments of a tool on one line: name=value, ...
export function given(text) {
  try {
    const value = typeof text === "string" ? JSON.parse(text || "{}") : text;
    if (value && typeof value === "object" && !Array.isArray(value)) {
      return Object.entries(value).map(([name, one]) => `${name}=${JSON.stringify(one)}`).join(", ");
    }
  } catch { /* the model wrote no JSON */ }
  return typeof text === "string" ? text : JSON.stringify(text);
}

export const isFailed = (call) => call.status >= 400 || call.ending !== "complete";

// A word for the shell, quoted where it has to be.
export const quoted = (text) => (/^[\w@%+=:,.\/-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`);

// The name of a session: sample 1 is not said, unless the cassette's own name ends like one.
export const session = (name, sample) => (sample === 1 && !/~[1-9]\d*$/.test(name) ? name : `${name}~${sample}`);
