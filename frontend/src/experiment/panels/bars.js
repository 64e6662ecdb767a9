// Horizontal stacked bars, one for each category, with named limits.

import { svg } from "../../common/dom.js";
import { bandsOf, makePlane, scaleOf, write } from "./plane.js";
import { textured } from "./texture.js";

const MOST_TEXTS = 8; // more bars are too thin for a text each
const LETTER = 6.6; // about the width of one letter of such a text

export function drawBars(panel, width, { short }) {
  const { categories, value, stacks, limits, texts } = panel;
  const longest = Math.max(...categories.map((name) => name.length));
  const [most, all] = short ? [24, 108] : [40, 184];
  const step = Math.max(11.5, Math.min(most, all / categories.length));
  const height = 62 + step * categories.length;
  const plane = makePlane(width, height, { left: 14 + 7 * longest, right: 12, top: 22, bottom: 38 });
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
    if (categories.length <= MOST_TEXTS) {
      // Where a bar leaves no room for its text, the text moves onto it.
      const x = Math.max(plane.left + 5, Math.min(at(sum) + 5, width - LETTER * texts[index].length));
      plane.add(write(texts[index], x, middle, "text", { size: 11, halo: true }));
    }
  });
  plane.topLimits(limits, at);
  texture.addTo(plane.root);
  return plane.root;
}
