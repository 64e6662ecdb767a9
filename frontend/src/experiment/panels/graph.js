// Nodes and arrows. What travels along an arrow is a small tag on it.

import { color, svg, uniqueId, wantsLittleMotion } from "../../common/dom.js";

const TRAVEL_MS = 550;
const REST = 0.58; // where on its arrow a tag comes to rest
const REST_OF_TWO = 0.8; // the arrows of two nodes cross the middle, where words stand

export function drawGraph(panel, width, { moving }) {
  const { nodes, arrows, middle } = panel;
  const size = Math.min(width, 270);
  const radius = Math.max(10, Math.min(20, size / 3 / Math.sqrt(nodes.length) / 1.6));
  const scale = size / 2 - radius - 6;
  const place = ({ x, y }) => [width / 2 + scale * x, size / 2 - scale * y];
  const headId = uniqueId("sl-head");
  const root = svg("svg", { width, height: size, viewBox: `0 0 ${width} ${size}` });
  root.append(
    svg(
      "defs",
      {},
      svg(
        "marker",
        { id: headId, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" },
        svg("path", { d: "M0 0L8 4L0 8Z", fill: "context-stroke" }),
      ),
    ),
  );
  const rest = nodes.length === 2 ? REST_OF_TWO : REST;
  const tags = [];
  for (const arrow of arrows) {
    const from = place(nodes[arrow.source]);
    const to = place(nodes[arrow.target]);
    const length = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
    const unit = [(to[0] - from[0]) / length, (to[1] - from[1]) / length];
    // Two nodes send both ways: keep the arrows apart.
    const both = arrows.some((other) => other.source === arrow.target && other.target === arrow.source);
    const shift = both ? [unit[1] * 9, -unit[0] * 9] : [0, 0];
    const at = (distance) => [from[0] + unit[0] * distance + shift[0], from[1] + unit[1] * distance + shift[1]];
    const [start, end] = [at(radius + 2), at(length - radius - 3)];
    root.append(
      svg("line", {
        x1: start[0],
        y1: start[1],
        x2: end[0],
        y2: end[1],
        stroke: color(arrow.role),
        "stroke-width": arrow.label ? 2 : 1.5,
        "marker-end": `url(#${headId})`,
      }),
    );
    if (arrow.label) tags.push(drawTag(arrow, at(length * rest), at(0), radius, moving));
  }
  for (const node of nodes) root.append(drawNode(node, place(node), radius));
  root.append(...tags);
  middle.forEach((line, index) =>
    root.append(
      svg(
        "text",
        {
          x: width / 2,
          y: size / 2 + (index - (middle.length - 1) / 2) * 20 + 5,
          "text-anchor": "middle",
          "font-size": index ? 13 : 14,
          "font-weight": index ? "normal" : "bold",
          fill: color(index ? "muted" : "text"),
          stroke: color("halo"),
          "stroke-width": 4,
          "paint-order": "stroke",
        },
        line,
      ),
    ),
  );
  return root;
}

function drawNode({ label, role, level }, [x, y], radius) {
  const around = 2 * Math.PI * (radius - 1.5);
  return svg(
    "g",
    { transform: `translate(${x},${y})` },
    svg("circle", { r: radius, fill: color("surface"), stroke: color("muted"), "stroke-width": 1 }),
    // The rim fills clockwise from the top.
    svg("circle", {
      r: radius - 1.5,
      fill: "none",
      stroke: color(role),
      "stroke-width": 4,
      "stroke-dasharray": `${level * around} ${around}`,
      transform: "rotate(-90)",
    }),
    svg(
      "text",
      { "text-anchor": "middle", y: "0.36em", "font-size": Math.min(14, radius), "font-weight": "bold", fill: color("text") },
      label,
    ),
  );
}

function drawTag({ label, role }, rest, start, radius, moving) {
  const side = Math.min(20, radius * 1.35);
  const tag = svg(
    "g",
    { transform: `translate(${rest[0]},${rest[1]})` },
    svg("rect", {
      x: -side / 2,
      y: -side / 2,
      width: side,
      height: side,
      rx: 3,
      fill: color(role),
      stroke: color("panel"),
      "stroke-width": 1.5,
    }),
    svg(
      "text",
      { "text-anchor": "middle", y: "0.36em", "font-size": side * 0.62, "font-weight": "bold", class: "sl-on-colour" },
      label,
    ),
  );
  if (moving && !wantsLittleMotion()) {
    const path = [start, rest].map(([x, y]) => ({ transform: `translate(${x}px,${y}px)` }));
    tag.animate(path, { duration: TRAVEL_MS, easing: "ease-in-out" });
  }
  return tag;
}
