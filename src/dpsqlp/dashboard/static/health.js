// Whether it runs: by public time alone, unless the operator switched on more.

import { h, moment, number } from "./dom.js";

const WORDS = {
  running: "Running. Triggers come when they are due.",
  waiting: "A server that the pipeline reads from or writes to does not answer. It is asked again; nothing is lost.",
  late: "A trigger is overdue. Look at the log of the pipeline, and whether it still runs.",
  stopped: "Stopped. The same command goes on from there.",
  failed: "Ended with an error. The log of the pipeline says which; nothing is half done.",
  finished: "Finished: the last trigger has run.",
  unknown: "What is served here does not say whether a pipeline still writes to it.",
};

const ERRORS = { failed: "the last run ended with one", waiting: "a server does not answer" };

export async function healthView(context) {
  const { health, sink } = context;
  const operator = health.operator_metrics ? await context.ask("/operator").catch(() => null) : null;
  const clock = h("div", {}, cards(health));
  return {
    nodes: [
      h("h1", {}, "Health"),
      h("p", { class: "lead" }, "Times are those of the public grid: when triggers were due, not how long they took."),
      clock,
      operator ? notPrivate(sink, operator) : null,
      h("p", { class: "note" }, "For programs: ", h("code", {}, "/metrics"), " (Prometheus) and ", h("code", {}, "/openapi.json"), "."),
    ].filter(Boolean),
    tick: () => clock.replaceChildren(...cards(context.health)),
  };
}

function cards(health) {
  return health.sinks.map((sink) => {
    const facts = [
      ["Last commit", sink.last_trigger === null ? "none yet" : `trigger ${sink.last_trigger}${sink.last_due ? `, due ${moment(sink.last_due)}` : ""}`],
      sink.seconds_since_due === null ? null : ["Since then", span(sink.seconds_since_due)],
      ["Next trigger", next(sink, health)],
      sink.triggers_run === null ? null : ["Triggers run", `${number(sink.triggers_run)}${sink.triggers_in_all === null ? "" : ` of ${number(sink.triggers_in_all)}`}`],
      sink.triggers_unreadable ? ["Left out", `${number(sink.triggers_unreadable)} releases whose files cannot be read`] : null,
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
  if (!sink.next_due) return sink.status === "running" ? "as soon as the one before is done" : "not known";
  const seconds = Math.round((Date.parse(sink.next_due) - Date.parse(health.now)) / 1000);
  return `${moment(sink.next_due)}, ${seconds >= 0 ? `in ${span(seconds)}` : `${span(-seconds)} overdue`}`;
}

function span(seconds) {
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

function notPrivate(sink, operator) {
  const facts = [
    ["Records read", operator.records === null ? "not counted" : number(operator.records)],
    ["Records per second", operator.records === null ? "not counted" : number(Math.round(operator.records_per_second))],
    ["Last trigger took", `${number(operator.trigger_seconds)} s`],
    ["Done after it was due", operator.lag_seconds === null ? "no clock" : `${number(operator.lag_seconds)} s`],
    ["State on disk", `${number(Math.round(operator.state_bytes / 1024))} kB`],
  ];
  return h("section", { class: "card notprivate" },
    h("h2", {}, `${sink.name}, for the operator `, h("span", { class: "tag" }, "not private")),
    h("p", {}, "These numbers depend on records that were never released. Show them to nobody from whom the data is to be protected."),
    h("dl", {}, facts.flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)])));
}
