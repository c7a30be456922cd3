// The retention timeline: every seq of a topic is live, deleted or lost; and who still has to read what. By seq: where
// in the log that is. By time: when live records were written, and when others were lost.
import { html, useMemo, useRef, useState } from "./html.js";
import { get, path } from "./api.js";
import { ago, clock, number, plural, range, reason, soon } from "./format.js";
import { keep, now, place, usePoll } from "./state.js";
import { Badge, Icon, Table, When } from "./parts.js";

const FLAG_ROWS = 3;
const FLAGS_MAX = 24;
const BANDS_MAX = 300;
const POINTS = 48; // records whose times are asked for
const ZOOM = 2.5;

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

// --- by time

// Times of some records, spread over what is live, and of the first unread one of each cursor.
async function times(name, state, cursors, options) {
  const { earliest_seq: first, head_seq: head, count } = state;
  if (!count) return [];
  const spread = Array.from({ length: POINTS }, (_, n) => Math.round(first + ((head - first) * n) / (POINTS - 1)));
  const unread = cursors.slice(0, FLAGS_MAX).map(({ seq }) => seq + 1).filter((seq) => seq <= head);
  const seqs = [...new Set([...spread, ...unread])].sort((a, b) => a - b);
  const told = await get(`topics/${path(name)}/times?seqs=${seqs.join()}`, options);
  return told.times;
}

const timeOf = (points, seq) => points.find((one) => one.seq >= seq)?.ts ?? null;

// What happened when: stretches in which live records were written, and moments at which others were lost.
function events(points, losses) {
  const written = points.slice(0, points.length > 1 ? -1 : 1).map((one, at) => {
    const next = points[at + 1] || one;
    return { kind: "live", start: one.ts, end: next.ts, from: one.seq, to: at + 2 >= points.length ? next.seq : next.seq - 1 };
  });
  const merged = [];
  for (const one of written) { // records of one moment are one stretch
    const last = merged.at(-1);
    if (last && last.end === last.start && one.start === last.start) Object.assign(last, { end: one.end, to: one.to });
    else merged.push({ ...one });
  }
  const lost = losses.slice(0, BANDS_MAX).map(({ gap_from, gap_to, reason: why, ts }) => ({ kind: "lost", start: ts, end: ts, from: gap_from, to: gap_to, reason: why }));
  return [...merged, ...lost].sort((a, b) => a.start - b.start);
}

// --- the axis, which can be zoomed

const WORDS = { live: "Live", deleted: "Deleted", lost: "Lost" };
const VIEWS = [["all", "Everything"], ["kept", "What is kept"], ["end", "The newest"]];

function windowOf(view, [low, high], kept) {
  const span = Math.max(1, high - kept);
  if (view === "kept") return [Math.max(low, Math.floor(kept - span * 0.15)), high];
  if (view === "end") return [Math.max(low, high - Math.max(20, Math.round(span / 10))), high];
  return [low, high];
}

function useAxis(whole, kept) {
  const [view, setView] = useState("all");
  const [zoom, setZoom] = useState(null);
  const [low, high] = whole;
  const [from, to] = zoom || windowOf(view, whole, kept);
  const show = (start, end) => {
    const span = Math.max(2, Math.min(end - start, high - low));
    const at = Math.round(Math.max(low, Math.min(start, high - span)));
    setZoom(span >= high - low ? null : [at, Math.round(at + span)]);
    if (span >= high - low) setView("all");
  };
  const by = (factor, middle = (from + to) / 2) => show(middle - (middle - from) * factor, middle + (to - middle) * factor);
  const move = (part) => show(from + (to - from) * part, to + (to - from) * part);
  const put = (at) => Math.min(100, Math.max(0, ((at - from) / (to - from || 1)) * 100));
  return { from, to, view: zoom ? "" : view, put, by, move, show, isWhole: from <= low && to >= high, isLeft: from <= low, isRight: to >= high, choose: (next) => { setZoom(null); setView(next); } };
}

const Tool = ({ label, icon, text, isOff, onClick }) => html`<button class="button small" type="button" aria-label=${label} title=${label} disabled=${isOff} onClick=${onClick}>${icon ? html`<${Icon} name=${icon} />` : text}</button>`;
const Tools = ({ axis }) => html`<span class="tools" role="group" aria-label="Zoom">
  <${Tool} label="Earlier" icon="left" isOff=${axis.isLeft} onClick=${() => axis.move(-0.5)} /><${Tool} label="Zoom out" text="−" isOff=${axis.isWhole} onClick=${() => axis.by(ZOOM)} />
  <${Tool} label="Zoom in" text="+" isOff=${axis.to - axis.from <= 2} onClick=${() => axis.by(1 / ZOOM)} /><${Tool} label="Later" icon="right" isOff=${axis.isRight} onClick=${() => axis.move(0.5)} /></span>`;

// The bar: a stretch that is dragged over is zoomed into, arrows move, + and - zoom.
function Bar({ axis, label, className = "", children }) {
  const [drag, setDrag] = useState(null);
  const box = useRef(null);
  const at = (event) => {
    const { left, width } = box.current.getBoundingClientRect();
    return axis.from + ((axis.to - axis.from) * Math.min(width, Math.max(0, event.clientX - left))) / width;
  };
  const down = (event) => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture?.(event.pointerId);
    setDrag([at(event), at(event)]);
  };
  const up = () => {
    if (drag && Math.abs(drag[1] - drag[0]) > (axis.to - axis.from) / 100) axis.show(Math.min(...drag), Math.max(...drag));
    setDrag(null);
  };
  const press = (event) => {
    const act = { ArrowLeft: () => axis.move(-0.25), ArrowRight: () => axis.move(0.25), "+": () => axis.by(1 / ZOOM), "=": () => axis.by(1 / ZOOM), "-": () => axis.by(ZOOM), 0: () => axis.choose("all") }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  };
  return html`<div class=${`bar ${className}`} ref=${box} role="img" aria-label=${label} tabindex="0" onPointerDown=${down} onPointerMove=${(event) => drag && setDrag([drag[0], at(event)])} onPointerUp=${up} onPointerCancel=${() => setDrag(null)} onDblClick=${() => axis.choose("all")} onKeyDown=${press}>
    ${children}${drag && html`<div class="chosen" style=${{ left: `${axis.put(Math.min(...drag))}%`, width: `${axis.put(Math.max(...drag)) - axis.put(Math.min(...drag))}%` }}></div>`}</div>`;
}

// Flags of cursors: {…cursor, left, row, isLate}.
function flagsOf(cursors, placeOf) {
  const ends = Array(FLAG_ROWS).fill(-100);
  return cursors.slice(0, FLAGS_MAX).map((cursor) => ({ ...cursor, left: placeOf(cursor) })).filter(({ left }) => left !== null).sort((a, b) => a.left - b.left).map((cursor) => {
    const { left } = cursor;
    const wide = 2.5 + cursor.name.length * 0.72;
    const isLate = left > 82; // it hangs to the left
    const free = ends.findIndex((end) => end < (isLate ? left - wide : left));
    const row = free < 0 ? FLAG_ROWS - 1 : free;
    ends[row] = isLate ? left : left + wide;
    return { ...cursor, row, isLate };
  });
}

const Flags = ({ flags, height }) => {
  const rows = Math.max(0, ...flags.map(({ row }) => row + 1));
  return html`<div class="flags" style=${{ height: `${rows * 22}px` }}>${flags.map((flag) => html`<span key=${flag.name} class=${`flag ${flag.isLate ? "late" : ""} ${flag.lost ? "hurt" : ""}`} style=${{ left: `${flag.left}%`, top: `${flag.row * 22}px`, "--pole": `${(rows - flag.row) * 22 + height}px` }}
    title=${`${flag.name}: read up to ${number(flag.seq)}, ${number(flag.lag)} behind${flag.lost ? `, ${number(flag.lost)} of these lost` : ""}`}><b>${flag.name}</b></span>`)}</div>`;
};

// --- the two views

function BySeq({ state, cursors, all, axis, label }) {
  const { from, to, put } = axis;
  const shown = joined(all).filter((band) => band.to >= from && band.from <= to);
  const isMoving = state.count > 0 && state.seconds_until_loss !== null && state.seconds_until_loss !== undefined;
  return html`<${Flags} height=${44} flags=${flagsOf(cursors.filter(({ seq }) => seq >= from - 1 && seq <= to), ({ seq }) => put(seq + 0.5))} />
    <${Bar} axis=${axis} label=${label}>
      ${shown.map((band) => {
        const left = put(band.from);
        return html`<div key=${`${band.kind}${band.from}`} class=${`band ${band.kind}`} style=${{ left: `${left}%`, width: `${Math.max(0.25, put(band.to + 1) - left)}%` }}
          title=${`${WORDS[band.kind]}: ${range(band.from, band.to)}${band.reason ? `, ${reason(band.reason)}` : ""}`}><span>${WORDS[band.kind]}</span></div>`;
      })}
      ${isMoving && state.earliest_seq >= from && state.earliest_seq <= to && html`<div class="front" style=${{ left: `${put(state.earliest_seq)}%` }}></div>`}
    <//>
    <div class="marks"><span>${number(from)}</span>
      ${state.earliest_seq > from && state.earliest_seq < to && state.count > 0 && html`<span class="mark" style=${{ left: `${Math.min(78, Math.max(8, put(state.earliest_seq)))}%` }}>earliest ${number(state.earliest_seq)}</span>`}
      <span>${to >= state.head_seq ? `head ${number(state.head_seq)}` : number(to)}</span></div>`;
}

function ByTime({ cursors, found, points, axis, state }) {
  const { from, to, put } = axis;
  const shown = found.filter((one) => one.end >= from && one.start <= to);
  const live = shown.filter(({ kind }) => kind === "live");
  const lost = shown.filter(({ kind }) => kind === "lost");
  const pace = (one) => (one.to - one.from + 1) / Math.max(1, one.end - one.start);
  const fastest = Math.max(...live.filter((one) => one.end > one.start).map(pace), 1e-9);
  const most = Math.max(1, ...lost.map((one) => one.to - one.from + 1));
  const count = (list) => list.reduce((sum, one) => sum + one.to - one.from + 1, 0);
  const label = `Between ${clock(from)} and ${clock(to)} ${number(count(live))} records were written that are live, and ${number(count(lost))} were lost.`;
  return html`<${Flags} height=${72} flags=${flagsOf(cursors, ({ seq }) => { const ts = seq >= state.head_seq ? null : timeOf(points, seq + 1); return ts === null || ts < from || ts > to ? null : put(ts); })} />
    <${Bar} axis=${axis} label=${label} className="by-time">
      ${live.map((one) => html`<div key=${`live${one.from}`} class="column live" style=${{ left: `${put(one.start)}%`, width: `${Math.max(0.3, put(one.end) - put(one.start))}%`, height: `${one.end === one.start ? 50 : 10 + 40 * (pace(one) / fastest)}%` }} title=${`Live: ${range(one.from, one.to)}, written ${clock(one.start)}`}></div>`)}
      ${lost.map((one) => html`<div key=${`lost${one.from}`} class="column lost" style=${{ left: `${put(one.start)}%`, height: `${12 + 34 * Math.sqrt((one.to - one.from + 1) / most)}%` }} title=${`Lost: ${range(one.from, one.to)}, ${reason(one.reason)}, ${clock(one.start)}`}></div>`)}
      <span class="lane top">written and live</span><span class="lane bottom">lost</span>
    <//>
    <div class="marks"><time dateTime=${new Date(from).toISOString()} title=${clock(from)}>${ago(from, now.value)}</time><time dateTime=${new Date(to).toISOString()} title=${clock(to)}>${ago(to, now.value)}</time></div>`;
}

const inWindow = ({ from, to }) => (one) => one.to >= from && one.from <= to;

const SeqTable = ({ name, rows, cursors }) => html`<${Table} name=${`timeline-${name}`} rows=${rows} keyOf=${(band) => `${band.kind}${band.from}`} empty="Nothing was written yet." columns=${[
  ["Seqs", (band) => range(band.from, band.to), true],
  ["What", (band) => html`<${Badge} kind=${{ live: "good", lost: "lost" }[band.kind]}>${WORDS[band.kind]}<//>`],
  ["How many", (band) => number(band.to - band.from + 1), true],
  ["Why", (band) => (band.kind === "lost" ? reason(band.reason) : band.kind === "deleted" ? "somebody asked for it" : band.holes ? `${plural(band.holes, "seq")} in between deleted` : "")],
  ["When", (band) => (band.ts ? html`<${When} ms=${band.ts} />` : "")],
  ["Cursors in it", (band) => cursors.filter(({ seq }) => seq >= band.from - 1 && seq < band.to).map(({ name: one }) => one).join(", ")]]} />`;

const TimeTable = ({ name, rows }) => html`<${Table} name=${`timeline-by-time-${name}`} rows=${rows} keyOf=${(one) => `${one.kind}${one.from}`} empty="Nothing is live, and nothing was lost." columns=${[
  ["When", (one) => html`<${When} ms=${one.start} />${one.end > one.start ? html` – <${When} ms=${one.end} />` : ""}`],
  ["What", (one) => html`<${Badge} kind=${one.kind === "live" ? "good" : "lost"}>${one.kind === "live" ? "Written, live" : "Lost"}<//>`],
  ["Seqs", (one) => range(one.from, one.to), true], ["How many", (one) => number(one.to - one.from + 1), true],
  ["Why", (one) => (one.kind === "lost" ? reason(one.reason) : "")]]} />`;

export function Timeline({ state, losses, cursors }) {
  const isByTime = place.value.fields.by === "time";
  const [isTable, setTable] = useState(false);
  const all = useMemo(() => bands(state, losses), [state.head_seq, state.earliest_seq, state.count, losses]);
  const points = usePoll((options) => (isByTime ? times(state.topic, state, cursors, options) : []), isByTime ? 3000 : 0, [state.topic, isByTime]).data || [];
  const found = useMemo(() => events(points, losses), [points, losses]);
  const seqAxis = useAxis([1, Math.max(state.head_seq, 2)], Math.max(1, Math.min(state.earliest_seq, ...cursors.map(({ seq }) => seq + 1))));
  const oldest = Math.min(points[0]?.ts ?? now.value, ...losses.map(({ ts }) => ts));
  const span = Math.max(1000, now.value - oldest);
  const timeAxis = useAxis([Math.floor(oldest - span * 0.02), now.value], points[0]?.ts ?? oldest);
  const axis = isByTime ? timeAxis : seqAxis;
  const words = { live: state.count, deleted: state.deleted_total, lost: (state.lost_total ?? 0) + (state.expired_total ?? 0) };
  const label = `Of ${number(state.head_seq)} records ${number(words.live)} are live, ${number(words.deleted)} deleted, ${number(words.lost)} lost.`;
  const floor = losses.reduce((most, { gap_to }) => Math.max(most, gap_to), 0);
  return html`<section class="card timeline" aria-label="Retention timeline">
    <header><h2>What is kept, what is gone</h2><div class="aside">
      <span class="chips" role="group" aria-label="Axis"><button class="button small" type="button" aria-pressed=${String(!isByTime)} onClick=${() => keep({ by: "" })}>By seq</button><button class="button small" type="button" aria-pressed=${String(isByTime)} onClick=${() => keep({ by: "time" })}>By time</button></span>
      <span class="chips" role="group" aria-label="Stretch">${VIEWS.map(([id, title]) => html`<button class="button small" type="button" aria-pressed=${String(axis.view === id)} onClick=${() => axis.choose(id)}>${title}</button>`)}</span>
      <${Tools} axis=${axis} />
      <button class="button small" type="button" aria-pressed=${String(isTable)} onClick=${() => setTable(!isTable)}>Table</button></div></header>
    ${isTable
      ? isByTime
        ? html`<${TimeTable} name=${state.topic} rows=${found.filter((one) => one.end >= axis.from && one.start <= axis.to)} />`
        : html`<${SeqTable} name=${state.topic} rows=${all.filter(inWindow(axis))} cursors=${cursors} />`
      : html`<div class="body">${isByTime
          ? html`<${ByTime} state=${state} cursors=${cursors} found=${found} points=${points} axis=${axis} />`
          : html`<${BySeq} state=${state} cursors=${cursors} all=${all} axis=${axis} label=${label} />`}
        <div class="legend"><dl>
          <div><dt><i class="key live"></i>Live</dt><dd>${number(words.live)}</dd></div>
          ${!isByTime && html`<div><dt><i class="key deleted"></i>Deleted, asked for</dt><dd>${number(words.deleted)}</dd></div>`}
          <div><dt><i class="key lost"></i>Lost</dt><dd>${number(words.lost)}${words.lost > 0 ? html` <span class="faint">up to ${number(floor)}</span>` : ""}</dd></div>
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
