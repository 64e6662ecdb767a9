// Labelled native inputs for an experiment's controls. Values are SI; texts come from Python.

import { html, uniqueId } from "../common/dom.js";
import { texts } from "./texts.js";

const BARE_NUMBER = /^[\d.,_\s]*\d[\d.,_\s]*(e[+-]?\d+)?$/i;
const FEW = 4;

export function nearestStop(control, value) {
  let best = 0;
  control.stops.forEach((stop, index) => {
    if (Math.abs(stop - value) < Math.abs(control.stops[best] - value)) best = index;
  });
  return best;
}

// Every control is {element, show(value, text), bound(limits)}; it calls change(value) when the reader sets it.
export function makeControl(control, change) {
  const make = { slider: makeSlider, stepper: makeSlider, choice: makeChoice, toggle: makeToggle }[control.kind];
  return make(control, change);
}

function makeSlider(control, change) {
  const id = uniqueId(`sl-${control.name}`);
  let shown = "";
  const range = html("input", {
    type: "range",
    id,
    min: 0,
    max: control.stops.length - 1,
    step: 1,
    oninput: () => {
      const index = Number(range.value);
      show(control.stops[index], control.labels[index]);
      change(control.stops[index]);
    },
  });
  const box = html("input", {
    type: "text",
    class: "sl-value",
    autocomplete: "off",
    spellcheck: "false",
    inputmode: control.whole ? "numeric" : undefined,
    "aria-label": texts.typed(control.label),
    size: 9,
    onchange: () => send(),
    onkeydown: ({ key }) => {
      if (key === "Escape") box.value = shown;
      if (key === "Enter") send(); // in a notebook no change follows this key
    },
  });

  let sent = null;
  function send() {
    if (box.value === sent) return;
    sent = box.value;
    change(typedValue(sent));
  }

  // "2e9" in a box with a unit keeps the unit that stood there; "2 GB/s" is read by Python.
  function typedValue(typed) {
    const text = typed.trim().replace(/\s+/g, " ");
    const bare = BARE_NUMBER.test(text);
    if (!control.si_unit) return bare ? Number(text.replace(/[,_ ]/g, "")) : text;
    return bare ? `${text} ${shown.split(" ").slice(1).join(" ")}` : text;
  }

  function show(value, text) {
    range.value = nearestStop(control, value);
    range.setAttribute("aria-valuetext", text);
    shown = text;
    sent = null;
    box.value = text;
    box.removeAttribute("aria-invalid");
  }

  return {
    element: html(
      "div",
      { class: `sl-control sl-${control.kind}` },
      html("label", { for: id }, control.label),
      box,
      range,
    ),
    show,
    bound: ({ most, enabled }) => {
      if (most !== undefined) range.max = nearestStop(control, most);
      range.disabled = box.disabled = enabled === false;
    },
    refuse: () => box.setAttribute("aria-invalid", "true"),
    range,
  };
}

function makeChoice(control, change) {
  const bound = (inputs) => ({ enabled }) => inputs.forEach((input) => (input.disabled = enabled === false));
  if (control.stops.length > FEW) {
    const id = uniqueId(`sl-${control.name}`);
    const options = control.stops.map((value, index) => html("option", { value }, control.labels[index]));
    const select = html("select", { id, onchange: () => change(select.value) }, ...options);
    return {
      element: html("div", { class: "sl-control sl-choice" }, html("label", { for: id }, control.label), select),
      show: (value) => (select.value = value),
      bound: bound([select]),
    };
  }
  const name = uniqueId(`sl-${control.name}`);
  const inputs = control.stops.map((value) =>
    html("input", { type: "radio", name, value, onchange: () => change(value) }),
  );
  const labels = inputs.map((input, index) => html("label", {}, input, html("span", {}, control.labels[index])));
  return {
    element: html("fieldset", { class: "sl-control sl-choice" }, html("legend", {}, control.label), ...labels),
    show: (value) => inputs.forEach((input) => (input.checked = input.value === value)),
    bound: bound(inputs),
  };
}

function makeToggle(control, change) {
  const input = html("input", { type: "checkbox", onchange: () => change(input.checked) });
  return {
    element: html("div", { class: "sl-control sl-toggle" }, html("label", {}, input, html("span", {}, control.label))),
    show: (value) => (input.checked = value),
    bound: ({ enabled }) => (input.disabled = enabled === false),
  };
}
