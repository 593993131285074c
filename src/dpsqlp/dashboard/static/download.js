// Buttons that save the released rows of a view as a file.

import { save } from "./api.js";
import { h } from "./dom.js";

const FORMATS = { csv: "CSV", parquet: "Parquet" };

// `label` says what the files hold: there may be several on a page.
export function downloads(context, resource, parameters, label) {
  const note = h("span", { class: "note", role: "status" });
  const button = ([format, name]) => {
    const start = async () => {
      made.forEach((one) => { one.disabled = true; });
      note.textContent = "";
      try {
        await save(context.path(`${resource}/download`), { ...parameters, format });
      } catch (error) {
        note.textContent = `The download failed. ${error.message}`;
      }
      made.forEach((one) => { one.disabled = false; });
    };
    return h("button", { type: "button", "data-focus": `${resource}-${format}`, "aria-label": `Download ${label} as ${name}`, onclick: start }, name);
  };
  const made = Object.entries(FORMATS).map(button);
  return h("p", { class: "downloads" }, h("span", {}, "Download"), made, note);
}
