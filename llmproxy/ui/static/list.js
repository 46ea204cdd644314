// A list of any length: only the rows in sight are there, each of one height, so that a hundred thousand scroll like ten.
import { html, useState, useEffect, useLayoutEffect, useRef, useCallback } from "./view.js";

const AROUND = 4;  // rows above and below those in sight
const AT_ONCE = 5;  // rows that one task draws: where others want the processor, too, each millisecond of a task takes ten

/* `count` rows of `height` pixels. `facts(n)` gives what the n-th is drawn from, null where that is not read yet, and `row(...facts)` draws it;
   `heard(redraw)` is called with what is to be called when facts arrive. `see(from, to)` hears which rows are in sight, `chosen` is kept in sight,
   `enter` goes to it. */
export function List({ count, height, facts, row, heard, see, chosen, choose, enter, label, follow = false, id = "list" }) {
  const keys = (event) => {
    if (event.key === "Enter" && enter && chosen >= 0) {
      event.preventDefault();
      enter();
    }
    const page = Math.max(1, Math.floor((at.to - at.from) / 2));
    const now = chosen ?? -1;
    const to = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + page, PageUp: now - page, Home: 0, End: count - 1 }[event.key];
    if (to === undefined || !count) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(count - 1, to)));
  };
  const box = useRef();
  const below = useRef(true);  // whether the end was in sight: then it stays so
  const [at, set] = useState({ from: 0, to: 20 });
  const look = useCallback(() => {
    if (!box.current) return;
    const { scrollTop, clientHeight, scrollHeight } = box.current;
    below.current = scrollTop + clientHeight > scrollHeight - height;
    const from = Math.max(0, Math.floor(scrollTop / height) - AROUND);
    const to = Math.ceil((scrollTop + clientHeight) / height) + AROUND;
    set((old) => (old.from === from && old.to === to ? old : { from, to }));
  }, [height]);
  useLayoutEffect(look, [look]);
  useEffect(() => {
    const seen = new ResizeObserver(look);
    seen.observe(box.current);
    return () => seen.disconnect();
  }, [look]);
  const [, draw] = useState(0);
  const redraw = useCallback(() => draw((n) => n + 1), []);
  useEffect(() => heard?.(redraw), [heard]);
  const [from, to] = [at.from, Math.min(count, at.to)];
  useEffect(() => see?.(from, to), [from, to, count, see]);
  useEffect(() => {
    if (chosen < 0 || chosen === undefined || !box.current) return;
    const { scrollTop, clientHeight } = box.current;
    if (chosen * height < scrollTop) box.current.scrollTop = chosen * height;
    else if ((chosen + 1) * height > scrollTop + clientHeight) box.current.scrollTop = (chosen + 1) * height - clientHeight;
  }, [chosen, height, count > chosen]);
  useLayoutEffect(() => {
    if (follow && below.current) box.current.scrollTop = count * height;
  }, [count, follow]);
  const pick = useRef();  // a node that is kept calls what is meant by then
  pick.current = choose;
  const drawn = useRef(new Map());  // what each row was drawn from; the same node again is not looked at again
  const kept = new Map();
  let left = AT_ONCE;
  for (let n = from; n < to; n++) {
    const known = facts(n);
    const made = known && [n === chosen, count, height, ...known];
    const old = drawn.current.get(n);
    if (old && made && old.made.every((one, k) => one === made[k])) kept.set(n, old);
    else if (made && left-- > 0) kept.set(n, { made, node: html`<div key=${n} id=${`${id}-${n}`} class="row" role="option" aria-selected=${n === chosen} aria-posinset=${n + 1} aria-setsize=${count}
      style=${{ top: `${n * height}px`, height: `${height}px` }} onClick=${() => pick.current(n)}>${row(...known)}</div>` });
    else if (made && old) kept.set(n, old);
  }
  drawn.current = kept;
  useEffect(() => {
    if (left >= 0) return undefined;
    const soon = requestAnimationFrame(redraw);
    return () => cancelAnimationFrame(soon);
  });
  return html`<div class="list" ref=${box} tabindex="0" role="listbox" aria-label=${label} onScroll=${look} onKeyDown=${keys}
    aria-activedescendant=${kept.has(chosen) ? `${id}-${chosen}` : undefined}>
    <div class="all" style=${{ height: `${count * height}px` }} role="presentation">${[...kept.values()].map((each) => each.node)}</div>
  </div>`;
}
