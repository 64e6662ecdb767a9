// Fills of bars: solid, light, or hatched (idle time), so that roles differ in grey as well.

import { color, svg, uniqueId } from "../../common/dom.js";

export function textured() {
  const patterns = new Map();

  function pattern(role, texture) {
    const key = `${role} ${texture}`;
    if (!patterns.has(key)) {
      const id = uniqueId("sl-pattern");
      // Idle time is paler than any other role: stripes of its own colour could not be seen on a light page.
      const stroke =
        role === "idle"
          ? { stroke: color("idle-text"), "stroke-width": 1 }
          : { stroke: color(role), "stroke-width": texture === "hatch" ? 2.5 : 1.5 };
      const size = texture === "hatch" ? 6 : 4;
      patterns.set(
        key,
        svg(
          "pattern",
          { id, width: size, height: size, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
          svg("rect", { width: size, height: size, fill: color(role), opacity: 0.3 }),
          svg("line", { x1: 0, y1: 0, x2: 0, y2: size, ...stroke }),
        ),
      );
    }
    return `url(#${patterns.get(key).id})`;
  }

  return {
    fill: ({ role, texture }) => (texture === "solid" ? color(role) : pattern(role, texture)),
    addTo: (plot) => patterns.size && plot.prepend(svg("defs", {}, ...patterns.values())),
  };
}
