// The privacy guarantee: plain words first, then every number.

import { chart } from "./charts.js";
import { h, number, small } from "./dom.js";

export async function privacyView(context) {
  const { numbers, plain, guess_percent: guess, text } = await context.request("/statement");
  const places = [];
  const charts = h("div", { class: "pair" }, figures(numbers, places));
  let drawn = [];
  return {
    nodes: [
      h("h1", {}, "Privacy guarantee"),
      gauge(numbers, guess, context.sink.name),
      h("div", { class: "words" }, plain.map(({ title, sentences }) =>
        h("section", { class: "card" }, h("h2", {}, title), sentences.map((sentence) => h("p", {}, sentence))))),
      h("h2", { class: "apart" }, "The numbers"),
      charts,
      h("section", { class: "card" }, h("h3", {}, "Privacy budget"), budget(numbers)),
      h("section", { class: "card" }, h("h3", {}, "Noise of each value"), noise(numbers)),
      h("details", { class: "card" }, h("summary", {}, "Output of dpsqlp explain"),
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

// The success probability of an observer's best guess, from 50 % (a coin) to 100 %.
function gauge(numbers, guess, name) {
  const share = `${((guess - 50) * 2).toFixed(1)}%`;
  return h("section", { class: "card gauge" },
    (numbers.unprotected ?? []).map((warning) => h("p", { class: "warning", role: "note" }, warning)),
    h("p", { class: "figures" },
      h("span", {}, h("b", {}, `ε = ${small(numbers.epsilon)}`), `privacy loss, over all releases of ${name}`),
      h("span", {}, h("b", {}, `δ = ${small(numbers.delta)}`), `added probability, over all releases of ${name}`),
      h("span", {}, h("b", {}, `${guess} %`), `best guess about one ${numbers.unit.join(", ")}`)),
    h("svg:svg", { "aria-hidden": "true", focusable: "false" },
      h("svg:rect", { x: 0, y: 0, width: "100%", height: "100%", rx: 5, class: "track" }),
      h("svg:rect", { x: 0, y: 0, width: share, height: "100%", rx: 5, class: "value" })),
    h("p", { class: "ends", "aria-hidden": "true" }, h("span", {}, "50 %: a coin toss"), h("span", {}, "100 %: certainty")));
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
      `A key appears once its noisy number of ${numbers.unit.join(", ")} reaches ${span}${atClosing(numbers)}.`,
      "trigger within the window", [{ label: "threshold", values: thresholds, style: "threshold" }]));
  }
  const column = numbers.columns[0];
  if (column) {
    const sd = column.standard_deviation;
    made.push(figure("Noise over triggers",
      `Standard deviation of ${column.name}: ${range(sd, number)}, ${number(sd.at(-1))} at the last trigger.`,
      "trigger within the window", [{ label: "sd", values: sd, style: "value" }]));
  }
  return made;
}

function atClosing({ closing }) {
  return closing ? ", or at the last trigger, when units spend on further keys what they have left" : "";
}

function budget(numbers) {
  const { caps, closing, selection } = numbers;
  const rows = [
    ["ε", numbers.epsilon, "per unit, over all releases of this sink"],
    ["δ", numbers.delta, "per unit, over all releases of this sink"],
    ["ν", numbers.nu, "the noise alone is ν-GDP"],
    ["δ₀", numbers.delta_gaussian, "part of δ for the noise"],
    selection && ["Cs·β", numbers.delta_votes, "part of δ for key selection by votes"],
    closing && ["β of closing", closing.failure, "part of δ for key selection at the last trigger of a window"],
    selection && ["β", selection.failure_per_vote, `probability that one vote releases a key that only ${selection.min_privacy_units_per_group - 1} other units have, spent ${selection.spending}`],
    ["ε float", numbers.epsilon_float, "part of ε for rounding in the noise"],
    ["norm", caps.max_contribution_norm, "root of the sum of the squares of a unit's numbers of records per key and window"],
    ["C", caps.max_rows_contributed, "records counted per unit"],
    ["c", caps.max_rows_per_group, "records counted per unit, key and window"],
    selection && ["Cs", caps.max_selections_contributed, "keys that one unit may vote for"],
    selection && ["μ + 1", selection.min_privacy_units_per_group, "minimum units per key"],
    selection && ["σ of selection", selection.sigma, `${selection.mechanism}, sensitivity ${small(selection.sensitivity)}`],
    closing && ["τ of closing", closing.threshold, `what units lay on a key at the last trigger, at most ${small(closing.weights_max[0])} each, with noise of standard deviation 1`],
    ["T", numbers.triggers, `triggers per window, one every ${numbers.interval} by ${numbers.clock}`],
  ].filter(Boolean);
  return scrolled("Privacy budget", h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, ["", "Value", "Meaning"].map((title, n) =>
      n ? h("th", { scope: "col", class: n === 1 ? "number" : null }, title) : h("th", { scope: "col" }, "Symbol")))),
    h("tbody", {}, rows.map(([symbol, value, meaning]) =>
      h("tr", {}, h("th", { scope: "row" }, symbol), h("td", { class: "number" }, small(value)), h("td", {}, meaning))))));
}

function noise(numbers) {
  if (!numbers.columns.length) return h("p", {}, "This query releases keys only, without values.");
  const heads = ["Value", "Kind", "Clamped to", "σ", "Quantum", "Standard deviation", "at the last trigger", "Mechanism"];
  const rows = numbers.columns.map((column) => {
    const sd = column.standard_deviation;
    return h("tr", {}, h("th", { scope: "row" }, column.name), h("td", {}, column.kind),
      h("td", {}, ["sum", "squares"].includes(column.kind) ? `[${column.bounds.map(small).join(", ")}]` : "–"),
      h("td", { class: "number" }, small(column.sigma)), h("td", { class: "number" }, small(column.quantum)),
      h("td", { class: "number" }, range(sd, small)), h("td", { class: "number" }, small(sd.at(-1))), h("td", {}, column.mechanism));
  });
  return scrolled("Noise of each value", h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, heads.map((title, n) => h("th", { scope: "col", class: n > 2 && n < 7 ? "number" : null }, title)))), h("tbody", {}, rows)));
}

// reduce, because a list may be longer than the maximum number of arguments.
function range(values, shown) {
  const [low, high] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  return `${shown(low)} to ${shown(high)}`;
}

function scrolled(label, table) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
}
