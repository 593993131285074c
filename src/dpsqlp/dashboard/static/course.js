// One key's course over the triggers of a window, with its noise band.

import { chart } from "./charts.js";
import { around, choice, h, keyText, moment, number, plainKey, windowName } from "./dom.js";

const ROWS = 200; // of the table below the chart, newest first

export async function courseView(context) {
  const { sink, item, parameters } = context;
  const [course, { windows }] = await Promise.all([
    context.ask("/key", { id: item, window: parameters.window }),
    context.ask("/windows"),
  ]);
  const column = Math.max(sink.aggregates.indexOf(parameters.column), 0);
  const place = h("div", { class: "chart", role: "img", "aria-label": spoken(sink, course, column) });
  const readout = h("p", { class: "readout", "aria-hidden": "true" });
  const last = course.triggers.length - 1;
  const say = (at) => {
    const n = at ?? last;
    readout.textContent = `${when(course, n)}: ${number(course.values[column]?.[n])} ${around(course.sd[column]?.[n])}`;
  };
  say(last);
  let drawn = null;
  const draw = () => {
    drawn?.destroy();
    drawn = sink.aggregates.length ? chart(place, plotted(sink, course, column, say)) : null;
  };
  return {
    nodes: [
      h("p", { class: "back" }, h("a", { href: context.link("keys", "", { window: course.window.start_us }) }, "← Keys")),
      h("h1", { class: "keyname" }, keyText(course.key, { whole: true })),
      h("p", { class: "lead" }, lead(course)),
      pickers(context, course, windows, column),
      ...(sink.aggregates.length
        ? [h("section", { class: "card" }, h("h2", {}, sink.aggregates[column]), readout, place, legend(course, column)), values(sink, course, column)]
        : [h("p", { class: "empty" }, "Only the key itself is released: that enough people had it.")]),
    ].filter(Boolean),
    shown: draw,
    resized: () => drawn?.resize(),
    end: () => drawn?.destroy(),
  };
}

const when = (course, n) => (course.due[n] ? moment(course.due[n]) : `Trigger ${course.triggers[n]}`);

function lead(course) {
  const many = course.triggers.length;
  return `Released at ${number(many)} ${many === 1 ? "trigger" : "triggers"} of ${windowName(course.window)}, first at ${when(course, 0)}.`;
}

function spoken(sink, course, column) {
  const n = course.triggers.length - 1;
  return `${sink.aggregates[column]} of ${plainKey(course.key)} over ${n + 1} triggers, last ${number(course.values[column]?.[n])} ${around(course.sd[column]?.[n])}. The values are in the table below.`;
}

function pickers(context, course, windows, column) {
  const { sink } = context;
  const parts = [];
  if (windows.length > 1) {
    const options = windows.map((window) => [String(window.start_us), windowName(window)]);
    parts.push(choice("Window", options, String(course.window.start_us), (start) => context.change({ window: start }), { "data-focus": "window" }));
  }
  if (sink.aggregates.length > 1) {
    const options = sink.aggregates.map((name) => [name, name]);
    parts.push(choice("Value", options, sink.aggregates[column], (name) => context.change({ column: name }), { "data-focus": "column" }));
  }
  return parts.length ? h("div", { class: "controls" }, parts) : null;
}

function plotted(sink, course, column, read) {
  const values = course.values[column];
  const sd = course.sd[column];
  const time = course.due.every(Boolean);
  const band = sd.every((s) => s !== null)
    ? [values.map((v, n) => (v === null ? null : v - 2 * sd[n])), values.map((v, n) => (v === null ? null : v + 2 * sd[n]))]
    : null;
  const lines = [{ label: sink.aggregates[column], values, style: "value" }];
  if (course.threshold[column]) lines.push({ label: "threshold", values: course.threshold[column], style: "threshold" });
  const x = time ? course.due.map((iso) => Date.parse(iso) / 1000) : course.triggers;
  return { x, time, lines, band, read };
}

function legend(course, column) {
  const entries = [
    h("li", { class: "line" }, "released value"),
    h("li", { class: "area" }, "± 2 standard deviations of the noise"),
    course.threshold[column] ? h("li", { class: "dash" }, "what the key had to reach to appear") : null,
  ];
  return h("ul", { class: "legend" }, entries);
}

function values(sink, course, column) {
  const numbers = course.triggers.map((_, n) => n).reverse().slice(0, ROWS);
  const head = ["Trigger", sink.aggregates[column], "± 2 sd"].map((text, n) => h("th", { scope: "col", class: n ? "number" : null }, text));
  const rows = numbers.map((n) =>
    h("tr", {}, h("th", { scope: "row" }, when(course, n)), h("td", { class: "number" }, number(course.values[column][n])),
      h("td", { class: "number" }, around(course.sd[column][n]))));
  return h("details", { class: "card" }, h("summary", {}, "The values as a table"),
    h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Values" },
      h("table", { class: "plain" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))));
}
