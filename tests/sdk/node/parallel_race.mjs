// `Promise.race` over fetch, until all have been heard; environment as of python/parallel.py.
const { OPENAI_BASE_URL: url, RESET: reset } = process.env;
const [calls, gap, runs] = [+(process.env.CALLS ?? 3), +(process.env.GAP ?? 0.02), +(process.env.RUNS ?? 1)];
const post = (to, body) =>
  fetch(to, { method: "POST", headers: { "content-type": "application/json", authorization: "Bearer x" }, body });

async function ask(content) {
  const made = await post(`${url}/chat/completions`, JSON.stringify({ model: "m", messages: [{ role: "user", content }] }));
  if (!made.ok) throw new Error(`${made.status} ${(await made.text()).slice(0, 200)}`);
  return (await made.json()).choices[0].message.content;
}

async function once() {
  const open = new Map();
  for (let n = 0; n < calls; n++)
    open.set(n, ask(`q${n} wait=${(0.03 + gap * (calls - n)).toFixed(4)}`).then((said) => [n, said]));
  const heard = [];
  while (open.size) {
    const [n, said] = await Promise.race(open.values());
    open.delete(n);
    heard.push(said);
  }
  return ask(`join ${heard.join(" ")}`);
}

for (let n = 0; n < runs; n++) {
  if (reset) await (await post(reset, "{}")).text();
  const began = performance.now();
  const said = await once().catch((error) => String(error));
  console.log(`${((performance.now() - began) / 1000).toFixed(3)} ${said.replaceAll("\n", " ")}`);
}
