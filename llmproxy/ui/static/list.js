// A list of any length: only the rows in sight are there, each of one height, so that a hundred thousand scroll like ten.
import { html, useState, useEffect, useLayoutEffect, useRef, useCallback } from "./view.js";

const AROUND = 8;  // rows above and below those in sight

// `count` rows of `height` pixels; `row(n)` draws one, `see(from, to)` hears which are in sight, `chosen` is kept in sight.
export function List({ count, height, row, see, chosen, choose, label, follow = false, id = "list" }) {
  const keys = (event) => {
    const page = Math.max(1, Math.floor(at.room / height) - 1);
    const now = chosen ?? -1;
    const to = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + page, PageUp: now - page, Home: 0, End: count - 1 }[event.key];
    if (to === undefined || !count) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(count - 1, to)));
  };
  const box = useRef();
  const below = useRef(true);  // whether the end was in sight: then it stays so
  const [at, set] = useState({ top: 0, room: 800 });
  const look = useCallback(() => {
    if (!box.current) return;
    const { scrollTop, clientHeight, scrollHeight } = box.current;
    below.current = scrollTop + clientHeight > scrollHeight - height;
    set({ top: scrollTop, room: clientHeight });
  }, []);
  useLayoutEffect(look, []);
  useEffect(() => {
    const seen = new ResizeObserver(look);
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);
  const from = Math.max(0, Math.floor(at.top / height) - AROUND);
  const to = Math.min(count, Math.ceil((at.top + at.room) / height) + AROUND);
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
  const rows = [];
  for (let n = from; n < to; n++) {
    rows.push(html`<div key=${n} id=${`${id}-${n}`} class="row" role="option" aria-selected=${n === chosen} aria-posinset=${n + 1} aria-setsize=${count}
      style=${{ top: `${n * height}px`, height: `${height}px` }} onClick=${() => choose(n)}>${row(n)}</div>`);
  }
  return html`<div class="list" ref=${box} tabindex="0" role="listbox" aria-label=${label} onScroll=${look} onKeyDown=${keys}
    aria-activedescendant=${chosen >= from && chosen < to ? `${id}-${chosen}` : undefined}>
    <div class="all" style=${{ height: `${count * height}px` }} role="presentation">${rows}</div>
  </div>`;
}
