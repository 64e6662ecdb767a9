// A panel is a titled picture. Each kind has a function that draws it at a width.

import { html } from "../../common/dom.js";
import { drawBars } from "./bars.js";
import { drawGraph } from "./graph.js";
import { drawLines } from "./lines.js";
import { drawMatrix } from "./matrix.js";
import { drawTable } from "./table.js";
import { drawTimeline } from "./timeline.js";

const KINDS = {
  bars: drawBars,
  graph: drawGraph,
  lines: drawLines,
  matrix: drawMatrix,
  table: drawTable,
  timeline: drawTimeline,
};

// Names what is drawn without a name beside it: parts of bars, bands, reference points.
function keyItems(panel) {
  if (panel.kind === "bars" && panel.stacks.length > 1) {
    return panel.stacks.map(({ label, role, texture }) => [label, texture, role]);
  }
  if (panel.kind !== "lines") return [];
  const rings = panel.marks.filter(({ shape }) => shape === "ring").map(({ label, role }) => [label, "ring", role]);
  return [...rings.slice(0, 1), ...panel.bands.map(({ label, role }) => [label, "band", role])];
}

function key(panel) {
  const items = keyItems(panel);
  if (items.length === 0) return null;
  return html(
    "span",
    { class: "sl-key" },
    ...items.map(([label, look, role]) => html("span", { class: `sl-key-${look}`, style: `--sl-key: var(--sl-${role})` }, label)),
  );
}

export function drawPanel(panel, width, options) {
  const drawing = KINDS[panel.kind](panel, width, options);
  if (drawing instanceof SVGElement) {
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", panel.alt || panel.title);
  }
  return [html("div", { class: "sl-panel-title" }, panel.title, key(panel)), drawing];
}
