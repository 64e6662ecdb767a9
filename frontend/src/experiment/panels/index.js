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

// Panels in more than one row are drawn less high: the whole experiment still fits a laptop's screen.
// Timelines and tables have a row of their own; of curves two share one. The still picture goes by the same rule.
export function areShort(kinds) {
  const wide = kinds.filter((kind) => kind === "timeline" || kind === "table").length;
  return (wide > 0 && kinds.length > 1) || kinds.filter((kind) => kind === "lines").length > 2;
}

export function drawPanel(panel, width, options) {
  const drawing = KINDS[panel.kind](panel, width, options);
  if (drawing instanceof SVGElement) {
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", panel.alt || panel.title);
  }
  return [html("div", { class: "sl-panel-title" }, panel.title, key(panel)), drawing];
}
