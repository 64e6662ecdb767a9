// JupyterLab takes keys for its shortcuts ("dd" deletes the cell) unless the element says otherwise: it can't see the
// fields inside. Only Ctrl+S is for the notebook.
const SUPPRESS = "data-lm-suppress-shortcuts";
const forNotebook = (event) => (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s";

/** Show an element with fields in a notebook's cell. Returns what anywidget calls when the view goes. */
export function showInNotebook(element, el) {
  const suppress = (event) => element.toggleAttribute(SUPPRESS, !forNotebook(event));
  element.setAttribute(SUPPRESS, "");
  window.addEventListener("keydown", suppress, true); // before JupyterLab's own, which is on the document
  el.append(element);
  return () => {
    window.removeEventListener("keydown", suppress, true);
    element.remove();
  };
}
