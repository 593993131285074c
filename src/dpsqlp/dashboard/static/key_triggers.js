// The values of one key over the triggers of a window, with a noise band.

import { edges } from "./charts.js";
import { around, choice, h, moment, number, plainKey, table, windowName } from "./dom.js";
import { downloads } from "./download.js";

const ROWS = 200; // newest rows in the table below the chart

export function overTriggers(context, series, over, column, figures) {
  const { sink } = context;
  const name = sink.aggregates[column];
  const last = series.triggers.length - 1;
  const readout = h("p", { class: "readout", "aria-hidden": "true" });
  const read = (at) => { readout.textContent = textOf(series, column, at ?? last); };
  read(last);
  const label = `${name} of ${plainKey(series.key)} over ${last + 1} triggers, last ${textOf(series, column, last)}. The values are in the table below.`;
  const place = h("div", { class: "chart", role: "img", "aria-label": label });
  if (last > 0) figures.push([place, plotted(series, column, name, read)]);
  return h("section", { class: "card", id: "over-triggers" },
    h("h2", {}, series.window.start === null ? `${name} over time` : `${name} within ${windowName(series.window)}`),
    h("p", { class: "note lead" }, lead(series)),
    picker(context, series, over),
    readout,
    ...(last > 0 ? [place, legend(series, column)] : []),
    h("details", {}, h("summary", {}, "Values as a table"), h("div", { class: "tall" }, listed(series, column, name))),
    downloads(context, "/key", { id: series.id, window: series.window.start_us }, "the values of this window"));
}

const isFinal = (series, n) => series.window.closed && series.triggers[n] === series.window.trigger;
const when = (series, n) => (series.due[n] ? moment(series.due[n]) : `Trigger ${series.triggers[n]}`);
const textOf = (series, column, n) => `${when(series, n)}: ${number(series.values[column][n])} ${around(series.sd[column][n])}`;

function lead(series) {
  const many = series.triggers.length;
  const last = isFinal(series, many - 1) ? " The last value is final." : "";
  if (many === 1) return `Released once, at ${when(series, 0)}.${last}`;
  return `Released ${number(many)} times, first at ${when(series, 0)}, last at ${when(series, many - 1)}.${last}`;
}

// The windows in which the key was released.
function picker(context, series, over) {
  const windows = over.windows?.filter((_, n) => over.values[n]) ?? [];
  if (windows.length < 2) return null;
  const options = windows.map((window) => [String(window.start_us), windowName(window)]);
  return h("div", { class: "controls" },
    choice("Window", options, String(series.window.start_us), (start) => context.change({ window: start }), { "data-focus": "window" }));
}

function plotted(series, column, name, read) {
  const values = series.values[column];
  const time = series.due.every(Boolean);
  const lines = [{ label: name, values, style: "value" }];
  if (series.threshold[column]) lines.push({ label: "threshold", values: series.threshold[column], style: "threshold" });
  const x = time ? series.due.map((iso) => Date.parse(iso) / 1000) : series.triggers;
  return { x, time, lines, band: edges(values, series.sd[column]), read };
}

function legend(series, column) {
  return h("ul", { class: "legend" },
    h("li", { class: "line" }, "released value"),
    h("li", { class: "area" }, "± 2 standard deviations of the noise alone"),
    series.threshold[column] ? h("li", { class: "dash" }, "threshold for the key to appear by votes") : null);
}

function listed(series, column, name) {
  const heads = [{ title: "Time" }, { title: name, kind: "number" }, { title: "± 2 sd", kind: "number" }];
  const rows = series.triggers.map((_, n) => [
    [when(series, n), isFinal(series, n) ? h("span", { class: "tag final" }, "final") : null],
    number(series.values[column][n]),
    around(series.sd[column][n]),
  ]);
  return table(`${name} within the window`, heads, rows.slice(-ROWS).reverse());
}
