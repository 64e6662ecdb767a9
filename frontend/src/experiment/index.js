// Live experiments. On a page this file is a script that defines <live-experiment>; in a notebook it is the
// front end of the widget (see build.mjs).

import { defineElement } from "./element.js";
import { notebookEngine } from "./engine-notebook.js";
import { renderExperiment } from "./render.js";

// A module has no current script: then this is a notebook.
const script = globalThis.document?.currentScript;
if (script) defineElement(new URL(".", script.src).href);

function render({ model, el }) {
  const spec = model.get("spec");
  const state = Object.fromEntries(spec.controls.map(({ name }) => [name, model.get(name)]));
  const engine = notebookEngine(model);
  // JupyterLab takes keys for its commands, and the focus with them, unless told to leave them to the controls.
  el.dataset.lmSuppressShortcuts = "true";
  for (const type of ["keydown", "keyup", "keypress"]) el.addEventListener(type, (event) => event.stopPropagation());
  const view = renderExperiment(el, spec, engine, state);
  return () => {
    engine.stop();
    view.destroy();
  };
}

export { renderExperiment };
export default { render };
