// The promise: plain words first, then every number.

import { chart } from "./charts.js";
import { h, number, small } from "./dom.js";

export async function promiseView(context) {
  const { numbers, plain, guess_percent: guess, text } = await context.ask("/statement");
  const places = [];
  const charts = h("div", { class: "pair" }, figures(numbers, places));
  let drawn = [];
  return {
    nodes: [
      h("h1", {}, "The promise"),
      gauge(numbers, guess, context.sink.name),
      h("div", { class: "words" }, plain.map(({ title, sentences }) =>
        h("section", { class: "card" }, h("h2", {}, title), sentences.map((sentence) => h("p", {}, sentence))))),
      h("h2", { class: "apart" }, "The numbers"),
      charts,
      h("section", { class: "card" }, h("h3", {}, "Account"), account(numbers)),
      h("section", { class: "card" }, h("h3", {}, "Noise of each value"), noise(numbers)),
      h("details", { class: "card" }, h("summary", {}, "All of it, as dpsqlp explain prints it"),
        h("pre", { tabindex: 0, role: "region", "aria-label": "dpsqlp explain" }, text)),
    ],
    shown: () => {
      drawn.forEach((one) => one.destroy());
      drawn = places.map(([place, options]) => chart(place, options));
    },
    resized: () => drawn.forEach((one) => one.resize()),
    end: () => drawn.forEach((one) => one.destroy()),
  };
}

// A spectator's best guess, from a coin's 50 % to certainty.
function gauge(numbers, guess, name) {
  const share = `${((guess - 50) * 2).toFixed(1)}%`;
  return h("section", { class: "card gauge" },
    (numbers.unprotected ?? []).map((warning) => h("p", { class: "warning", role: "note" }, warning)),
    h("p", { class: "figures" },
      h("span", {}, h("b", {}, `ε = ${small(numbers.epsilon)}`), `privacy loss, over all releases of ${name}`),
      h("span", {}, h("b", {}, `δ = ${small(numbers.delta)}`), `added probability, over all releases of ${name}`),
      h("span", {}, h("b", {}, `${guess} %`), `best guess about one ${numbers.unit.join(", ")}; a coin has 50 %`)),
    h("svg:svg", { "aria-hidden": "true", focusable: "false" },
      h("svg:rect", { x: 0, y: 0, width: "100%", height: "100%", rx: 5, class: "track" }),
      h("svg:rect", { x: 0, y: 0, width: share, height: "100%", rx: 5, class: "value" })),
    h("p", { class: "ends", "aria-hidden": "true" }, h("span", {}, "50 % a coin"), h("span", {}, "100 % certain")));
}

function figures(numbers, places) {
  const x = Array.from({ length: numbers.triggers }, (_, n) => n + 1);
  const figure = (title, note, label, lines) => {
    const place = h("div", { class: "chart", role: "img", "aria-label": `${title}. ${note}` });
    places.push([place, { x, time: false, lines, label, zero: true }]);
    return h("section", { class: "card" }, h("h3", {}, title), h("p", { class: "note" }, note), place);
  };
  const made = [];
  if (numbers.selection) {
    const { thresholds } = numbers.selection;
    const span = range(thresholds, number);
    made.push(figure("Thresholds over triggers",
      `A key appears once its number of ${numbers.unit.join(", ")}, with noise, reaches ${span}.`,
      "trigger of a window", [{ label: "threshold", values: thresholds, style: "threshold" }]));
  }
  const column = numbers.columns[0];
  if (column) {
    const sd = column.standard_deviation;
    made.push(figure("Noise over triggers",
      `Standard deviation of ${column.name}: ${range(sd, number)}.`,
      "trigger of a window", [{ label: "sd", values: sd, style: "value" }]));
  }
  return made;
}

function account(numbers) {
  const { caps, selection } = numbers;
  const rows = [
    ["ε", numbers.epsilon, "of all that this sink releases, for each unit"],
    ["δ", numbers.delta, "of all that this sink releases, for each unit"],
    ["ν", numbers.nu, "the noise alone is ν-GDP"],
    ["δ₀", numbers.delta_gaussian, "part of δ for the noise"],
    selection && ["Cs·β", numbers.delta_threshold, "part of δ for keys that appear too early"],
    selection && ["β", selection.failure_per_vote, `chance that one vote brings out a key that only ${selection.min_privacy_units_per_group - 1} others have, spent ${selection.spending}`],
    ["ε float", numbers.epsilon_float, "part of ε for rounding in the noise"],
    ["C", caps.max_rows_contributed, "records of a unit that count"],
    ["c", caps.max_rows_per_group, "of them in one key and window"],
    selection && ["Cs", caps.max_selections_contributed, "keys a unit may help to select"],
    selection && ["μ + 1", selection.min_privacy_units_per_group, "units a key needs at least"],
    selection && ["σ of selection", selection.sigma, `${selection.mechanism}, sensitivity ${small(selection.sensitivity)}`],
    ["T", numbers.triggers, `triggers of a window, one every ${numbers.interval} by ${numbers.clock}`],
  ].filter(Boolean);
  return scrolled("Account", h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, ["", "Value", "Meaning"].map((title, n) =>
      n ? h("th", { scope: "col", class: n === 1 ? "number" : null }, title) : h("th", { scope: "col" }, "Symbol")))),
    h("tbody", {}, rows.map(([symbol, value, meaning]) =>
      h("tr", {}, h("th", { scope: "row" }, symbol), h("td", { class: "number" }, small(value)), h("td", {}, meaning))))));
}

function noise(numbers) {
  if (!numbers.columns.length) return h("p", {}, "Only the keys themselves are released.");
  const heads = ["Value", "Kind", "Clamped to", "σ", "Quantum", "Standard deviation", "Mechanism"];
  const rows = numbers.columns.map((column) => {
    const sd = column.standard_deviation;
    return h("tr", {}, h("th", { scope: "row" }, column.name), h("td", {}, column.kind),
      h("td", {}, column.kind === "sum" ? `[${column.bounds.map(small).join(", ")}]` : "–"),
      h("td", { class: "number" }, small(column.sigma)), h("td", { class: "number" }, small(column.quantum)),
      h("td", { class: "number" }, range(sd, small)), h("td", {}, column.mechanism));
  });
  return scrolled("Noise of each value", h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, heads.map((title, n) => h("th", { scope: "col", class: n > 2 && n < 6 ? "number" : null }, title)))), h("tbody", {}, rows)));
}

// One by one: a list may be longer than a function takes arguments.
function range(values, shown) {
  const [low, high] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  return `${shown(low)} to ${shown(high)}`;
}

function scrolled(label, table) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
}
