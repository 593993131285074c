// The frame around the views: address, polling, theme, token.

import { ask, keepToken, ofSink, Refused, Unauthorised } from "./api.js";
import { h } from "./dom.js";
import { keysView } from "./keys.js";
import { courseView } from "./course.js";
import { windowsView } from "./windows.js";
import { promiseView } from "./promise.js";
import { healthView } from "./health.js";

const VIEWS = { keys: keysView, key: courseView, windows: windowsView, promise: promiseView, health: healthView };
const TITLES = { keys: "Keys", key: "One key", windows: "Windows", promise: "Promise", health: "Health" };
const STATUS = { running: "running", late: "late", waiting: "waiting", stopped: "stopped", failed: "failed", finished: "finished", unknown: "no clock" };
const SHORTEST_MS = 1000;
const LONGEST_MS = 30_000;
const WORST_MS = 60_000;

const $ = (id) => document.getElementById(id);
const state = { sinks: [], health: null, view: null, mark: "", stale: true, failures: 0, timer: null, drawing: 0 };

// The address: #/view/item?parameters
export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name = "", item = ""] = path.split("/");
  const view = Object.hasOwn(VIEWS, name) ? name : "keys";
  return { view, item, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(view, item = "", parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  return `#/${view}${item ? `/${item}` : ""}${query.size ? `?${query}` : ""}`;
}

function chosenSink() {
  const wanted = route().parameters.sink;
  return state.sinks.find((sink) => sink.name === wanted) ?? state.sinks[0];
}

// What a view gets: the sink, its parameters, and how to change them.
function context(sink) {
  const { view, item, parameters } = route();
  const shared = state.sinks.length > 1 ? { sink: sink.name } : {};
  return {
    sink,
    item,
    parameters,
    get health() {
      return state.health;
    },
    ask: (what, given) => ask(ofSink(sink.name, what), given),
    link: (name, id = "", given = {}) => link(name, id, { ...shared, ...given }),
    change: (given, { replace = false } = {}) => {
      const address = link(view, item, { ...shared, ...parameters, ...given });
      if (replace) history.replaceState(null, "", address);
      else history.pushState(null, "", address);
      draw({ keepFocus: true });
    },
  };
}

async function draw({ keepFocus = false } = {}) {
  const turn = ++state.drawing;
  const main = $("main");
  const sink = chosenSink();
  const { view } = route();
  for (const entry of document.querySelectorAll("nav a")) {
    const here = entry.dataset.view === (view === "key" ? "keys" : view);
    if (here) entry.setAttribute("aria-current", "page");
    else entry.removeAttribute("aria-current");
    entry.href = link(entry.dataset.view, "", state.sinks.length > 1 ? { sink: sink?.name } : {});
  }
  document.title = `${TITLES[view]}${sink ? ` · ${sink.name}` : ""} · dpsqlp`;
  if (!sink) {
    main.replaceChildren(h("h1", {}, "Nothing here yet"), h("p", {}, "No sink has been served."));
    state.stale = false;
    return;
  }
  const focused = keepFocus && document.activeElement?.dataset?.focus;
  try {
    const drawn = await VIEWS[view](context(sink));
    if (turn !== state.drawing) {
      drawn.end?.();
      return;
    }
    state.view?.end?.();
    state.view = drawn;
    const typed = focused === "search" ? document.activeElement : null;
    const scrolled = keepFocus ? main.querySelector(".scroll")?.scrollLeft ?? 0 : 0;
    const caret = typed?.selectionStart;
    main.replaceChildren(...drawn.nodes);
    drawn.shown?.();
    const box = main.querySelector(".scroll");
    if (box) box.scrollLeft = scrolled;
    if (focused) refocus(main, focused, typed?.value, caret);
    state.stale = false;
    calm();
  } catch (error) {
    if (turn !== state.drawing) return;
    if (error instanceof Refused && error.status === 404) {
      state.view?.end?.();
      state.view = null;
      state.stale = false;
      main.replaceChildren(h("h1", {}, TITLES[view]), h("p", { class: "empty" }, error.message));
    } else {
      state.stale = true; // drawn again at the next poll
      trouble(error);
    }
  }
  if (!keepFocus) window.scrollTo(0, 0);
}

// A view that is drawn again leaves the reader, and what was typed meanwhile, in place.
function refocus(main, name, typed, caret) {
  const target = main.querySelector(`[data-focus="${CSS.escape(name)}"]`);
  target?.focus({ preventScroll: true });
  if (typed === undefined || !target) return;
  target.value = typed;
  target.setSelectionRange(caret, caret);
}

function trouble(error) {
  if (error instanceof Unauthorised) {
    askForToken();
    return;
  }
  state.failures += 1;
  $("banner").textContent =
    error instanceof Refused ? error.message : "The server does not answer. Trying again.";
  $("banner").hidden = false;
  showStatus("unknown");
}

function calm() {
  state.failures = 0;
  $("banner").hidden = true;
}

function askForToken() {
  clearTimeout(state.timer);
  const field = h("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const again = sessionStorage.length ? h("p", { class: "empty" }, "The token was not accepted.") : null;
  const form = h(
    "form",
    {
      class: "card token",
      onsubmit: (event) => {
        event.preventDefault();
        keepToken(field.value);
        begin();
      },
    },
    h("h1", {}, "A token is needed"),
    h("p", {}, "Whoever started this server has it. It is kept in this tab, until you close it."),
    again,
    h("label", { for: "token" }, "Token"),
    field,
    h("button", { type: "submit" }, "Open"),
  );
  state.drawing += 1;
  $("main").replaceChildren(form);
  field.focus();
}

function showStatus(status) {
  const pill = $("status");
  pill.textContent = STATUS[status] ?? status;
  pill.dataset.status = status;
  pill.setAttribute("aria-label", `Health: ${STATUS[status] ?? status}`);
}

function showSinks() {
  $("sink-label").hidden = state.sinks.length < 2;
  const chosen = chosenSink()?.name;
  $("sink").replaceChildren(
    ...state.sinks.map(({ name }) => h("option", { value: name, selected: name === chosen }, name)),
  );
}

// How long until there may be something new: by the grid where there is one.
function pause() {
  if (state.failures) return Math.min(SHORTEST_MS * 2 ** state.failures, WORST_MS);
  const running = state.health.sinks.filter(({ status }) => ["running", "waiting", "late", "unknown"].includes(status));
  if (!running.length) return LONGEST_MS;
  const due = running.map(({ next_due: next }) => (next ? Date.parse(next) - Date.parse(state.health.now) + 500 : 2000));
  return Math.min(Math.max(Math.min(...due), SHORTEST_MS), LONGEST_MS);
}

async function poll() {
  clearTimeout(state.timer);
  if (document.hidden) return;
  try {
    const first = state.mark === "";
    const news = first ? ask("/api/v1/sinks") : null; // at once: it is needed anyway
    news?.catch(() => {}); // said below
    state.health = await ask("/api/v1/health");
    const mark = JSON.stringify(state.health.sinks.map((sink) => [sink.name, sink.last_trigger]));
    showStatus(state.health.status);
    if (mark !== state.mark || state.stale) {
      state.stale = true; // until it is drawn
      state.sinks = (await (news ?? ask("/api/v1/sinks"))).sinks;
      state.mark = mark;
      showSinks();
      await draw({ keepFocus: !first });
      const last = chosenSink()?.last_trigger;
      $("tick").textContent = last === null || last === undefined ? "" : `Up to trigger ${last}.`;
    } else {
      calm();
      state.view?.tick?.();
    }
  } catch (error) {
    trouble(error);
    if (error instanceof Unauthorised) return;
  }
  state.timer = setTimeout(poll, pause());
}

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  document.documentElement.dataset.theme = name;
  const [sign, word] = { auto: ["◐", " Auto"], light: ["○", " Light"], dark: ["●", " Dark"] }[name];
  $("theme").replaceChildren(sign, h("span", { class: "theme-name" }, word));
  $("theme").setAttribute("aria-label", `Colours: ${name}. Change`);
  localStorage.setItem("dpsqlp-theme", name);
  state.view?.shown?.();
}

function begin() {
  state.mark = "";
  poll();
}

$("theme").addEventListener("click", () => {
  const at = THEMES.indexOf(document.documentElement.dataset.theme);
  theme(THEMES[(at + 1) % THEMES.length]);
});
$("sink").addEventListener("change", (event) => {
  location.hash = link(route().view === "key" ? "keys" : route().view, "", { sink: event.target.value });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
window.addEventListener("hashchange", () => draw());
window.addEventListener("resize", () => state.view?.resized?.());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.view?.shown?.());
document.addEventListener("visibilitychange", poll);

const kept = localStorage.getItem("dpsqlp-theme");
theme(THEMES.includes(kept) ? kept : "auto");
begin();
