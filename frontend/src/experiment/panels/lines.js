// Curves over a linear or log axis, with bands, named limits, marks, and names at the ends of the curves.

import { color, svg, uniqueId } from "../../common/dom.js";
import { line, makePlane, scaleOf, textRole, write } from "./plane.js";

const WIDTHS = { strong: 2.75, normal: 1.5, thin: 1 };
const NEAR_END = 0.62; // labels of marks right of it stand on their left
const HALF_LABEL = 8; // a mark's label at the top stays in the picture

const pathOf = (points) => "M" + points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");

export function drawLines(panel, width, { pick, short }) {
  const { x, y, series, bands, limits, marks } = panel;
  const longest = Math.max(...series.map(({ label }) => label.length));
  const longestTick = Math.max(...y.ticks.map(([, text]) => text.length));
  const height = short ? 165 : Math.max(184, Math.min(250, width * 0.6));
  const axisWidth = Math.max(44, 10 + 7.5 * longestTick);
  const plane = makePlane(width, height, { left: axisWidth, right: 12 + 6.8 * longest, top: y.label ? 24 : 12, bottom: 38 });
  const atX = scaleOf(x, plane.left, plane.right);
  const atY = scaleOf(y, plane.bottom, plane.top);
  const area = uniqueId("sl-area");
  const inside = svg("g", { "clip-path": `url(#${area})` });
  const { left, right, top, bottom } = plane;
  plane.add(svg("clipPath", { id: area }, svg("rect", { x: left, y: top, width: right - left, height: bottom - top })));
  plane.yAxis(y, atY);
  plane.xAxis(x, atX);
  for (const { points, role } of bands) {
    const edge = [
      ...points.map(([at, low]) => [atX(at), atY(low)]),
      ...points.map(([at, , high]) => [atX(at), atY(high)]).reverse(),
    ];
    inside.append(svg("path", { d: `${pathOf(edge)}Z`, fill: color(role), "fill-opacity": 0.16 }));
  }
  plane.add(inside);
  for (const { value, label, side, align } of limits) {
    const end = align === "end";
    const at = atY(value);
    plane.add(
      line(left, at, right, at, "limit", { "stroke-width": 0.75 }),
      write(label, end ? right - 3 : left + 4, at + (side === "below" ? 9 : -8), "limit", { size: 11, anchor: align, halo: true }),
    );
  }
  const curves = svg("g", { "clip-path": `url(#${area})`, fill: "none", "stroke-linejoin": "round" });
  for (const { points, role, weight, dashed } of series) {
    const d = pathOf(points.map(([at, value]) => [atX(at), atY(value)]));
    curves.append(
      svg("path", { d, stroke: color(role), "stroke-width": WIDTHS[weight], "stroke-dasharray": dashed && "4 4" }),
    );
  }
  plane.add(curves);
  for (const { label, label_place: place, role, weight } of series) {
    plane.add(write(label, right + 6, bottom + (top - bottom) * place, textRole(role), { bold: weight === "strong" }));
  }
  marks.forEach((mark) => drawMark(plane, mark, atX(mark.x), atY(mark.y)));
  if (x.control) letPointerPick(plane.root, x, atX, pick);
  return plane.root;
}

function drawMark(plane, { label, role, shape }, x, y) {
  if (shape === "ring") {
    plane.add(svg("circle", { cx: x, cy: y, r: 4.5, fill: color("panel"), stroke: color(role), "stroke-width": 1.25 }));
    return;
  }
  const beyond = x > plane.left + NEAR_END * (plane.right - plane.left);
  plane.add(
    line(x, y, x, plane.bottom, "muted", { "stroke-dasharray": "2 3" }),
    svg("circle", { cx: x, cy: y, r: 5, fill: color(role), stroke: color("panel"), "stroke-width": 1.5 }),
    write(label, x + (beyond ? -8 : 8), Math.max(y - 11, HALF_LABEL), textRole(role), {
      size: 13,
      anchor: beyond ? "end" : "start",
      halo: true,
      bold: true,
    }),
  );
}

// A reader may also point at the x axis's quantity; the slider does the same for keyboards.
function letPointerPick(root, axis, scale, pick) {
  root.pointed = (event) => {
    const shown = event.currentTarget;
    const box = shown.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * shown.viewBox.baseVal.width;
    const [low, high] = axis.domain;
    pick(axis.control, Math.max(low, Math.min(high, scale.invert(at))));
  };
  root.classList.add("sl-pick");
  const report = (event) => event.currentTarget.pointed(event);
  root.addEventListener("pointerdown", report);
  root.addEventListener("pointermove", (event) => event.buttons === 1 && report(event));
}
