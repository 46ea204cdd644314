// The keyboard: single keys, not while something is typed, not with a modifier.
import { useLayoutEffect, useRef } from "./view.js";

export function useKeys(keys) {
  const latest = useRef(keys);
  latest.current = keys;
  useLayoutEffect(() => {
    const pressed = (event) => {
      const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (typing && event.key !== "Escape") return;
      if (typing) event.target.blur();
      const act = latest.current[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

export const HELP = [
  ["j, k", "next and previous call; arrows in the list"], ["Enter", "from the list to what is chosen"], ["1 to 5", "views of a call"], ["/", "find"], ["f", "failed calls only"], ["s", "compared: swap the sides"], ["p", "live: pause"], ["m", "live: the last miss"], ["Escape", "back to what happened"], ["?", "these keys"],
];
