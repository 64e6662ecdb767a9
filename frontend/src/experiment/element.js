// <live-experiment name="scaling-explorer" state='{"ranks": 64}'>static picture</live-experiment>
// The picture inside stands until the reader touches the experiment.

import { debounced } from "../common/dom.js";
import { addressWith, stateFromAddress } from "./address.js";
import { pageEngine } from "./engine-page.js";
import { renderExperiment } from "./render.js";

const TOUCHES = ["pointerdown", "focusin", "keydown"];

// The book's theme shows a table of contents in the right margin, where a wide experiment wants to be.
function marginKeeper() {
  const wide = matchMedia("(min-width: 1200px)");
  const inMargin = new Set();
  return new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) inMargin[isIntersecting ? "add" : "delete"](target);
    const hide = wide.matches && inMargin.size > 0;
    document.querySelector(".bd-sidebar-secondary")?.classList.toggle("hide", hide);
  });
}

function setAddress(address) {
  try {
    history.replaceState(history.state, "", address);
  } catch {
    // Some browsers keep the address of a page from a disk as it is; the link can still be copied.
  }
}

// Tables of the labs may be wider than the text column, and wander into the margin as well; so does the ledger.
function widenTables(margin) {
  for (const table of document.querySelectorAll(".shardlab-table, .sl-ledger")) {
    if (table.scrollWidth <= table.clientWidth && !table.matches(".sl-ledger")) continue;
    table.classList.add("sl-wider");
    margin.observe(table);
  }
}

export function defineElement(base) {
  const margin = marginKeeper();
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", () => widenTables(margin));
  else widenTables(margin);

  class LiveExperiment extends HTMLElement {
    connectedCallback() {
      if (this.view) return;
      const name = this.getAttribute("name");
      const spec = globalThis.shardlabExperiments?.[name]?.spec;
      if (!spec) return; // the picture stays
      const id = this.ownId(name);
      const fromAddress = stateFromAddress(id, spec);
      const home = JSON.parse(this.getAttribute("state") || "{}");
      const remember = debounced(300, (values) => setAddress(addressWith(id, values)));
      let touched = false;
      this.view = renderExperiment(this, spec, pageEngine(base, name, this), { ...home, ...fromAddress }, {
        home,
        texts: JSON.parse(this.getAttribute("texts") || "{}"),
        picture: [...(this.querySelector(".sl-picture")?.childNodes ?? [])],
        linkTo: (values) => addressWith(id, values),
        onChange: (values) => touched && remember(values),
        onReset: () => {
          remember.cancel();
          touched = false;
          setAddress(addressWith(id, null));
        },
      });
      margin.observe(this);
      const start = () => {
        TOUCHES.forEach((event) => this.removeEventListener(event, start));
        this.view.ask();
      };
      TOUCHES.forEach((event) => this.addEventListener(event, start));
      for (const event of ["input", "change", "click"]) this.addEventListener(event, () => (touched = true), true);
      if (Object.keys(fromAddress).length > 0) {
        start();
        if (location.hash === `#${id}`) this.scrollIntoView();
      }
    }

    // The id is the experiment's prefix in the address; a second one of the same name gets "-2".
    ownId(name) {
      if (!this.id) {
        let id = `live-${name}`;
        for (let count = 2; document.getElementById(id); count += 1) id = `live-${name}-${count}`;
        this.id = id;
      }
      return this.id;
    }
  }
  if (!customElements.get("live-experiment")) customElements.define("live-experiment", LiveExperiment);
}
