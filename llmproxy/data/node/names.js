// Names of cassettes, modes, and what is true of this run only: as the pytest plugin has them, so that recordings are exchanged.
import { createHash } from "node:crypto";
import { existsSync, realpathSync } from "node:fs";
import os from "node:os";
import path from "node:path";

const SLUG = 90;
const MODES = { replay: "replay", once: "once", auto: "auto", record: "record", passthrough: "passthrough" };
const VCR_MODES = { none: "replay", new_episodes: "auto", all: "record" };
export const OFFLINE = ["replay"];
const UPDATES = { all: "record", changed: "replay", trial: "replay" };

/** The cassette of a test: readable, and unique by 8 hex digits of the hash of file and titles. */
export function cassetteName(file, titles) {
  const test = [file, ...titles].join("::");
  const base = path.posix.basename(file).replace(/\.[cm]?[jt]sx?$/, "");
  const slug = [base, ...titles].join(".").replace(/[^A-Za-z0-9._]+/g, "-").replace(/^[-.]+|[-.]+$/g, "");
  const short = slug.slice(0, SLUG).replace(/[-.]+$/, "") || "test";
  return `${short}-${createHash("sha256").update(test).digest("hex").slice(0, 8)}`;
}

/** The mode of this run: LLMPROXY_UPDATE, LLMPROXY_MODE, package.json (which on CI cannot record), else replay. */
export function chooseMode(env, ini = {}) {
  const ci = !["", "0", "false", "no"].includes((env.CI ?? "").trim().toLowerCase());
  const update = env.LLMPROXY_UPDATE ?? "";
  if (update) return known(UPDATES, update, "LLMPROXY_UPDATE");
  if (env.LLMPROXY_MODE) return known({ ...MODES, ...VCR_MODES }, env.LLMPROXY_MODE, "LLMPROXY_MODE");
  if (!ini.mode) return undefined;
  const mode = known({ ...MODES, ...VCR_MODES }, ini.mode, "llmproxy.mode of package.json");
  return ci && !OFFLINE.includes(mode) ? "replay" : mode;
}

function known(table, given, where) {
  const found = Object.hasOwn(table, given.trim().toLowerCase()) ? table[given.trim().toLowerCase()] : undefined;
  if (!found) throw new Error(`llmproxy: ${where} is ${JSON.stringify(given)}; it can be ${Object.keys(table).join(", ")}.`);
  return found;
}

/** What is true of this run only: folder, home, day, user, host (docs/bindings.md). */
export function runVariables(env = process.env, now = new Date()) {
  const zone = env.TZ?.replace(/^:/, "") || undefined;
  const day = (timeZone) => new Intl.DateTimeFormat("en-CA", { timeZone, dateStyle: "short" }).format(now);
  const [here, utc] = [day(zone), day("UTC")];
  const words = {
    user: env.USER || env.LOGNAME || os.userInfo().username,
    host: os.hostname(),
    timezone: env.TZ || new Intl.DateTimeFormat("en-US", { timeZoneName: "short" }).formatToParts(now).at(-1).value,
    shell: (env.SHELL ?? "").split("/").at(-1),
    os_version: `${os.type()} ${os.release()}`,
  };
  return [
    folder("cwd", namedFolder(env)),
    folder("home", env.HOME || env.USERPROFILE || os.homedir()),
    folder("tmp", env.TMPDIR || os.tmpdir()),
    { name: "date", value: here, ...(utc !== here && { other: utc }) },
    ...Object.entries(words).map(([name, value]) => ({ name, value })),
  ].filter((each) => each.value.replace(/^[/\\.]+|[/\\.]+$/g, ""));
}

/** The folder as its shell calls it: through its links, where PWD says so. */
function namedFolder(env) {
  const cwd = process.cwd();
  return env.PWD && path.isAbsolute(env.PWD) && real(env.PWD) === real(cwd) ? env.PWD : cwd;
}

function folder(name, given) {
  const [value, other] = [path.resolve(given), real(given)];
  return { name, value, ...(other !== value && { other }) };
}

function real(given) {
  return existsSync(given) ? realpathSync(given) : path.resolve(given);
}
