// Text in rows and columns.

import { html } from "../../common/dom.js";

export function drawTable(panel) {
  const head = html("tr", {}, ...panel.columns.map((name) => html("th", { scope: "col" }, name)));
  const body = panel.rows.map(([first, ...others], index) =>
    html(
      "tr",
      { class: panel.strong_rows.includes(index) ? "sl-strong" : undefined },
      html("th", { scope: "row" }, first),
      ...others.map((text) => html("td", {}, text)),
    ),
  );
  return html(
    "div",
    { class: "sl-table", tabindex: 0, role: "region", "aria-label": panel.title },
    html("table", {}, html("thead", {}, head), html("tbody", {}, ...body)),
  );
}
