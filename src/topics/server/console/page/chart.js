// Charts with a past. uPlot draws; the numbers below say the same in words.
import uPlot from "uplot";
import { html, useEffect, useRef } from "./html.js";
import { isDark, theme } from "./state.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// `series`: [{label, color (a CSS variable), values}]; `times` in seconds.
export function Chart({ times, series, format, label }) {
  const box = useRef(null);
  const plot = useRef(null);
  const names = series.map((one) => one.label).join();
  useEffect(() => {
    const axis = () => ({ stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" });
    const options = {
      width: Math.max(120, box.current.clientWidth), height: 150, padding: [10, 8, 0, 0],
      cursor: { y: false, points: { size: 6 } }, legend: { show: false },
      scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.15 : 1] } },
      axes: [{ ...axis(), size: 24, space: 70, values: (_, times, __, ___, step) => times.map((at) => new Date(at * 1000).toTimeString().slice(0, step < 60 ? 8 : 5)) }, { ...axis(), size: 56, space: 34, values: (_, values) => values.map(format) }],
      series: [{}, ...series.map((one) => ({ label: one.label, stroke: color(one.color), fill: `${color(one.color)}1f`, width: 1.6, points: { show: false }, spanGaps: true }))],
    };
    plot.current = new uPlot(options, [times, ...series.map((one) => one.values)], box.current);
    const observer = new ResizeObserver(() => plot.current.setSize({ width: Math.max(120, box.current.clientWidth), height: 150 }));
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
    };
  }, [names, theme.value, isDark.value]);
  useEffect(() => {
    plot.current?.setData([times, ...series.map((one) => one.values)]);
  }, [times, ...series.map((one) => one.values)]);
  const said = series.map((one) => `${one.label} ${format(one.values.at(-1) ?? null)}`).join(", ");
  return html`<div class="chart" role="img" aria-label=${`${label}: ${said}`} ref=${box}></div>`;
}
