// One key: its values over windows, and over the triggers of one window.

import { RequestError } from "./api.js";
import { charts } from "./charts.js";
import { boundsNote, choice, h, keyText } from "./dom.js";
import { overTriggers } from "./key_triggers.js";
import { overWindows } from "./key_windows.js";

export async function keyView(context) {
  const { sink, item, parameters } = context;
  const asked = { id: item, window: parameters.window };
  const found = await Promise.all(["/key/windows", "/key"].map((resource) => context.request(resource, asked).catch(absent)));
  const [windows, triggers] = found;
  const any = found.find((answer) => !(answer instanceof RequestError));
  if (!any) throw triggers;
  const column = Math.max(sink.aggregates.indexOf(parameters.column), 0);
  const figures = [];
  const sections = !sink.aggregates.length
    ? [h("p", { class: "empty" }, "This query releases keys only, without values.")]
    : [
        windows.windows?.length > 1 ? overWindows(context, windows, column, figures) : null,
        triggers.triggers ? overTriggers(context, triggers, windows, column, figures) : null,
        boundsNote(sink),
      ];
  return {
    nodes: [
      h("p", { class: "back" }, h("a", { href: context.link("keys", "", { window: parameters.window }) }, "← Keys")),
      h("h1", { class: "keyname" }, keyText(any.key, { whole: true })),
      picker(context, column),
      ...sections,
    ].filter(Boolean),
    ...charts(figures),
  };
}

// A key may lack releases in the chosen window and have them in others.
function absent(error) {
  if (error instanceof RequestError && error.status === 404) return error;
  throw error;
}

function picker(context, column) {
  const { sink } = context;
  if (sink.aggregates.length < 2) return null;
  const options = sink.aggregates.map((name) => [name, name]);
  return h("div", { class: "controls" },
    choice("Value", options, sink.aggregates[column], (name) => context.change({ column: name }), { "data-focus": "column" }));
}
