// The quiz and the reader's progress: custom elements for the page, and the default export that anywidget calls in a notebook.

import { BookQuiz } from "./element.js";
import { BookQuizProgress } from "./progress.js";

export { grade, parseNumber } from "./grade.js";

// A notebook evaluates this once per kernel: the first definition stays.
if (!customElements.get("book-quiz")) customElements.define("book-quiz", BookQuiz);
if (!customElements.get("book-quiz-progress")) customElements.define("book-quiz-progress", BookQuizProgress);

// JupyterLab takes keys for its shortcuts ("dd" deletes the cell) unless the element says otherwise: it can't see the
// fields inside. Only Ctrl+S is for the notebook.
const SUPPRESS = "data-lm-suppress-shortcuts";
const forNotebook = (event) => (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s";

function render({ model, el }) {
  const element = document.createElement("book-quiz");
  const suppress = (event) => element.toggleAttribute(SUPPRESS, !forNotebook(event));
  element.setAttribute(SUPPRESS, "");
  window.addEventListener("keydown", suppress, true); // before JupyterLab's own, which is on the document
  element.use(model.get("quiz"), model);
  el.append(element);
  return () => {
    window.removeEventListener("keydown", suppress, true);
    element.remove();
  };
}

export default { render };
