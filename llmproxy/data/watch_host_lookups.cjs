// Tells `llmproxy doctor` which hosts a Node program looks up: required by NODE_OPTIONS before everything else.
"use strict";
const { appendFileSync } = require("node:fs");
const dns = require("node:dns");
const net = require("node:net");

const log = process.env.LLMPROXY_DOCTOR;
const seen = new Set();
const heard = (host, port) => {
  const line = `${process.pid}\t${host}\t${port ?? ""}\t${process.execPath}\n`;
  if (log && host && !seen.has(line)) {
    seen.add(line);
    try { appendFileSync(log, line); } catch { /* what goes wrong here is no matter of the program */ }
  }
};

const connect = net.Socket.prototype.connect;
net.Socket.prototype.connect = function (...given) {
  const first = Array.isArray(given[0]) ? given[0][0] : given[0]; // net.connect() normalises into an array
  if (first && typeof first === "object" && first.host) heard(first.host, first.port);
  return connect.apply(this, given);
};
const lookup = dns.lookup;
dns.lookup = function (host, ...given) {
  heard(host);
  return lookup.call(this, host, ...given);
};
