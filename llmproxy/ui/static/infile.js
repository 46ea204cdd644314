// A file that was shared answers the page's questions itself. Messages stand once in it, requests as what they add to earlier ones.

export function inFile(given, question, query) {
  return ANSWERS[question](given, query);
}

const cassetteOf = (given, query) => given.cassettes.find((each) => each.name === query.cassette && each.sample === Number(query.sample || 1));

function matching(rows, query) {
  const wanted = (query.find || "").toLowerCase();
  return rows.filter((row) => {
    if ((query.model && row.model !== query.model) || (query.ids && !query.ids.split(",").includes(String(row.id)))) return false;
    if (query.failed === "1" && row.status < 400 && row.ending === "complete") return false;
    return !wanted || [row.asked, row.answered, row.model, row.operation, row.party].some((text) => (text || "").toLowerCase().includes(wanted));
  });
}

// A body that says what it adds to another one is put together from the first that stands for itself.
function bodyOf(given, id, side) {
  const chain = [];
  let found = given.bodies[id][side];
  while (found.of !== undefined) {
    chain.push(found);
    found = given.bodies[found.of][side];
  }
  if (!chain.length) return found;
  const text = chain.reduceRight((base, each) => base.slice(0, each.prefix) + each.text + (each.suffix ? base.slice(-each.suffix) : ""), found.text);
  return { text };
}

function opened(given, id) {
  const call = given.calls[id];
  const said = (n) => given.messages[n];
  return { ...call, messages: call.messages.map(said), tools: given.tools[call.tools] };
}

const ANSWERS = {
  report: (given) => given.report,
  cassettes: (given) => ({ store: given.title, cassettes: given.cassettes.map(({ rows, steps, ...info }) => info) }),
  calls(given, query) {
    const cassette = cassetteOf(given, query);
    const rows = matching(cassette.rows, query);
    const offset = Number(query.offset || 0);
    const window = rows.slice(offset, offset + Number(query.limit || 200));
    const all = query.find || query.failed || query.model || query.ids || cassette.left ? { ...cassette.sums, calls: rows.length } : cassette.sums;
    return { offset, rows: window, ...(query.sums ? { sums: all, strip: cassette.strip, left: cassette.left } : {}) };
  },
  place(given, query) {
    for (const { name, sample, rows } of given.cassettes) {
      const place = matching(rows, query).findIndex((row) => row.id === Number(query.id));
      if (place >= 0) return { cassette: name, sample, place };
    }
    throw new Error("This file does not hold that call.");
  },
  steps: (given, query) => cassetteOf(given, query).steps,
  call: (given, query) => opened(given, query.id),
  bodies: (given, query) => ({ request: bodyOf(given, query.id, "request"), response: bodyOf(given, query.id, "response") }),
};
