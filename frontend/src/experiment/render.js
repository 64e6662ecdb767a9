// Draws one experiment into an element: presets, controls, charts, words. It knows no engine: it calls
// engine.compute(values), which answers {panels, words, readouts, bounds, values, texts}, or {error}, or null
// when a newer question has overtaken this one.

import { announcer, copyText, debounced, html, morphChildren, uniqueId } from "../common/dom.js";
import { makeControl, nearestStop } from "./controls.js";
import { numberTables } from "./numbers.js";
import { areShort, drawPanel } from "./panels/index.js";
import { makePlayer } from "./player.js";
import { texts } from "./texts.js";

// So few stand in a row above the picture; more stand beside it where there is room.
const FEW_CONTROLS = 3;

const defaultsOf = (spec) => Object.fromEntries(spec.controls.map((control) => [control.name, control.default]));
const same = (one, other) => Object.keys(one).every((name) => one[name] === other[name]);

export function startingValues(spec, state) {
  const { preset, ...given } = state;
  const start = spec.presets.find(({ name }) => name === preset);
  return { ...defaultsOf(spec), ...start?.values, ...given };
}

/**
 * @param root     element to draw into; what is in `options.picture` stands until the first chart.
 * @param spec     the experiment's description, from Python.
 * @param engine   {compute(values), onAnswer?(listener)}
 * @param state    control values to start with, or {preset}.
 * @param options  {picture, home: state to reset to, texts: of home's values between stops, linkTo(values), onChange(values), onReset()}
 */
export function renderExperiment(root, spec, engine, state = {}, options = {}) {
  let values = startingValues(spec, state);
  const home = startingValues(spec, options.home ?? state);
  let chart = null;
  let motion = false;
  let moves = 0; // counts what the reader does, to tell whether an answer is still to the point
  let widths = [];
  const drawn = [];

  const titleId = uniqueId("sl-title");
  const panels = html("div", { class: "sl-panels" });
  const readouts = html("div", { class: "sl-readouts", role: "list" });
  const words = html("div", { class: "sl-words" });
  const picture = html("div", { class: "sl-picture" }, ...(options.picture ?? [panels, readouts, words]));
  const problem = html("p", { class: "sl-problem", role: "alert" });
  const { region, say, now } = announcer();
  const note = html("span", { class: "sl-note" });

  // Controls ------------------------------------------------------------------------------------------------
  const controls = new Map(
    spec.controls.map((control) => [control.name, makeControl(control, (value) => set({ [control.name]: value }))]),
  );
  const steppers = spec.controls.filter(({ kind }) => kind === "stepper");
  const others = spec.controls.filter(({ kind }) => kind !== "stepper");
  const players = steppers.map((control) => {
    const last = () => Math.min(control.most, chart?.bounds[control.name]?.most ?? control.most);
    const player = makePlayer({
      position: () => Math.min(values[control.name], last()),
      last,
      move: (position) => {
        const forward = position === values[control.name] + 1;
        set({ [control.name]: position }, forward);
      },
    });
    controls.get(control.name).range.addEventListener("input", player.pause);
    return { ...player, control };
  });

  function showValues(spoken = {}) {
    for (const control of spec.controls) {
      const value = values[control.name];
      const text = spoken[control.name] ?? control.labels[nearestStop(control, value)];
      controls.get(control.name).show(value, text);
    }
    const active = spec.presets.find((preset) => same(preset.values, values));
    presetButtons.forEach((button, index) => button.setAttribute("aria-pressed", spec.presets[index] === active));
    source.textContent = active ? active.source : same(home, values) ? "" : texts.ownValues;
    players.forEach(({ refresh }) => refresh());
  }

  // Presets -------------------------------------------------------------------------------------------------
  const presetButtons = spec.presets.map((preset) =>
    html("button", { type: "button", "aria-pressed": false, onclick: () => take(preset.values) }, preset.label),
  );
  const source = html("p", { class: "sl-source" });

  // Asking and answering --------------------------------------------------------------------------------------
  function take(newValues) {
    players.forEach(({ pause }) => pause());
    values = { ...newValues };
    moves += 1;
    showValues();
    ask();
  }

  function set(changed, moving = false) {
    motion = moving;
    values = { ...values, ...changed };
    moves += 1;
    ask();
  }

  let asking = false;
  function ask() {
    // One question per frame is enough: a slider reports more often than a screen draws.
    if (asking) return;
    asking = true;
    requestAnimationFrame(async () => {
      asking = false;
      if (!chart) note.textContent = texts.starting;
      const asked = performance.now();
      const move = moves;
      try {
        const reply = await engine.compute(values);
        answer(reply, asked, move === moves);
      } catch (error) {
        note.textContent = "";
        problem.textContent = texts.failed(error.message);
      }
    });
  }

  function answer(reply, asked, isLast = !asking) {
    if (!reply) return;
    const answered = performance.now();
    if (reply.error) {
      problem.textContent = reply.error;
      const culprit = spec.controls.find(({ name }) => reply.error.startsWith(name));
      if (culprit) controls.get(culprit.name).refuse?.();
      if (isLast) values = { ...(chart?.values ?? startingValues(spec, {})) };
      return;
    }
    problem.textContent = "";
    note.textContent = "";
    if (!chart) picture.replaceChildren(panels, readouts, words);
    chart = reply;
    for (const [name, limits] of Object.entries(reply.bounds)) controls.get(name).bound(limits);
    if (isLast) {
      values = { ...reply.values };
      showValues(reply.texts);
    }
    draw();
    // What the page says at first, a reader finds in the text; said aloud is what the reader has changed.
    if (moves > 0) say(reply.words.slice(0, 2).join(" "));
    if (isLast) options.onChange?.(values);
    motion = false;
    // For tests and benchmarks: what is drawn now, and the milliseconds it took to compute and to draw.
    const detail = { values: reply.values, compute: answered - asked, draw: performance.now() - answered };
    root.dispatchEvent(new CustomEvent("sl-drawn", { bubbles: true, detail }));
  }

  // Drawing ---------------------------------------------------------------------------------------------------
  const pick = (name, value) => {
    const control = spec.controls.find((one) => one.name === name);
    const stop = control.stops[nearestOnScale(control, value)];
    if (stop !== values[name]) set({ [name]: stop });
  };

  function draw() {
    const boxes = chart.panels.map((panel, index) => {
      const box = panels.children[index] ?? panels.appendChild(html("div", { class: "sl-panel" }));
      box.dataset.kind = panel.kind;
      return box;
    });
    while (panels.children.length > boxes.length) panels.lastChild.remove();
    drawn.length = boxes.length; // a box that comes back is empty
    if (widths.length !== boxes.length) widths = boxes.map((box) => box.clientWidth);
    const short = areShort(chart.panels.map(({ kind }) => kind));
    chart.panels.forEach((panel, index) => {
      const wanted = `${widths[index]} ${JSON.stringify(panel)}`;
      if (drawn[index] === wanted) return;
      drawn[index] = wanted;
      const drawing = drawPanel(panel, widths[index] || 320, { pick, moving: motion, short });
      // What may move is drawn anew: an animation starts, and ends, with its node.
      if (panel.kind === "graph") boxes[index].replaceChildren(...drawing);
      else morphChildren(boxes[index], drawing);
    });
    morphChildren(readouts, chart.readouts.map(drawReadout));
    morphChildren(words, chart.words.map((sentence) => html("p", {}, sentence)));
    if (numbers.open) showNumbers();
  }

  const sizes = new ResizeObserver(() => {
    if (!chart) return;
    const now = [...panels.children].map((box) => box.clientWidth);
    if (now.join() === widths.join()) return;
    widths = now;
    draw();
  });
  sizes.observe(panels);

  function showNumbers() {
    if (!chart) ask();
    else tables.replaceChildren(...numberTables(chart.panels));
  }
  const tables = html("div", { class: "sl-tables", tabindex: 0, role: "region", "aria-label": texts.numbers });
  const numbers = html(
    "details",
    { class: "sl-numbers", ontoggle: () => numbers.open && showNumbers() },
    html("summary", {}, texts.numbers),
    tables,
  );

  // Foot ------------------------------------------------------------------------------------------------------
  const forget = debounced(2500, () => (note.textContent = ""));
  async function copy(text) {
    note.textContent = (await copyText(text)) ? texts.copied : texts.notCopied;
    now(note.textContent);
    forget();
  }
  const foot = html(
    "div",
    { class: "sl-foot" },
    html("button", { type: "button", onclick: () => (take(home), options.onReset?.()) }, texts.reset),
    options.linkTo && html("button", { type: "button", onclick: () => copy(options.linkTo(values)) }, texts.copyLink),
    html("button", { type: "button", onclick: () => copy(pythonCall(spec, values)) }, texts.copyPython),
    note,
    numbers,
  );

  const section = html(
    "div",
    { class: "sl-experiment", role: "group", "aria-labelledby": titleId },
    html(
      "div",
      { class: "sl-head" },
      html("p", { class: "sl-title", id: titleId }, spec.title),
      html("p", { class: "sl-question" }, spec.question),
    ),
    spec.presets.length > 0 &&
      html("div", { class: "sl-presets", role: "group", "aria-label": texts.presets }, ...presetButtons, source),
    players.map(({ element, control }) =>
      html("div", { class: "sl-player" }, element, controls.get(control.name).element),
    ),
    html(
      "div",
      { class: others.length <= FEW_CONTROLS ? "sl-body sl-few" : "sl-body" },
      html("div", { class: "sl-controls" }, ...others.map(({ name }) => controls.get(name).element)),
      picture,
      foot,
    ),
    problem,
    region,
  );
  root.replaceChildren(section);
  showValues(same(home, values) ? options.texts : {});
  engine.onAnswer?.(answer);

  return {
    ask,
    destroy() {
      players.forEach(({ pause }) => pause());
      sizes.disconnect();
      section.remove();
    },
  };
}

// Stops of a log slider are evenly spaced on a log scale, so the nearest one is too.
function nearestOnScale(control, value) {
  if (!(control.least > 0)) return nearestStop(control, value);
  const logs = { ...control, stops: control.stops.map(Math.log) };
  return nearestStop(logs, Math.log(value));
}

function drawReadout({ label, value, note, role }) {
  return html(
    "div",
    { role: "listitem" },
    html("span", { class: "sl-label" }, label),
    html("strong", { style: `color: var(--sl-${role})` }, value),
    note && html("small", {}, note),
  );
}

export function pythonCall(spec, values) {
  const literal = (value) => ({ true: "True", false: "False" })[value] ?? JSON.stringify(value);
  const given = spec.controls.map(({ name }) => `${name}=${literal(values[name])}`);
  return `experiment(${[JSON.stringify(spec.name), ...given].join(", ")})`;
}
