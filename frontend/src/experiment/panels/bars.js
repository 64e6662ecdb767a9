// Horizontal stacked bars, one for each category, with named limits.

import { svg } from "../../common/dom.js";
import { bandsOf, fittingRight, makePlane, ROUNDING, scaleOf, write } from "./plane.js";
import { textured } from "./texture.js";

const MOST_TEXTS = 8; // more bars are too thin for a text each
const LETTER = 6.3; // about the width of one letter of such a text
const GAP = 5;

export function drawBars(panel, width, { short }) {
  const { categories, value, stacks, limits, texts } = panel;
  const longest = Math.max(...categories.map((name) => name.length));
  const [most, all] = short ? [24, 108] : [40, 184];
  const step = Math.max(11.5, Math.min(most, all / categories.length));
  const height = 62 + step * categories.length;
  const left = 14 + 7 * longest;
  const sums = categories.map((_, index) => stacks.reduce((sum, { values }) => sum + values[index], 0));
  const named = categories.length <= MOST_TEXTS;
  const wanted = named ? sums.map((sum, index) => [sum, GAP + LETTER * texts[index].length]) : [];
  const right = width - fittingRight(value, left, width - 12, width, wanted);
  const plane = makePlane(width, height, { left, right, top: 22, bottom: 38 });
  const at = scaleOf(value, plane.left, plane.right);
  const band = bandsOf(categories.length, plane.top, plane.bottom, 0.22);
  const texture = textured();
  plane.xAxis(value, at);
  categories.forEach((name, index) => {
    const { top, height: thick, middle } = band(index);
    plane.add(write(name, plane.left - 7, middle, "text", { anchor: "end", size: Math.min(12, step) }));
    let sum = 0;
    for (const stack of stacks) {
      const x = at(sum);
      sum += stack.values[index];
      const fill = texture.fill(stack);
      if (at(sum) > x) plane.add(svg("rect", { x, y: top, width: at(sum) - x, height: thick, fill }));
    }
  });
  plane.topLimits(limits, at);
  // After the limits, so that no line crosses a text. Where a bar leaves no room for its text, it moves onto the bar.
  const look = { size: 11, halo: true };
  (named ? texts : []).forEach((text, index) => {
    const length = LETTER * text.length;
    const end = at(sums[index]);
    const { middle } = band(index);
    if (end + GAP + length > width + ROUNDING && end - GAP - length > plane.left) {
      plane.add(write(text, end - GAP, middle, "text", { ...look, anchor: "end" }));
    } else {
      plane.add(write(text, Math.max(plane.left + GAP, Math.min(end + GAP, width - length)), middle, "text", look));
    }
  });
  texture.addTo(plane.root);
  return plane.root;
}
