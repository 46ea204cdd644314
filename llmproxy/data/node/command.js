#!/usr/bin/env node
// `npx llmproxy-replay run -- npm test`: calls the llmproxy of this machine, which is a program in Python.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, realpathSync, statSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const ENVIRONMENT = 3;
const CLONE = new URL("../../..", import.meta.url); // where npm has linked the package to one
const linked = ["pyproject.toml", "llmproxy/data/node/command.js"].every((each) => existsSync(new URL(each, CLONE)));
const PACKAGE = `llmproxy-replay[proxy]${linked ? ` @ ${CLONE.href.slice(0, -1)}` : ""}`;
const NOWHERE = `llmproxy: the proxy is a program in Python (3.12 or later), which is not installed here. To have it, once and for all:
  uv tool install '${PACKAGE}'     (or the same with pipx${linked ? "" : "; until it is published: 'PATH/OF/THE/CLONE[proxy]'"})
or say where it is:
  export LLMPROXY_COMMAND=/path/of/llmproxy`;

/** Return {words, downloads}: how llmproxy is called here; throws an Error that says what to install. */
export function findCommand(env) {
  if (env.LLMPROXY_COMMAND?.trim()) return { words: shellWords(env.LLMPROXY_COMMAND) };
  const own = fileURLToPath(import.meta.url);
  const found = onPath(env, "llmproxy").find((each) => realpathSync(each) !== own);
  if (found) return { words: [found] };
  const uvx = onPath(env, "uvx").find((each) => works([each])); // a shim of pyenv may have nothing behind it
  if (!uvx) throw new Error(NOWHERE);
  const cached = [uvx, "--offline", "--from", PACKAGE, "llmproxy"];
  if (works(cached)) return { words: cached };
  return { words: [uvx, "--from", PACKAGE, "llmproxy"], downloads: true };
}

function works(words) {
  return spawnSync(words[0], [...words.slice(1), "--version"], { stdio: "ignore" }).status === 0;
}

function onPath(env, name) {
  const names = process.platform === "win32" ? [`${name}.exe`, `${name}.cmd`] : [name];
  const folders = (env.PATH ?? "").split(path.delimiter).filter(Boolean);
  return folders.flatMap((folder) => names.map((each) => path.join(folder, each))).filter(isProgram);
}

function isProgram(file) {
  return existsSync(file) && statSync(file).isFile() && (statSync(file).mode & 0o111) !== 0;
}

/** Split as a shell does: blanks, quotes, backslashes. */
function shellWords(text) {
  const found = text.match(/(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+/g) ?? [];
  return found.map((word) => word.replace(/"((?:[^"\\]|\\.)*)"|'([^']*)'|\\(.)/g, (_, a, b, c) => a ?? b ?? c));
}

function main() {
  let command;
  try {
    command = findCommand(process.env);
  } catch (error) {
    process.stderr.write(`${error.message}\n`);
    process.exit(ENVIRONMENT);
  }
  if (command.downloads) process.stderr.write(`llmproxy: not installed here; ${command.words.join(" ")} may download it now\n`);
  const child = spawn(command.words[0], [...command.words.slice(1), ...process.argv.slice(2)], { stdio: "inherit" });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.once("error", (error) => {
    process.stderr.write(`llmproxy: ${command.words[0]} cannot be run: ${error.message}\n`);
    process.exit(ENVIRONMENT);
  });
  child.once("exit", (code, signal) => process.exit(code ?? 128 + os.constants.signals[signal]));
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) main();
