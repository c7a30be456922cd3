// What all pages share: where we are (in the URL), the time, messages, the theme, and data that is asked for again.
import { signal, useEffect, useRef, useState } from "./html.js";

export const now = signal(Date.now());
setInterval(() => {
  now.value = Date.now();
}, 1000);

// --- where we are: #/topics/orders?tab=records

const read = () => {
  const [place, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = place.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { parts, fields: Object.fromEntries(new URLSearchParams(search)) };
};
export const place = signal(read());
addEventListener("hashchange", () => {
  place.value = read();
});

export function link(parts, fields = {}) {
  const given = Object.entries(fields).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${search}`;
}
export const toTopic = (name, fields) => link(["topics", name], fields);
export const go = (target) => {
  location.hash = target;
};
// Change fields of the present place, without a step in the history.
export function keep(fields) {
  const { parts, fields: present } = place.value;
  history.replaceState(null, "", link(parts, { ...present, ...fields }));
  place.value = read();
}

// --- messages

export const messages = signal([]);
let count = 0;
export function say(text, kind = "good") {
  const id = (count += 1);
  messages.value = [...messages.value.slice(-3), { id, text, kind }];
  setTimeout(() => drop(id), kind === "bad" ? 9000 : 4500);
}
export const drop = (id) => {
  messages.value = messages.value.filter((one) => one.id !== id);
};
export async function attempt(work, done = "") {
  try {
    const result = await work();
    if (done) say(done);
    return result;
  } catch (error) {
    say(error.message, "bad");
    return null;
  }
}

// --- the theme

const THEMES = ["auto", "light", "dark"];
export const theme = signal(localStorage.getItem("topics.theme") || "auto");
const dress = () => {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
};
dress();
export function nextTheme() {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
  localStorage.setItem("topics.theme", theme.value);
  dress();
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
export const isDark = signal(prefersDark.matches);
prefersDark.addEventListener("change", () => {
  isDark.value = prefersDark.matches;
});

// --- data that is asked for again and again, while the page is looked at

// `keeps`: what was there is shown until what was asked for otherwise is there.
export function usePoll(fetcher, ms, deps = [], keeps = false) {
  const [state, setState] = useState({ data: null, error: null });
  const again = useRef(() => {});
  const latest = useRef(fetcher);
  latest.current = fetcher;
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    let isRunning = false;
    if (!keeps) setState({ data: null, error: null });
    const run = async () => {
      clearTimeout(timer);
      if (isRunning) return;
      isRunning = true;
      try {
        if (!document.hidden) {
          const data = await latest.current({ signal: abort.signal });
          if (!abort.signal.aborted) setState({ data, error: null });
        }
      } catch (error) {
        if (!abort.signal.aborted) setState((last) => ({ data: last.data, error }));
      }
      isRunning = false;
      if (!abort.signal.aborted && ms) timer = setTimeout(run, ms);
    };
    again.current = run;
    document.addEventListener("visibilitychange", run);
    run();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", run);
    };
  }, deps);
  return { ...state, reload: () => again.current() };
}
