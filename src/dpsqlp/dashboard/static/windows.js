// The same keys in several windows, side by side.

import { choice, errorBar, h, keyText, windowName } from "./dom.js";
import { controls, nothing, pager, value } from "./keys.js";

const SIZE = 25;

export async function windowsView(context) {
  const { sink, parameters } = context;
  const column = Math.max(sink.aggregates.indexOf(parameters.column), 0);
  const count = Number(parameters.count) || 4;
  const [page, { windows }] = await Promise.all([
    context.request("/compare", {
      window: parameters.window,
      search: parameters.search,
      order: sink.aggregates[column] ?? "key",
      page: parameters.page,
      size: SIZE,
      windows: count,
    }),
    context.request("/windows"),
  ]);
  const more = [];
  if (sink.aggregates.length > 1) {
    more.push(choice("Value", sink.aggregates.map((name) => [name, name]), sink.aggregates[column],
      (name) => context.change({ column: name, page: "" }), { "data-focus": "column" }));
  }
  if (windows.length > 2) {
    const counts = [2, 3, 4, 6, 8].map((n) => [String(n), `${n} windows`]);
    more.push(choice("Compare", counts, String(count), (n) => context.change({ count: n }), { "data-focus": "count" }));
  }
  const one = page.windows.length < 2;
  return {
    nodes: [
      h("h1", {}, "Windows side by side"),
      h("p", { class: "lead" }, one
        ? "There is only one window so far. Later windows will appear next to it."
        : "Keys of the chosen window by value, with their values in the windows before it. Each window has its own noise."),
      controls(context, windows, page, more),
      page.rows.length ? table(context, page, column) : nothing(context, page),
      pager(context, page),
    ].filter(Boolean),
  };
}

function table(context, page, column) {
  const { sink } = context;
  const head = [
    h("th", { scope: "col", class: "key" }, sink.keys.join(" · ") || "records"),
    ...page.windows.map((window) =>
      h("th", { scope: "col" }, windowName(window), h("span", { class: window.closed ? "tag final" : "tag" }, window.closed ? "final" : "open"))),
  ];
  const rows = page.rows.map((row) =>
    h("tr", {},
      h("th", { scope: "row", class: "key" },
        h("a", { href: context.link("key", row.id, { window: page.window.start_us }), "data-focus": `key-${row.id}` }, keyText(row.key))),
      ...row.windows.map((cells, n) => cellOf(cells, page, column, sink, n))));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Windows side by side" },
    h("table", { class: "compared" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

function cellOf(cells, page, column, sink) {
  if (cells === null) return h("td", { class: "nothing" }, "not released");
  if (!sink.aggregates.length) return h("td", {}, "released");
  return h("td", {}, h("span", { class: "number" }, value(cells[column])), errorBar(cells[column], page.scale[column]));
}
