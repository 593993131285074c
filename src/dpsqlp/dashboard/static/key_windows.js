// The value of one key in each window, with its noise band and the change since the window before.

import { edges } from "./charts.js";
import { around, change, h, number, plainKey, table, windowName } from "./dom.js";
import { downloads } from "./download.js";

const ROWS = 200; // newest rows in the table
const seconds = (iso) => Date.parse(iso) / 1000;

export function overWindows(context, answer, column, figures) {
  const { sink, item, parameters } = context;
  const name = sink.aggregates[column];
  const released = answer.windows
    .map((window, n) => ({ window, n, cell: answer.values[n]?.[column], change: answer.changes[n]?.[column] }))
    .filter(({ cell }) => cell)
    .reverse();
  if (!released.length) return null;
  const [last] = released.slice(-1);
  const readout = h("p", { class: "readout", "aria-hidden": "true" });
  const read = (point) => { readout.textContent = textOf(point ?? last); };
  read(last);
  const label = `${name} of ${plainKey(answer.key)} over ${released.length} windows, last ${textOf(last)}. The values are in the table below.`;
  const place = h("div", { class: "chart", role: "img", "aria-label": label });
  const drawn = released.length > 1;
  if (drawn) figures.push([place, plotted(released, name, read)]);
  const many = `${number(released.length)} of ${number(answer.windows.length)} windows`;
  return h("section", { class: "card", id: "over-windows" },
    h("h2", {}, `${name} over windows`),
    h("p", { class: "note" }, `Released in ${many}. The final value of each window, and the change since the window before; windows have independent noise.`),
    readout,
    ...(drawn ? [place, legend(released)] : []),
    h("div", { class: "tall" }, listed(context, released, name)),
    downloads(context, "/key/windows", { id: item, window: parameters.window }, "the windows of this key"));
}

const state = (window) => (window.closed ? "" : " (open)");
const textOf = (point) => `${windowName(point.window)}${state(point.window)}: ${number(point.cell.value)} ${around(point.cell.sd)}${point.change ? `, change ${change(point.change)}` : ""}`;

// A window without the key, or missing in the archive, is a gap in the line.
function plotted(released, name, read) {
  const points = [];
  for (const point of released) {
    const at = seconds(point.window.start);
    const before = points.at(-1);
    const follows = before?.n === point.n + 1 && seconds(before.window.end) >= at; // newest is 0
    if (before && !follows) points.push({ at: (before.at + at) / 2 });
    points.push({ ...point, at });
  }
  const pick = (closed) => points.map(({ window, cell }) => (cell && window.closed === closed ? cell : { value: null, sd: null }));
  const [final, open] = [pick(true), pick(false)].map((cells) => [cells.map((cell) => cell.value), cells.map((cell) => cell.sd)]);
  return {
    x: points.map(({ at }) => at),
    time: true,
    band: edges(...final),
    whiskers: edges(...open),
    lines: [{ label: name, values: final[0], style: "value" }, { label: "open", values: open[0], style: "open" }],
    read: (n) => read(points[n]?.cell ? points[n] : null),
  };
}

function legend(released) {
  return h("ul", { class: "legend" },
    h("li", { class: "line" }, "final value"),
    h("li", { class: "area" }, "± 2 standard deviations of the noise alone"),
    released.some(({ window }) => !window.closed) ? h("li", { class: "ring" }, "open window, so far") : null);
}

function listed(context, released, name) {
  const heads = [{ title: "Window" }, { title: `${name} ± 2 sd`, kind: "number" }, { title: "Change ± 2 sd", kind: "number" }];
  const rows = released.slice(-ROWS).reverse().map(({ window, cell, change: since }) => [
    [h("a", { href: context.link("key", context.item, { ...context.parameters, window: window.start_us }), "data-focus": `window-${window.start_us}` }, windowName(window)),
      window.closed ? null : h("span", { class: "tag" }, "open")],
    `${number(cell.value)} ${around(cell.sd)}`,
    change(since),
  ]);
  return table(`${name} over windows`, heads, rows);
}
