// Play, pause, step and back for a control that counts steps. Nothing moves until the reader presses a button.

import { html } from "../common/dom.js";
import { texts } from "./texts.js";

const STEP_MS = 1100;

// `position` and `last` read the control, `move(position)` sets it.
export function makePlayer({ position, last, move }) {
  let timer = null;

  function pause() {
    clearInterval(timer);
    timer = null;
    refresh();
  }
  function go(target) {
    move(Math.max(0, Math.min(last(), target)));
    refresh();
  }
  function tick() {
    go(position() + 1);
    if (position() >= last()) pause();
  }
  function play() {
    if (position() >= last()) go(0);
    else tick();
    if (position() < last()) timer = setInterval(tick, STEP_MS);
    refresh();
  }
  const button = (label, action) => html("button", { type: "button", onclick: action }, label);
  const start = button(texts.toStart, () => (pause(), go(0)));
  const back = button(texts.stepBack, () => (pause(), go(position() - 1)));
  const toggle = button(texts.play, () => (timer ? pause() : play()));
  const step = button(texts.stepForward, () => (pause(), go(position() + 1)));
  toggle.classList.add("sl-main");

  // Buttons stay focusable at the ends: a disabled one would throw a keyboard reader out of the row.
  function refresh() {
    toggle.textContent = timer ? texts.pause : texts.play;
    for (const one of [start, back]) one.setAttribute("aria-disabled", position() <= 0);
    step.setAttribute("aria-disabled", position() >= last());
  }
  return { element: html("div", { class: "sl-buttons" }, start, back, toggle, step), refresh, pause };
}
