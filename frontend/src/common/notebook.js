// JupyterLab takes keys for its shortcuts ("dd" deletes the cell) unless what has the focus says otherwise. Only Ctrl+S is
// for the notebook.
const SUPPRESS = "data-lm-suppress-shortcuts";
const forNotebook = (event) => (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s";

/** Leave keys to the fields and buttons in an element of a notebook's cell. Returns what ends it. */
export function keepKeys(element) {
  // The mark must be on the very target: shortcuts are looked for from there upwards. Of a shadow tree that is its host.
  const suppress = (event) => {
    if (element.contains(event.target)) event.target.toggleAttribute(SUPPRESS, !forNotebook(event));
  };
  window.addEventListener("keydown", suppress, true); // before JupyterLab's own, which is on the document
  return () => window.removeEventListener("keydown", suppress, true);
}

/** Show an element with fields in a notebook's cell. Returns what anywidget calls when the view goes. */
export function showInNotebook(element, el) {
  const release = keepKeys(element);
  el.append(element);
  return () => {
    release();
    element.remove();
  };
}
