// Makes a Node without an env proxy of its own (before 22.21, and 23) heed HTTPS_PROXY, HTTP_PROXY and NO_PROXY: fetch, and
// whatever asks by node:http and node:https. `llmproxy run --intercept` has it required before everything else (NODE_OPTIONS).
//
// Every connection is a tunnel (CONNECT), so that one way serves both schemes. Sockets that a program opens itself stay its own.
"use strict";
const [major, minor] = process.versions.node.split(".").map(Number);
if (major >= 24 || (major === 22 && minor >= 21)) return;

const http = require("node:http");
const https = require("node:https");
const net = require("node:net");
const tls = require("node:tls");

/** The proxy for a host, or undefined where it is to be asked itself. */
function proxyOf(scheme, host, port) {
  const env = (name) => process.env[name.toLowerCase()] || process.env[name] || "";
  const proxy = env(scheme === "https:" ? "HTTPS_PROXY" : "HTTP_PROXY");
  const exempt = (entry) => {
    const [, name, at] = /^\*?\.?(.*?)(?::(\d+))?$/.exec(entry.trim().toLowerCase());
    return entry.trim() === "*" || (name && (!at || at === String(port)) && (host === name || host.endsWith(`.${name}`)));
  };
  return proxy && !env("NO_PROXY").split(",").some(exempt) ? new URL(proxy) : undefined;
}

/** Asks the proxy itself, which no variable sends through a proxy. */
const itself = Object.assign(new http.Agent(), { createConnection: (options) => net.connect(options) });

/** Open a tunnel through `proxy`; calls back with (error) or (null, socket). */
function tunnel(proxy, host, port, done) {
  const target = `${host.includes(":") ? `[${host}]` : host}:${port}`;
  const headers = { host: target };
  const user = decodeURIComponent(`${proxy.username}:${proxy.password}`);
  if (proxy.username) headers["proxy-authorization"] = `Basic ${Buffer.from(user).toString("base64")}`;
  const options = { host: proxy.hostname, port: proxy.port || 80, method: "CONNECT", path: target, headers };
  const asked = http.request({ ...options, agent: itself });
  asked.once("connect", ({ statusCode, statusMessage }, socket) => {
    if (statusCode === 200) return done(null, socket);
    socket.destroy();
    done(new Error(`proxy ${proxy.host} refused ${target}: ${statusCode} ${statusMessage}`));
  });
  asked.once("error", done).end();
}

/** Connect as `options` say, through the proxy that the environment names; calls back with (error) or (null, socket). */
function connect(scheme, host, port, options, done) {
  const proxy = proxyOf(scheme, host.toLowerCase(), port);
  const secure = (socket) => {
    const made = tls.connect({ servername: net.isIP(host) ? "" : host, ...options, host, port, ...(socket && { socket }) });
    made.once("error", done).once("secureConnect", () => done(null, made.off("error", done)));
  };
  if (proxy) {
    return tunnel(proxy, host, port, (error, socket) => {
      if (error || scheme === "http:") done(error, socket);
      else secure(socket);
    });
  }
  if (scheme === "https:") return secure();
  const made = net.connect({ ...options, host, port });
  made.once("error", done).once("connect", () => done(null, made.off("error", done)));
}

/** Put `connect` where node:http, node:https and fetch open their connections. */
function install() {
  for (const [scheme, { Agent }] of [["http:", http], ["https:", https]]) {
    const direct = Agent.prototype.createConnection;
    Agent.prototype.createConnection = function (options, done, ...rest) {
      const host = options?.host ?? options?.hostname;
      const outside = options?.socketPath || typeof done !== "function" || !host || !proxyOf(scheme, host.toLowerCase(), options.port);
      if (outside) return direct.call(this, options, done, ...rest);
      connect(scheme, host, options.port, options, done);
    };
  }
  const fetch = globalThis.fetch;
  if (!fetch) return; // Node 16
  const current = Symbol.for("undici.globalDispatcher.1");
  let ours;
  globalThis.fetch = function (...given) {
    if (!ours) {
      new Request("http://localhost"); // what fetch is made of is loaded late, and then names its dispatcher
      const Agent = globalThis[current].constructor;
      ours = new Agent({
        connect({ protocol, hostname, port, servername }, done) {
          const to = Number(port) || (protocol === "https:" ? 443 : 80);
          const options = { ...(servername && { servername }), ALPNProtocols: ["http/1.1"] };
          connect(protocol, hostname.replace(/^\[|\]$/g, ""), to, options, done);
        },
      });
      if (Agent.name === "Agent") globalThis[current] = ours; // a program's own dispatcher stays
    }
    return fetch.apply(this, given);
  };
}

install();
