// The keys of one window by released value, with error bars.

import { around, boundsNote, choice, errorBar, h, keyText, moment, number, table, windowName } from "./dom.js";
import { downloads } from "./download.js";

const SIZE = 50;
let typing = null; // delays a search while it is typed

export async function keysView(context) {
  const { sink, parameters } = context;
  const order = parameters.order || sink.aggregates[0] || "key";
  const asked = { window: parameters.window, search: parameters.search, order, direction: parameters.direction };
  const [page, { windows }] = await Promise.all([
    context.request("/keys", { ...asked, page: parameters.page, size: SIZE }),
    context.request("/windows"),
  ]);
  return {
    nodes: [
      h("h1", {}, sink.keys.length ? `Keys by ${order === "key" ? "name" : order}` : "Totals"),
      page.trigger === null ? null : summary(page),
      controls(context, windows, page, [sortControl(context, order)]),
      page.rows.length ? listed(context, page, order) : nothing(context, page),
      pager(context, page),
      page.rows.length ? downloads(context, "/keys", asked, "these keys") : null,
      sink.aggregates.length ? boundsNote(sink) : null,
    ].filter(Boolean),
  };
}

function summary(page) {
  const many = `${number(page.total)} ${page.total === 1 ? "key" : "keys"}`;
  const as = page.due ? ` as of ${moment(page.due)}` : ` as of trigger ${page.trigger}`;
  const closed = page.window.closed ? ", in the final table of the window" : "";
  return h("p", { class: "lead", "data-total": page.total }, `${many}${as}${closed}.`);
}

export function controls(context, windows, page, more = []) {
  const { sink, parameters } = context;
  const parts = [];
  if (sink.keys.length) {
    const search = h("input", {
      type: "search",
      "data-focus": "search",
      maxlength: 200,
      placeholder: "Part of a key",
      autocomplete: "off",
      spellcheck: "false",
      oninput: (event) => {
        clearTimeout(typing);
        const text = event.target.value;
        typing = setTimeout(() => context.change({ search: text, page: "" }, { replace: true }), 250);
      },
    });
    search.value = parameters.search ?? "";
    parts.push(h("label", { class: "grow" }, h("span", {}, "Search"), " ", search));
  }
  if (windows.length > 1) {
    const options = windows.map((window) => [String(window.start_us), `${windowName(window)}${window.closed ? "" : " (open)"}`]);
    const now = String(page.window?.start_us);
    parts.push(choice("Window", options, now, (start) => context.change({ window: start, page: "" }), { "data-focus": "window" }));
  }
  parts.push(...more.filter(Boolean));
  return parts.length ? h("div", { class: "controls", role: "search" }, parts) : null;
}

function sortControl(context, order) {
  const { sink, parameters } = context;
  if (!sink.keys.length) return null;
  const ways = sink.aggregates.flatMap((name) => [
    [`desc ${name}`, `${name}, largest first`],
    [`asc ${name}`, `${name}, smallest first`],
  ]);
  ways.push(["asc key", "name, A to Z"], ["desc key", "name, Z to A"]);
  const now = `${parameters.direction || "desc"} ${order}`;
  const change = (way) => {
    const [direction, ...name] = way.split(" ");
    context.change({ order: name.join(" "), direction, page: "" });
  };
  return choice("Order", ways, now, change, { "data-focus": "order" });
}

function listed(context, page, order) {
  const { sink } = context;
  const shown = Math.max(sink.aggregates.indexOf(order), 0);
  const others = sink.aggregates.map((_, n) => n).filter((n) => n !== shown);
  const [first] = sink.aggregates.length ? [shown] : [];
  const title = (n) => `${sink.aggregates[n]} ± 2 sd`;
  const heads = [
    { title: sink.keys.join(" · ") || "records", kind: "key" },
    ...(first === undefined ? [] : [
      { title: title(first), kind: "number first" },
      { title: "", content: scaleOf(page.scale[first]), kind: "bars" },
    ]),
    ...others.map((n) => ({ title: title(n), kind: "number" })),
  ];
  const rows = page.rows.map((row) => [
    h("a", { href: context.link("key", row.id, { window: page.window.start_us }), "data-focus": `key-${row.id}` }, keyText(row.key)),
    ...(first === undefined ? [] : [value(row.values[first]), errorBar(row.values[first], page.scale[first])]),
    ...others.map((n) => value(row.values[n])),
  ]);
  return table("Released keys", heads, rows, "keys");
}

function scaleOf(scale) {
  const [low, high] = scale ?? [0, 0];
  return h("span", { class: "scale" }, h("span", {}, number(Number(low.toPrecision(3)))), h("span", {}, number(Number(high.toPrecision(3)))));
}

export function value(cell) {
  return [h("b", {}, number(cell.value)), " ", h("span", { class: "sd" }, around(cell.sd))];
}

export function nothing(context, page) {
  const { parameters, sink } = context;
  let text = "Nothing has been released yet. Waiting for the first trigger.";
  if (parameters.search) text = "No key at the newest trigger contains this text. Keys with too few units are not released.";
  else if (page.trigger !== null) {
    const more = sink.epsilon === null ? "" : " The Privacy view shows the thresholds.";
    text = `Nothing was released at the newest trigger of this window.${more}`;
  }
  return h("p", { class: "empty" }, text);
}

export function pager(context, page) {
  if (page.pages < 2) return null;
  const go = (to, text, name) =>
    h("button", {
      type: "button",
      "data-focus": name,
      disabled: to < 1 || to > page.pages || to === page.page,
      onclick: () => context.change({ page: to }),
    }, text);
  const field = h("input", { type: "number", min: 1, max: page.pages, value: page.page, "data-focus": "page", "aria-label": "Page",
    onchange: (event) => {
      const wanted = Math.min(Math.max(Math.round(Number(event.target.value)) || 1, 1), page.pages);
      context.change({ page: wanted });
    } });
  return h("nav", { class: "pager", "aria-label": "Pages" },
    go(1, "First", "first"), go(page.page - 1, "Previous", "previous"),
    h("span", {}, field, ` of ${number(page.pages)}`),
    go(page.page + 1, "Next", "next"), go(page.pages, "Last", "last"));
}
