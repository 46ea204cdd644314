// For CommonJS, and for Jest's sandbox: the same as index.js.
"use strict";
const NOBODY = "llmproxy: no setup ran: add llmproxy-replay/vitest, /jest, /node-test or /playwright (docs/node.md).";

exports.session = async function session(options) {
  const ours = globalThis[Symbol.for("llmproxy-replay")];
  if (!ours) throw new Error(NOBODY);
  return ours.session(options);
};
