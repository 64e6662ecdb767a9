// What <book-quiz> and <book-predict> share: a custom element whose data is the JSON in its <script> child, or given by
// a notebook's widget. Its other children are the same questions as text, which stay without scripts and on paper.

function dataIn(element, list) {
  const script = element.querySelector(':scope > script[type="application/json"]');
  try {
    const data = JSON.parse(script.textContent);
    return Array.isArray(data[list]) && data[list].length ? data : null;
  } catch {
    return null;
  }
}

/** Subclasses name the `static list` that their data must hold, and `show()` draws what is in `this.data`. */
export class DataElement extends HTMLElement {
  connectedCallback() {
    if (this.data) this.show();
    // A script in the page's head runs before the element's data is there.
    else if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => this.start(), { once: true });
    else this.start();
  }

  start() {
    if (!this.isConnected || this.data) return;
    const data = dataIn(this, this.constructor.list);
    // Without data the text stays as it is.
    if (data) this.use(data);
    else console.error(`${this.localName}: no readable data`, this);
  }

  /** Take the data, and the widget's model in a notebook. */
  use(data, model = null) {
    this.data = data;
    this.model = model;
    if (this.isConnected) this.show();
  }

  /** The shadow root, opened when first asked for. */
  get root() {
    if (this.shadowRoot) return this.shadowRoot;
    const root = this.attachShadow({ mode: "open" });
    // JupyterLab cancels line breaks in anything inside a cell.
    root.addEventListener("beforeinput", (event) => event.stopPropagation());
    return root;
  }
}
