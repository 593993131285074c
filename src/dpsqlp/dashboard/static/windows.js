// The same keys in several windows, side by side.

import { boundsNote, change, choice, errorBar, h, keyText, table, windowName } from "./dom.js";
import { downloads } from "./download.js";
import { controls, nothing, pager, value } from "./keys.js";

const SIZE = 25;

export async function windowsView(context) {
  const { sink, parameters } = context;
  const column = Math.max(sink.aggregates.indexOf(parameters.column), 0);
  const count = Number(parameters.count) || 4;
  const asked = { window: parameters.window, search: parameters.search, order: sink.aggregates[column] ?? "key" };
  const [page, { windows }] = await Promise.all([
    context.request("/compare", { ...asked, page: parameters.page, size: SIZE, windows: count }),
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
        : "Keys of the chosen window by value, with their values in the windows before it. Each window has independent noise. A change is since the window before, with ± 2 sd of both noises; it is shown between final windows."),
      controls(context, windows, page, more),
      page.rows.length ? compared(context, page, column) : nothing(context, page),
      pager(context, page),
      page.rows.length ? downloads(context, "/compare", { ...asked, page: 1, windows: count }, "these windows") : null,
      sink.aggregates.length ? boundsNote(sink) : null,
    ].filter(Boolean),
  };
}

function compared(context, page, column) {
  const { sink } = context;
  const heads = [
    { title: sink.keys.join(" · ") || "records", kind: "key" },
    ...page.windows.map((window) => ({
      title: `${windowName(window)}${window.closed ? "" : " (open)"}`,
      content: [windowName(window), h("span", { class: window.closed ? "tag final" : "tag" }, window.closed ? "final" : "open")],
    })),
  ];
  const rows = page.rows.map((row) => [
    h("a", { href: context.link("key", row.id, { window: page.window.start_us }), "data-focus": `key-${row.id}` }, keyText(row.key)),
    ...row.windows.map((cells, n) => cellOf(cells, row.changes[n], page, column, sink)),
  ]);
  return table("Windows side by side", heads, rows, "compared");
}

function cellOf(cells, changes, page, column, sink) {
  if (cells === null) return h("span", { class: "nothing" }, "not released");
  if (!sink.aggregates.length) return "released";
  const since = changes?.[column];
  return [h("span", { class: "number" }, value(cells[column])), errorBar(cells[column], page.scale[column]),
    since ? h("span", { class: "change" }, `change ${change(since)}`) : null];
}
