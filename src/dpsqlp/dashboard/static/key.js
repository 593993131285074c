// The values of one key over the triggers of a window, with a noise band.

import { chart } from "./charts.js";
import { around, choice, h, keyText, moment, number, plainKey, windowName } from "./dom.js";

const ROWS = 200; // newest rows in the table below the chart

export async function keyView(context) {
  const { sink, item, parameters } = context;
  const [series, { windows }] = await Promise.all([
    context.request("/key", { id: item, window: parameters.window }),
    context.request("/windows"),
  ]);
  const column = Math.max(sink.aggregates.indexOf(parameters.column), 0);
  const place = h("div", { class: "chart", role: "img", "aria-label": chartLabel(sink, series, column) });
  const readout = h("p", { class: "readout", "aria-hidden": "true" });
  const last = series.triggers.length - 1;
  const showReadout = (at) => {
    const n = at ?? last;
    readout.textContent = `${when(series, n)}: ${number(series.values[column]?.[n])} ${around(series.sd[column]?.[n])}`;
  };
  showReadout(last);
  let drawn = null;
  const draw = () => {
    drawn?.destroy();
    drawn = sink.aggregates.length ? chart(place, plotted(sink, series, column, showReadout)) : null;
  };
  return {
    nodes: [
      h("p", { class: "back" }, h("a", { href: context.link("keys", "", { window: series.window.start_us }) }, "← Keys")),
      h("h1", { class: "keyname" }, keyText(series.key, { whole: true })),
      h("p", { class: "lead" }, lead(series)),
      pickers(context, series, windows, column),
      ...(sink.aggregates.length
        ? [h("section", { class: "card" }, h("h2", {}, sink.aggregates[column]), readout, place, legend(series, column)), values(sink, series, column)]
        : [h("p", { class: "empty" }, "This query releases keys only, without values.")]),
    ].filter(Boolean),
    shown: draw,
    resized: () => drawn?.resize(),
    end: () => drawn?.destroy(),
  };
}

const isFinal = (series, n) => series.window.closed && series.triggers[n] === series.window.trigger;
const when = (series, n) => (series.due[n] ? moment(series.due[n]) : `Trigger ${series.triggers[n]}`);

function lead(series) {
  const many = series.triggers.length;
  const last = isFinal(series, many - 1) ? " The last value is final." : "";
  return `Released at ${number(many)} ${many === 1 ? "trigger" : "triggers"} of ${windowName(series.window)}, first at ${when(series, 0)}.${last}`;
}

function chartLabel(sink, series, column) {
  const n = series.triggers.length - 1;
  return `${sink.aggregates[column]} of ${plainKey(series.key)} over ${n + 1} triggers, last ${number(series.values[column]?.[n])} ${around(series.sd[column]?.[n])}. The values are in the table below.`;
}

function pickers(context, series, windows, column) {
  const { sink } = context;
  const parts = [];
  if (windows.length > 1) {
    const options = windows.map((window) => [String(window.start_us), windowName(window)]);
    parts.push(choice("Window", options, String(series.window.start_us), (start) => context.change({ window: start }), { "data-focus": "window" }));
  }
  if (sink.aggregates.length > 1) {
    const options = sink.aggregates.map((name) => [name, name]);
    parts.push(choice("Value", options, sink.aggregates[column], (name) => context.change({ column: name }), { "data-focus": "column" }));
  }
  return parts.length ? h("div", { class: "controls" }, parts) : null;
}

function plotted(sink, series, column, read) {
  const values = series.values[column];
  const sd = series.sd[column];
  const time = series.due.every(Boolean);
  const band = sd.every((s) => s !== null)
    ? [values.map((v, n) => (v === null ? null : v - 2 * sd[n])), values.map((v, n) => (v === null ? null : v + 2 * sd[n]))]
    : null;
  const lines = [{ label: sink.aggregates[column], values, style: "value" }];
  if (series.threshold[column]) lines.push({ label: "threshold", values: series.threshold[column], style: "threshold" });
  const x = time ? series.due.map((iso) => Date.parse(iso) / 1000) : series.triggers;
  return { x, time, lines, band, read };
}

function legend(series, column) {
  const entries = [
    h("li", { class: "line" }, "released value"),
    h("li", { class: "area" }, "± 2 standard deviations of the noise alone"),
    series.threshold[column] ? h("li", { class: "dash" }, "threshold for the key to appear by votes") : null,
  ];
  return h("ul", { class: "legend" }, entries);
}

function values(sink, series, column) {
  const numbers = series.triggers.map((_, n) => n).reverse().slice(0, ROWS);
  const head = ["Trigger", sink.aggregates[column], "± 2 sd"].map((text, n) => h("th", { scope: "col", class: n ? "number" : null }, text));
  const rows = numbers.map((n) =>
    h("tr", {}, h("th", { scope: "row" }, when(series, n), isFinal(series, n) ? h("span", { class: "tag final" }, "final") : null), h("td", { class: "number" }, number(series.values[column][n])),
      h("td", { class: "number" }, around(series.sd[column][n]))));
  return h("details", { class: "card" }, h("summary", {}, "Values as a table"),
    h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Values" },
      h("table", { class: "plain" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))));
}
