// Numbers, sizes, times and names as people read them.
const NUMBER = new Intl.NumberFormat("en-US");
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => (value === null || value === undefined ? "–" : NUMBER.format(value));
export const short = (value) =>
  value === null || value === undefined ? "–" : Math.abs(value) < 10_000 ? NUMBER.format(value) : SHORT.format(value);

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return `${value && value < 10 ? value.toFixed(1) : short(Math.round(value))}/s`;
}

// A length of time in its one or two largest units.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return seconds <= 0 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, size]) => seconds >= size);
  const [name, size] = units[at];
  const whole = Math.floor(seconds / size);
  const rest = at < 3 && whole < 10 ? Math.floor((seconds - whole * size) / units[at + 1][1]) : 0;
  return `${number(whole)} ${name}${rest ? ` ${rest} ${units[at + 1][0]}` : ""}`;
}

export const soon = (seconds) => (seconds < 1 ? "now" : `in ${duration(Math.round(seconds))}`);

export function ago(ms, now) {
  const seconds = (now - ms) / 1000;
  if (Math.abs(seconds) < 1.5) return "now";
  return seconds > 0 ? `${duration(Math.floor(seconds))} ago` : `in ${duration(Math.floor(-seconds))}`;
}

export const clock = (ms) => new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
export const range = (from, to) => (from === to ? number(from) : `${number(from)} – ${number(to)}`);

const REASONS = {
  cap: "evicted by a cap",
  ttl: "expired by its age limit",
  mixed: "caps and age",
  source_trim: "lost at the source of a router",
  from_seq_too_old: "gone before they were read",
  recreated: "of an earlier topic of this name",
};
export const reason = (word) => REASONS[word] || word;

// JSON whose numbers keep their spelling, where the browser can do that: a record may hold any.
const keep = (_, value, context) =>
  typeof value === "number" && context?.source !== undefined && String(value) !== context.source
    ? JSON.rawJSON(context.source)
    : value;
export const parse = (text) => (JSON.rawJSON ? JSON.parse(text, keep) : JSON.parse(text));
export const isExact = (value) => Boolean(JSON.isRawJSON?.(value));
export const line = (value, most = 400) => {
  const text = JSON.stringify(value) ?? "";
  return text.length > most ? `${text.slice(0, most)}…` : text;
};
