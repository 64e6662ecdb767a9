// Lanes over time: what runs when, with named limits and ranges.

import { color, svg } from "../../common/dom.js";
import { bandsOf, fittingRight, line, makePlane, ROUNDING, scaleOf, textRole, write } from "./plane.js";
import { textured } from "./texture.js";

// About the width of one letter of a label.
const LETTER = 6.9;
const BOLD_LETTER = 7.6;

export function drawTimeline(panel, width, { short }) {
  const { lanes, time, spans, limits, brackets } = panel;
  const longest = Math.max(...lanes.map((name) => name.length));
  const height = 58 + (short ? 22 : 26) * lanes.length;
  const left = 12 + 6.6 * longest;
  const wanted = [
    ...spans.filter(({ label }) => label).map(({ end, label }) => [end, 5 + LETTER * label.length]),
    ...brackets.map(({ high, at: here, label }) => [Math.max(high, here), 9 + BOLD_LETTER * label.length]),
  ];
  const right = width - fittingRight(time, left, width - 12, width, wanted);
  const plane = makePlane(width, height, { left, right, top: 20, bottom: 38 });
  const at = scaleOf(time, plane.left, plane.right);
  const lane = bandsOf(lanes.length, plane.top, plane.bottom, 0.28);
  const texture = textured();
  // A narrow place may leave less room on the right than a label takes: then the label moves onto the bar.
  const beside = (x, letter, label) => Math.min(x, width - letter * label.length);
  plane.xAxis(time, at);
  plane.topLimits(limits, at);
  lanes.forEach((name, index) => plane.add(write(name, plane.left - 8, lane(index).middle, "text", { anchor: "end" })));
  for (const item of spans) {
    const { top, height: thick, middle } = lane(item.lane);
    const x = at(item.start);
    const fill = texture.fill(item);
    const label = beside(at(item.end) + 5, LETTER, item.label);
    // On a bar of its own colour a label could not be read.
    const role = label < at(item.end) ? "text" : item.text_role || textRole(item.role);
    plane.add(
      svg("rect", { x, y: top, width: Math.max(0.5, at(item.end) - x), height: thick, rx: 2, fill }),
      write(item.label, label, middle, role, { halo: true }),
    );
  }
  for (const { lane: index, low, high, at: here, label } of brackets) {
    const { top, height: thick, middle } = lane(index);
    const look = { "stroke-width": 1.5 };
    const length = BOLD_LETTER * label.length;
    // The dot may lie outside its bracket, and the label belongs to the dot.
    const [first, last] = [at(Math.min(low, here)), at(Math.max(high, here))];
    const before = last + 9 + length > width + ROUNDING && first - 9 - length > plane.left;
    plane.add(
      line(at(low), middle, at(high), middle, "muted", look),
      ...[low, high].map((end) => line(at(end), top + 3, at(end), top + thick - 3, "muted", look)),
      svg("circle", { cx: at(here), cy: middle, r: 5, fill: color("text") }),
      before
        ? write(label, first - 9, middle, "text", { halo: true, bold: true, anchor: "end" })
        : write(label, beside(last + 9, BOLD_LETTER, label), middle, "text", { halo: true, bold: true }),
    );
  }
  texture.addTo(plane.root);
  return plane.root;
}
