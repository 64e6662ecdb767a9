// The quiz and the reader's progress: custom elements for the page, and the default export that anywidget calls in a notebook.

import { showInNotebook } from "../common/notebook.js";
import { BookQuiz } from "./element.js";
import { BookQuizProgress } from "./progress.js";

export { grade, parseNumber } from "./grade.js";

// A notebook evaluates this once per kernel: the first definition stays.
if (!customElements.get("book-quiz")) customElements.define("book-quiz", BookQuiz);
if (!customElements.get("book-quiz-progress")) customElements.define("book-quiz-progress", BookQuizProgress);

function render({ model, el }) {
  const element = document.createElement("book-quiz");
  element.use(model.get("quiz"), model);
  return showInNotebook(element, el);
}

export default { render };
