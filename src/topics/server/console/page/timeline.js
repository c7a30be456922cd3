// The retention timeline: every seq of a topic is live, deleted or lost; and who still has to read what.
import { html, useMemo, useState } from "./html.js";
import { number, plural, range, reason, soon } from "./format.js";
import { now } from "./state.js";
import { Badge, Table, When } from "./parts.js";

const FLAG_ROWS = 3;
const FLAGS_MAX = 24;
const BANDS_MAX = 300;

// Bands over 1..head, in order: {kind, from, to, reason, ts}.
export function bands({ head_seq: head, earliest_seq: earliest, count }, losses) {
  const lost = [...losses].sort((a, b) => a.gap_from - b.gap_from).slice(-BANDS_MAX);
  const found = [];
  let at = 1;
  for (const { gap_from, gap_to, reason: why, ts } of lost) {
    if (gap_from > at) found.push({ kind: gap_from > earliest ? "live" : "deleted", from: at, to: gap_from - 1 });
    if (gap_to >= at) found.push({ kind: "lost", from: Math.max(at, gap_from), to: gap_to, reason: why, ts });
    at = Math.max(at, gap_to + 1);
  }
  if (earliest > at) found.push({ kind: "deleted", from: at, to: Math.min(earliest - 1, head) });
  if (count && earliest <= head) {
    const from = Math.max(at, earliest);
    found.push({ kind: "live", from, to: head, holes: head - from + 1 - count });
  }
  return found.filter(({ from, to }) => to >= from);
}

// For the eye, neighbours of one kind are one band.
function joined(all) {
  const found = [];
  for (const band of all) {
    const last = found.at(-1);
    if (last?.kind === band.kind) Object.assign(last, { to: band.to, reason: last.reason === band.reason ? band.reason : "mixed" });
    else found.push({ ...band });
  }
  return found;
}

const WORDS = { live: "Live", deleted: "Deleted", lost: "Lost" };
const VIEWS = [["all", "Everything"], ["kept", "What is kept"], ["end", "The newest"]];

function windowOf(view, { head_seq: head, earliest_seq: earliest }, cursors) {
  const lowest = Math.min(earliest, ...cursors.map(({ seq }) => seq + 1));
  const span = Math.max(1, head - Math.max(1, lowest) + 1);
  if (view === "kept") return [Math.max(1, Math.floor(lowest - span * 0.15)), Math.max(head, 2)];
  if (view === "end") return [Math.max(1, head - Math.max(20, Math.round(span / 10))), Math.max(head, 2)];
  return [1, Math.max(head, 2)];
}

function flagsOf(cursors, place) {
  const ends = Array(FLAG_ROWS).fill(-100);
  return [...cursors].sort((a, b) => a.seq - b.seq).slice(0, FLAGS_MAX).map((cursor) => {
    const left = place(cursor.seq + 0.5);
    const wide = 2.5 + cursor.name.length * 0.72;
    const isLate = left > 82; // it hangs to the left
    const free = ends.findIndex((end) => end < (isLate ? left - wide : left));
    const row = free < 0 ? FLAG_ROWS - 1 : free;
    ends[row] = isLate ? left : left + wide;
    return { ...cursor, left, row, isLate };
  });
}

export function Timeline({ state, losses, cursors }) {
  const [view, setView] = useState("all");
  const [isTable, setTable] = useState(false);
  const all = useMemo(() => bands(state, losses), [state.head_seq, state.earliest_seq, state.count, losses]);
  const [from, to] = windowOf(view, state, cursors);
  const place = (seq) => Math.min(100, Math.max(0, ((seq - from) / (to - from + 1)) * 100));
  const shown = joined(all).filter((band) => band.to >= from && band.from <= to);
  const floor = losses.reduce((most, { gap_to }) => Math.max(most, gap_to), 0) + 1;
  const flags = flagsOf(cursors.filter(({ seq }) => seq >= from - 1), place);
  const rows = Math.max(0, ...flags.map(({ row }) => row + 1));
  const until = state.seconds_until_loss;
  const words = { live: state.count, deleted: state.deleted_total, lost: (state.lost_total ?? 0) + (state.expired_total ?? 0) };
  return html`<section class="card timeline" aria-label="Retention timeline">
    <header><h2>What is kept, what is gone</h2><div class="aside">
      ${VIEWS.map(([id, title]) => html`<button class="button small" type="button" aria-pressed=${String(!isTable && view === id)} onClick=${() => { setView(id); setTable(false); }}>${title}</button>`)}
      <button class="button small" type="button" aria-pressed=${String(isTable)} onClick=${() => setTable(!isTable)}>Table</button></div></header>
    ${isTable
      ? html`<${Table} name=${`timeline-${state.topic}`} rows=${all} keyOf=${(band) => `${band.kind}${band.from}`} empty="Nothing was written yet." columns=${[
          ["Seqs", (band) => range(band.from, band.to), true],
          ["What", (band) => html`<${Badge} kind=${{ live: "good", lost: "lost" }[band.kind]}>${WORDS[band.kind]}<//>`],
          ["How many", (band) => number(band.to - band.from + 1), true],
          ["Why", (band) => (band.kind === "lost" ? reason(band.reason) : band.kind === "deleted" ? "somebody asked for it" : band.holes ? `${plural(band.holes, "seq")} in between deleted` : "")],
          ["When", (band) => (band.ts ? html`<${When} ms=${band.ts} />` : "")],
          ["Cursors in it", (band) => cursors.filter(({ seq }) => seq >= band.from - 1 && seq < band.to).map(({ name }) => name).join(", ")],
        ]} />`
      : html`<div class="body"><div class="flags" style=${{ height: `${rows * 22}px` }}>
          ${flags.map((flag) => html`<span key=${flag.name} class=${`flag ${flag.isLate ? "late" : ""} ${flag.lost ? "hurt" : ""}`} style=${{ left: `${flag.left}%`, top: `${flag.row * 22}px`, "--pole": `${(rows - flag.row) * 22 + 44}px` }}
            title=${`${flag.name}: read up to ${number(flag.seq)}, ${number(flag.lag)} behind${flag.lost ? `, ${number(flag.lost)} of these lost` : ""}`}><b>${flag.name}</b></span>`)}
        </div>
        <div class="bar" role="img" aria-label=${`Of ${number(state.head_seq)} records ${number(words.live)} are live, ${number(words.deleted)} deleted, ${number(words.lost)} lost.`}>
          ${shown.map((band) => {
            const left = place(band.from);
            return html`<div key=${`${band.kind}${band.from}`} class=${`band ${band.kind}`} style=${{ left: `${left}%`, width: `${Math.max(0.25, place(band.to + 1) - left)}%` }}
              title=${`${WORDS[band.kind]}: ${range(band.from, band.to)}${band.reason ? `, ${reason(band.reason)}` : ""}`}><span>${WORDS[band.kind]}</span></div>`;
          })}
          ${state.count > 0 && until !== null && until !== undefined && state.earliest_seq >= from && html`<div class="front" style=${{ left: `${place(state.earliest_seq)}%` }}></div>`}
        </div>
        <div class="marks">
          <span>${number(from)}</span>
          ${state.earliest_seq > from && state.count > 0 && html`<span class="mark" style=${{ left: `${Math.min(78, Math.max(8, place(state.earliest_seq)))}%` }}>earliest ${number(state.earliest_seq)}</span>`}
          <span>head ${number(state.head_seq)}</span></div>
        <div class="legend"><dl>
          <div><dt><i class="key live"></i>Live</dt><dd>${number(words.live)}</dd></div>
          <div><dt><i class="key deleted"></i>Deleted, asked for</dt><dd>${number(words.deleted)}</dd></div>
          <div><dt><i class="key lost"></i>Lost</dt><dd>${number(words.lost)}${words.lost > 0 ? html` <span class="faint">up to ${number(floor - 1)}</span>` : ""}</dd></div>
          </dl><div class="next">${forecast(state, cursors)}</div>
        </div></div>`}
  </section>`;
}

function forecast(state, cursors) {
  const until = state.seconds_until_loss;
  if (!state.count) return html`<span class="faint">Nothing is kept, nothing can be lost.</span>`;
  if (until === null || until === undefined) return html`<span class="safe">Nothing is about to be lost.</span>`;
  const at = now.value;
  const unread = cursors.filter((cursor) => cursor.seconds_until_loss !== null).sort((a, b) => a.seconds_until_loss - b.seconds_until_loss)[0];
  return html`<span class="danger-text" title=${new Date(at + until * 1000).toISOString()}>The oldest record goes ${soon(until)}.${unread ? html` <b>${unread.name}</b> loses unread records ${soon(unread.seconds_until_loss)}.` : ""}</span>`;
}
