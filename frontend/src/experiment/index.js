// Live experiments. On a page this file is a script that defines <live-experiment>; in a notebook it is the
// front end of the widget (see build.mjs).

import { keepKeys } from "../common/notebook.js";
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
  const release = keepKeys(el);
  const view = renderExperiment(el, spec, engine, state);
  return () => {
    release();
    engine.stop();
    view.destroy();
  };
}

export { renderExperiment };
export default { render };
