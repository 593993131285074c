// Pipeline health from scheduled times, and operator metrics if they are on.

import { h, moment, number } from "./dom.js";

const WORDS = {
  running: "The pipeline is running, and no trigger is overdue.",
  waiting: "A server that the pipeline reads from or writes to does not respond. The pipeline retries; no records are lost.",
  late: "A trigger is overdue. Check that the pipeline is running, and read its log.",
  stopped: "The pipeline was stopped. Run the same command to resume.",
  failed: "The pipeline ended with an error. Its log has the details. The next run resumes after the last commit.",
  finished: "The pipeline has run its last trigger.",
  unknown: "These releases have no metadata, so the state of the pipeline is unknown.",
};

const ERRORS = { failed: "the last run ended with an error", waiting: "a server does not respond" };

export async function healthView(context) {
  const { health, sink } = context;
  const operator = health.operator_metrics ? await context.request("/operator").catch(() => null) : null;
  const clock = h("div", {}, cards(health));
  return {
    nodes: [
      h("h1", {}, "Health"),
      h("p", { class: "lead" }, "Times are scheduled times. They do not show how long triggers took."),
      clock,
      operator ? operatorCard(sink, operator) : null,
      h("p", { class: "note" }, "For programs: ", h("code", {}, "/metrics"), " (Prometheus) and ", h("code", {}, "/openapi.json"), "."),
    ].filter(Boolean),
    tick: () => clock.replaceChildren(...cards(context.health)),
  };
}

function cards(health) {
  return health.sinks.map((sink) => {
    const facts = [
      ["Last commit", sink.last_trigger === null ? "none yet" : sink.last_due ? moment(sink.last_due) : `trigger ${sink.last_trigger}`],
      sink.seconds_since_due === null ? null : ["Time since", span(sink.seconds_since_due)],
      ["Next trigger", next(sink, health)],
      sink.triggers_run === null ? null : ["Triggers run", `${number(sink.triggers_run)}${sink.triggers_in_all === null ? "" : ` of ${number(sink.triggers_in_all)}`}`],
      sink.triggers_unreadable ? ["Skipped", `${number(sink.triggers_unreadable)} releases with unreadable files`] : null,
      ["Errors", ERRORS[sink.status] ?? "none reported"],
    ].filter(Boolean);
    return h("section", { class: "card" },
      h("h2", {}, sink.name, " ", h("span", { class: "pill", "data-status": sink.status }, sink.status)),
      h("p", {}, WORDS[sink.status]),
      h("dl", {}, facts.flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)])));
  });
}

function next(sink, health) {
  if (sink.status === "finished") return "none";
  if (!sink.next_due) return sink.status === "running" ? "after the current one" : "unknown";
  const seconds = Math.round((Date.parse(sink.next_due) - Date.parse(health.now)) / 1000);
  return `${moment(sink.next_due)}, ${seconds >= 0 ? `in ${span(seconds)}` : `${span(-seconds)} overdue`}`;
}

function span(seconds) {
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

function operatorCard(sink, operator) {
  const facts = [
    ["Records read", operator.records === null ? "not counted" : number(operator.records)],
    ["Records per second", operator.records === null ? "not counted" : number(Math.round(operator.records_per_second))],
    ["Duration of the last trigger", `${number(operator.trigger_seconds)} s`],
    ["Lag after scheduled time", operator.lag_seconds === null ? "no schedule" : `${number(operator.lag_seconds)} s`],
    ["State on disk", `${number(Math.round(operator.state_bytes / 1024))} kB`],
  ];
  return h("section", { class: "card notprivate" },
    h("h2", {}, `Operator metrics of ${sink.name} `, h("span", { class: "tag" }, "not private")),
    h("p", {}, "These numbers depend on unreleased records. Do not show them to anyone from whom the data must be protected."),
    h("dl", {}, facts.flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)])));
}
