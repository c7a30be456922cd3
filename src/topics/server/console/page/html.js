// The libraries, under the names that the pages use.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);
export { render, Fragment } from "preact";
export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } from "preact/hooks";
export { signal, computed, effect, batch } from "@preact/signals";
