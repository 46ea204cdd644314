// What every view is made of: Preact with hooks, and htm's templates. Text that is put in becomes a text node, never markup.
import { h, render, Fragment } from "./vendor/preact.js";
import { useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback, useErrorBoundary } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { render, Fragment, useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback, useErrorBoundary };
