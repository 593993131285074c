// The privacy guarantee: plain words first, then every number.

import { charts } from "./charts.js";
import { h, number, small, table } from "./dom.js";

export async function privacyView(context) {
  const { numbers, plain, guess_percent: guess, text } = await context.request("/statement");
  const places = [];
  const pair = h("div", { class: "pair" }, figures(context.sink, numbers, places));
  return {
    nodes: [
      h("h1", {}, "Privacy guarantee"),
      gauge(numbers, guess, context.sink.name),
      h("div", { class: "words" }, plain.map(({ title, sentences }) =>
        h("section", { class: "card" }, h("h2", {}, title), sentences.map((sentence) => h("p", {}, sentence))))),
      h("h2", { class: "apart" }, "The numbers"),
      pair,
      h("section", { class: "card" }, h("h3", {}, "Privacy budget"), budget(numbers)),
      h("section", { class: "card" }, h("h3", {}, "Noise of each value"), noise(numbers)),
      h("details", { class: "card" }, h("summary", {}, "Output of dpsqlp explain"),
        h("pre", { tabindex: 0, role: "region", "aria-label": "dpsqlp explain" }, text)),
    ],
    ...charts(places),
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

// A single trigger has no chart: the sentence says the number.
function figures(sink, numbers, places) {
  const [seconds, word] = timeUnit(sink.interval_us / 1e6 * numbers.triggers);
  const x = Array.from({ length: numbers.triggers }, (_, n) => ((n + 1) * sink.interval_us) / 1e6 / seconds);
  const label = `${word} since the ${numbers.window ? "window" : "pipeline"} began`;
  const figure = (title, note, lines) => {
    const place = x.length > 1 ? h("div", { class: "chart", role: "img", "aria-label": `${title}. ${note}` }) : null;
    if (place) places.push([place, { x, time: false, lines, label, zero: true }]);
    return h("section", { class: "card" }, h("h3", {}, title), h("p", { class: "note" }, note), place);
  };
  const made = [];
  if (numbers.selection) {
    const { thresholds } = numbers.selection;
    const span = range(thresholds, number);
    made.push(figure("Thresholds over time",
      `A key appears once its noisy number of ${numbers.unit.join(", ")} reaches ${span}${atClosing(numbers)}.`,
      [{ label: "threshold", values: thresholds, style: "threshold" }]));
  }
  const column = numbers.columns[0];
  if (column) {
    const sd = column.standard_deviation;
    made.push(figure("Noise over time",
      `Standard deviation of ${column.name}: ${range(sd, number)}, ${number(sd.at(-1))} at the last trigger.`,
      [{ label: "sd", values: sd, style: "value" }]));
  }
  return made;
}

// The unit of an axis, by its length: seconds, and the word.
function timeUnit(length) {
  const units = [[86_400, "days"], [3600, "hours"], [60, "minutes"]];
  return units.find(([seconds]) => length >= 2 * seconds) ?? [1, "seconds"];
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
  const heads = [{ title: "Symbol" }, { title: "Value", kind: "number" }, { title: "Meaning", kind: "wraps" }];
  return table("Privacy budget", heads, rows.map(([symbol, value, meaning]) => [symbol, small(value), meaning]));
}

function noise(numbers) {
  if (!numbers.columns.length) return h("p", {}, "This query releases keys only, without values.");
  const titles = ["Value", "Kind", "Clamped to", "σ", "Quantum", "Standard deviation", "at the last trigger", "Mechanism"];
  const heads = titles.map((title, n) => ({ title, kind: n > 2 && n < 7 ? "number" : null }));
  const rows = numbers.columns.map((column) => {
    const sd = column.standard_deviation;
    const clamped = ["sum", "squares"].includes(column.kind) ? `[${column.bounds.map(small).join(", ")}]` : "–";
    return [column.name, column.kind, clamped, small(column.sigma), small(column.quantum), range(sd, small), small(sd.at(-1)), column.mechanism];
  });
  return table("Noise of each value", heads, rows);
}

// reduce, because a list may be longer than the maximum number of arguments.
function range(values, shown) {
  const [low, high] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  return `${shown(low)} to ${shown(high)}`;
}
