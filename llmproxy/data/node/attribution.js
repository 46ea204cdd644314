// Whose call is it? Every request to the proxy is sent to the session of the test that made it.
//
// Clients are made wherever they like, with the base URL of this process: http://HOST:PORT/s/<process>/v1. The name in its path
// is replaced when a request begins, by the session of the test in whose async context that happens: Node tells of every request
// of fetch and undici (diagnostics_channel), and node:http is asked through a wrapper, which axios, got and ws use as well.
import { AsyncLocalStorage } from "node:async_hooks";
import diagnostics from "node:diagnostics_channel";
import http from "node:http";
import { syncBuiltinESMExports } from "node:module";

// What the proxy refuses, with the reason.
const LATE = "/_llmproxy/ended-test";
const NOBODYS = "/_llmproxy/no-test";

/** The test that runs, in each async context: an object with `segment` ("/s/<session>"), `ended` and `tell()`. */
export const context = new AsyncLocalStorage();

/** Send what goes to `url` + one of `segments` (a Set, which grows) to the session that `choose()` returns for the caller. */
export function attribute(url, segments, choose) {
  const { host, origin } = new URL(url);
  const place = (path) => {
    const segment = /^\/s\/[^/]+(?=\/)/.exec(path)?.[0]; // a client keeps the one that it was made with
    if (!segments.has(segment)) return path;
    const test = choose(context.getStore());
    if (!test) return NOBODYS;
    if (!test.ended) return test.segment + path.slice(segment.length);
    test.tell({ late: 1 }); // its session is closed, and another test's must not answer
    return LATE;
  };
  diagnostics.subscribe("undici:request:create", ({ request }) => {
    if (String(request.origin) === origin) request.path = place(request.path);
  });
  for (const name of ["request", "get"]) {
    const direct = http[name];
    http[name] = (...given) => direct(...given.map((each) => moved(each, host, place)));
  }
  syncBuiltinESMExports();
}

/** Return an argument of http.request with the path that it is to have; what goes elsewhere stays as it is. */
function moved(given, host, place) {
  if (typeof given === "string" && URL.canParse(given)) return moved(new URL(given), host, place);
  if (given instanceof URL) {
    if (given.host !== host) return given;
    const path = place(given.pathname + given.search);
    return new URL(path, given);
  }
  if (typeof given?.path !== "string") return given;
  const name = given.hostname ?? given.host;
  return name === undefined || `${name}:${given.port}` === host ? { ...given, path: place(given.path) } : given;
}
