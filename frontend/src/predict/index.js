// The prediction: a custom element for the page, and the default export that anywidget calls in a notebook.

import { showInNotebook } from "../common/notebook.js";
import { BookPredict } from "./element.js";

// A notebook evaluates this once per kernel: the first definition stays.
if (!customElements.get("book-predict")) customElements.define("book-predict", BookPredict);

function render({ model, el }) {
  const element = document.createElement("book-predict");
  element.use(model.get("prediction"), model);
  return showInNotebook(element, el);
}

export default { render };
