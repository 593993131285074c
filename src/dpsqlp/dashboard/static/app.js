// The frame around the views: routing, polling, theme, token.

import { request, RequestError, sinkPath, storeToken, Unauthorized } from "./api.js";
import { h, moment, small } from "./dom.js";
import { keysView } from "./keys.js";
import { keyView } from "./key.js";
import { windowsView } from "./windows.js";
import { privacyView } from "./privacy.js";
import { healthView } from "./health.js";

const VIEWS = { keys: keysView, key: keyView, windows: windowsView, privacy: privacyView, health: healthView };
const TITLES = { keys: "Keys", key: "Key", windows: "Windows", privacy: "Privacy", health: "Health" };
const POLL_MIN_MS = 1000;
const POLL_MAX_MS = 30_000;
const RETRY_MAX_MS = 60_000;

const $ = (id) => document.getElementById(id);
const state = { sinks: [], health: null, view: null, version: "", stale: true, failures: 0, timer: null, drawing: 0 };

// The address is #/view/item?parameters.
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

// The context of a view: the sink, the parameters, and functions to request data and navigate.
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
    path: (resource) => sinkPath(sink.name, resource),
    request: (resource, given) => request(sinkPath(sink.name, resource), given),
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
  showPromise(sink);
  document.title = `${TITLES[view]}${sink ? ` · ${sink.name}` : ""} · dpsqlp`;
  if (!sink) {
    main.replaceChildren(h("h1", {}, "No sinks"), h("p", {}, "The server has no sink to show."));
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
    const scrolled = keepFocus ? [...main.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]) : [];
    const caret = typed?.selectionStart;
    main.replaceChildren(...drawn.nodes);
    drawn.shown?.();
    main.querySelectorAll(".scroll").forEach((box, n) => box.scrollTo(...(scrolled[n] ?? [0, 0])));
    if (focused) refocus(main, focused, typed?.value, caret);
    state.stale = false;
    clearError();
  } catch (error) {
    if (turn !== state.drawing) return;
    if (error instanceof RequestError && error.status === 404) {
      state.view?.end?.();
      state.view = null;
      state.stale = false;
      main.replaceChildren(h("h1", {}, TITLES[view]), h("p", { class: "empty" }, error.message));
    } else {
      state.stale = true; // redrawn at the next poll
      showError(error);
    }
  }
  if (!keepFocus) window.scrollTo(0, 0);
}

// Restores focus and typed text after a view is redrawn.
function refocus(main, name, typed, caret) {
  const target = main.querySelector(`[data-focus="${CSS.escape(name)}"]`);
  target?.focus({ preventScroll: true });
  if (typed === undefined || !target) return;
  target.value = typed;
  target.setSelectionRange(caret, caret);
}

function showError(error) {
  if (error instanceof Unauthorized) {
    askForToken();
    return;
  }
  state.failures += 1;
  $("banner").textContent =
    error instanceof RequestError ? error.message : "The server does not respond. Retrying.";
  $("banner").hidden = false;
  showStatus("unknown");
}

function clearError() {
  state.failures = 0;
  $("banner").hidden = true;
}

function askForToken() {
  clearTimeout(state.timer);
  const field = h("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const again = sessionStorage.length ? h("p", { class: "empty" }, "This token was not accepted.") : null;
  const form = h(
    "form",
    {
      class: "card token",
      onsubmit: (event) => {
        event.preventDefault();
        storeToken(field.value);
        start();
      },
    },
    h("h1", {}, "Access token"),
    h("p", {}, "The dashboard requires an access token. Ask the operator of this server for it. The token is stored in this tab until you close it."),
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
  pill.textContent = status;
  pill.dataset.status = status;
  pill.setAttribute("aria-label", `Health: ${status}`);
}

function showSinks() {
  $("sink-label").hidden = state.sinks.length < 2;
  const chosen = chosenSink()?.name;
  $("sink").replaceChildren(
    ...state.sinks.map(({ name }) => h("option", { value: name, selected: name === chosen }, name)),
  );
}

// The name of the pipeline and what it promises, on every view.
function showPromise(sink) {
  if (sink) $("sink").value = sink.name;
  $("name").hidden = state.sinks.length !== 1;
  $("name").textContent = sink?.name ?? "";
  const known = sink && sink.epsilon !== null;
  const unit = known && [sink.unit.join(", "), sink.unit_period].filter(Boolean).join(" within ");
  $("promise").textContent = known ? `ε = ${small(sink.epsilon)}, δ = ${small(sink.delta)} per ${unit}` : "";
}

// The time of the last release, or its number if the schedule is unknown.
function showLast() {
  const health = state.health.sinks.find(({ name }) => name === chosenSink()?.name);
  const last = health?.last_trigger ?? null;
  $("tick").textContent = last === null ? "" : `Last release: ${health.last_due ? moment(health.last_due) : `trigger ${last}`}.`;
}

// The time until the next poll: until the next trigger is due, if the schedule is known.
function pollDelay() {
  if (state.failures) return Math.min(POLL_MIN_MS * 2 ** state.failures, RETRY_MAX_MS);
  const running = state.health.sinks.filter(({ status }) => ["running", "waiting", "late", "unknown"].includes(status));
  if (!running.length) return POLL_MAX_MS;
  const due = running.map(({ next_due: next }) => (next ? Date.parse(next) - Date.parse(state.health.now) + 500 : 2000));
  return Math.min(Math.max(Math.min(...due), POLL_MIN_MS), POLL_MAX_MS);
}

async function poll() {
  clearTimeout(state.timer);
  if (document.hidden) return;
  try {
    const first = state.version === "";
    const sinks = first ? request("/api/v1/sinks") : null; // in parallel with the health request
    sinks?.catch(() => {}); // reported below
    state.health = await request("/api/v1/health");
    const version = JSON.stringify(state.health.sinks.map((sink) => [sink.name, sink.last_trigger]));
    showStatus(state.health.status);
    if (version !== state.version || state.stale) {
      state.stale = true; // until it is redrawn
      state.sinks = (await (sinks ?? request("/api/v1/sinks"))).sinks;
      state.version = version;
      showSinks();
      await draw({ keepFocus: !first });
      showLast();
    } else {
      clearError();
      state.view?.tick?.();
    }
  } catch (error) {
    showError(error);
    if (error instanceof Unauthorized) return;
  }
  state.timer = setTimeout(poll, pollDelay());
}

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  document.documentElement.dataset.theme = name;
  const [sign, word] = { auto: ["◐", " Auto"], light: ["○", " Light"], dark: ["●", " Dark"] }[name];
  $("theme").replaceChildren(sign, h("span", { class: "theme-name" }, word));
  $("theme").setAttribute("aria-label", `Theme: ${name}. Change theme`);
  localStorage.setItem("dpsqlp-theme", name);
  state.view?.shown?.();
}

function start() {
  state.version = "";
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

const storedTheme = localStorage.getItem("dpsqlp-theme");
theme(THEMES.includes(storedTheme) ? storedTheme : "auto");
start();
