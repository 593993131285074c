// Builds page elements. Text from the data becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const LIST_CHARACTERS = 160; // shown of a key in a list; its own view shows all of it

export function h(tag, properties = {}, ...children) {
  const element = tag.startsWith("svg:")
    ? document.createElementNS(SVG, tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Invisible characters, and those that reorder text or break lines, are shown by code or symbol.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function visible(text) {
  return text.replace(HIDDEN, (character) => {
    const code = character.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

function part(text, longest) {
  if (text === null) return h("i", { class: "nothing" }, "null");
  if (text === "") return h("i", { class: "nothing" }, "empty text");
  const characters = longest && text.length > longest ? [...text].slice(0, longest) : null;
  return h("bdi", {}, visible(characters ? `${characters.join("")}…` : text));
}

export function keyText(key, { whole = false } = {}) {
  if (!key.length) return [h("span", {}, "all records")];
  const parts = key.map((text) => part(text, whole ? 0 : LIST_CHARACTERS));
  return parts.flatMap((p, n) => (n ? [h("span", { class: "dot" }, " · "), p] : [p]));
}

export function plainKey(key) {
  const text = key.map((t) => (t === null ? "null" : visible(t))).join(", ") || "all records";
  return text.length > 60 ? `${[...text].slice(0, 60).join("")}…` : text;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

export function number(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 1000 || Number.isInteger(value) ? whole.format(value) : fine.format(value);
}

export function around(sd) {
  return sd === null || sd === undefined ? "" : `± ${number(Number((2 * sd).toPrecision(3)))}`;
}

// A change, with its sign.
export function change(cell) {
  if (!cell) return "–";
  const sign = cell.value > 0 ? "+" : "";
  return `${sign}${number(cell.value)} ${around(cell.sd)}`.trim();
}

export function small(value) {
  if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6)) return fine.format(value);
  const [mantissa, power] = value.toExponential(2).split("e");
  const raised = [...power.replace("+", "")].map((digit) => RAISED[digit]).join("");
  const factor = String(Number(mantissa));
  return factor === "1" ? `10${raised}` : `${factor} × 10${raised}`;
}

export function moment(iso) {
  if (!iso) return "–";
  const [day, time] = iso.replace("Z", "").split("T");
  return `${day} ${time.replace(/\.\d+$/, "").replace(/:00$/, "")} UTC`;
}

export function windowName(window) {
  if (!window || window.start === null) return "whole stream";
  const [start, end] = [moment(window.start), moment(window.end)].map((t) => t.replace(" UTC", ""));
  const midnight = start.endsWith("00:00") && end.endsWith("00:00");
  const days = (Date.parse(window.end) - Date.parse(window.start)) / 86_400_000;
  if (midnight && days === 1) return start.slice(0, 10);
  const sameDay = start.slice(0, 10) === end.slice(0, 10);
  return `${start} – ${sameDay ? end.slice(11) : end}`;
}

// A table whose rows become cards on a narrow screen. `heads`: {title, content?, kind?}, where `kind`
// is a class of the column. A row is a list of the contents of its cells. Roles are explicit, because
// another layout takes them away.
export function table(label, heads, rows, kind = "plain") {
  const head = heads.map((one) => h("th", { scope: "col", role: "columnheader", class: one.kind }, one.content ?? one.title));
  const body = rows.map((cells) => h("tr", { role: "row" }, cells.map((content, n) => {
    const properties = { class: heads[n].kind, "data-name": heads[n].title };
    return n ? h("td", { role: "cell", ...properties }, h("span", {}, content)) : h("th", { scope: "row", role: "rowheader", ...properties }, content);
  })));
  // The keyboard reaches the other kinds by their links.
  const reached = kind === "plain" ? { tabindex: 0, role: "region", "aria-label": label } : {};
  return h("div", { class: "scroll", ...reached },
    h("table", { class: `stacks ${kind}`, role: "table", "aria-label": label },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
      h("tbody", { role: "rowgroup" }, body)));
}

// What the bounds on a unit do to values.
export function boundsNote(sink) {
  return h("p", { class: "note bounds", role: "note" }, sink.bounds_note);
}

// A bar from zero to the value, with an error bar of two standard deviations.
export function errorBar(cell, [low, high]) {
  const span = high - low || 1;
  const place = (x) => `${Math.min(Math.max(((x - low) / span) * 100, 0), 100).toFixed(2)}%`;
  const drawing = h("svg:svg", { class: "errorbar", "aria-hidden": "true", focusable: "false" });
  if (cell === null || cell.value === null) return drawing;
  const [left, right] = [Math.min(cell.value, 0), Math.max(cell.value, 0)];
  const width = `${Math.max(((right - left) / span) * 100, 0).toFixed(2)}%`;
  drawing.append(h("svg:rect", { x: place(left), y: "30%", height: "40%", width, rx: 2, class: "value" }));
  if (cell.sd !== null) {
    const ends = [cell.value - 2 * cell.sd, cell.value + 2 * cell.sd].map(place);
    drawing.append(
      h("svg:line", { x1: ends[0], x2: ends[1], y1: "50%", y2: "50%", class: "noise" }),
      ...ends.map((x) => h("svg:line", { x1: x, x2: x, y1: "24%", y2: "76%", class: "noise" })),
    );
  }
  return drawing;
}

export function choice(label, options, value, change, properties = {}) {
  const select = h("select", {
    ...properties,
    onchange: (event) => change(event.target.value),
  }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return h("label", {}, h("span", {}, label), " ", select);
}
