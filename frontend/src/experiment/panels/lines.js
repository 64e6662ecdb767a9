// Curves over a linear or log axis, with bands, named limits, marks, and names at the ends of the curves.

import { color, svg, uniqueId } from "../../common/dom.js";
import { boxOf, makeRoom, spread } from "./labels.js";
import { line, makePlane, scaleOf, textRole, write } from "./plane.js";

const WIDTHS = { strong: 2.75, normal: 1.5, thin: 1 };
const NEAR_END = 0.62; // labels of marks right of it stand on their left
const HALF_LABEL = 8; // a mark's label at the top stays in the picture
const NAMES_APART = 13; // names at the ends of curves
const DOT = 6;
const MARK_LOOK = { size: 13, bold: true };
const LIMIT_LOOK = { size: 11 };

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
  const room = makeRoom({ left, right: width, top: 0, bottom });
  for (const { points } of series) {
    const seen = points.map(([at, value]) => [atX(at), atY(value)]);
    room.takeCurve(seen.map(([at, value]) => [at, Math.max(top, Math.min(bottom, value))]));
  }
  for (const mark of marks) {
    const [at, value] = [atX(mark.x), atY(mark.y)];
    room.take({ left: at - DOT, right: at + DOT, top: value - DOT, bottom: value + DOT });
  }
  const names = series.map(({ label_place: place }) => bottom + (top - bottom) * place);
  const nameAt = spread(names, NAMES_APART, HALF_LABEL, bottom); // below stand the ticks
  series.forEach(({ label }, index) => room.take(boxOf(label, right + 6, nameAt[index])));
  for (const { value, label, side, align } of limits) {
    const at = atY(value);
    const ends = [{ x: left + 4, anchor: "start" }, { x: right - 3, anchor: "end" }];
    if (align === "end") ends.reverse();
    ends.push({ x: left + 4 + 2 * DOT, anchor: "start" }); // beside a mark on the axis
    const shifts = side === "below" ? [9, -8] : [-8, 9];
    const places = ends.flatMap((end) => shifts.map((shift) => ({ ...end, y: at + shift })));
    const place = room.place(label, places, LIMIT_LOOK);
    plane.add(
      line(left, at, right, at, "limit", { "stroke-width": 0.75 }),
      write(label, place.x, place.y, "limit", { ...LIMIT_LOOK, anchor: place.anchor, halo: true }),
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
  series.forEach(({ label, role, weight }, index) => {
    plane.add(write(label, right + 6, nameAt[index], textRole(role), { bold: weight === "strong" }));
  });
  marks.forEach((mark) => drawMark(plane, mark, atX(mark.x), atY(mark.y), room));
  if (x.control) letPointerPick(plane.root, x, atX, pick);
  return plane.root;
}

function drawMark(plane, { label, role, shape }, x, y, room) {
  if (shape === "ring") {
    plane.add(svg("circle", { cx: x, cy: y, r: 4.5, fill: color("panel"), stroke: color(role), "stroke-width": 1.25 }));
    return;
  }
  // Beside the mark and above it; on the other side, or below, where something is in the way.
  const beyond = x > plane.left + NEAR_END * (plane.right - plane.left);
  const places = [-11, 12].flatMap((shift) =>
    (beyond ? ["end", "start"] : ["start", "end"]).map((anchor) => ({
      x: x + (anchor === "end" ? -8 : 8),
      y: Math.max(y + shift, HALF_LABEL),
      anchor,
    })),
  );
  const place = room.place(label, places, MARK_LOOK);
  plane.add(
    line(x, y, x, plane.bottom, "muted", { "stroke-dasharray": "2 3" }),
    svg("circle", { cx: x, cy: y, r: 5, fill: color(role), stroke: color("panel"), "stroke-width": 1.5 }),
    write(label, place.x, place.y, textRole(role), { ...MARK_LOOK, anchor: place.anchor, halo: true }),
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
