// The ground that panels with axes share: places of values, grid, ticks, named limits.
// Domains, ticks and texts come with the chart, so no library is needed to choose them.

import { color, svg } from "../../common/dom.js";

// The place of a value between two pixels, and the value at a pixel.
export function scaleOf({ scale, domain: [low, high] }, from, to) {
  const log = scale === "log";
  const start = log ? Math.log(low) : low;
  const length = (log ? Math.log(high) : high) - start;
  const place = (value) => from + ((to - from) * ((log ? Math.log(value) : value) - start)) / length;
  place.invert = (pixel) => {
    const value = start + (length * (pixel - from)) / (to - from);
    return log ? Math.exp(value) : value;
  };
  return place;
}

// Even bands from top to bottom; `band(index)` is {top, height, middle}.
export function bandsOf(count, from, to, padding) {
  const step = (to - from) / count;
  const height = step * (1 - padding);
  return (index) => {
    const middle = from + step * (index + 0.5);
    return { top: middle - height / 2, height, middle };
  };
}

// Pixels by which what was made to fit exactly may seem too wide.
export const ROUNDING = 0.5;

// Where an axis ends so that what is written after its bars fits the width; no shorter than `least` of its length.
// `items` are [value, pixels wanted after it].
export function fittingRight(axis, left, right, width, items, least = 0.62) {
  const share = scaleOf(axis, 0, 1);
  let end = right;
  for (const [value, pixels] of items) {
    const part = share(value);
    if (part > 0) end = Math.min(end, left + (width - pixels - left) / part);
  }
  return Math.max(end, left + least * (right - left));
}

export const line = (x1, y1, x2, y2, role, more) => svg("line", { x1, y1, x2, y2, stroke: color(role), ...more });

export function write(text, x, y, role, { size = 12, anchor = "start", halo = false, bold = false } = {}) {
  return svg(
    "text",
    {
      x,
      y: y + size * 0.35, // so that y is the middle of the line, in every browser
      "font-size": size,
      "text-anchor": anchor,
      fill: color(role),
      "font-weight": bold ? "bold" : undefined,
      ...(halo && { stroke: color("halo"), "stroke-width": 4, "stroke-linejoin": "round", "paint-order": "stroke" }),
    },
    text,
  );
}

// Roles that colour areas have a darker sister for text.
export const textRole = (role) => (["text", "muted", "limit"].includes(role) || role.endsWith("-text") ? role : `${role}-text`);

export function makePlane(width, height, margin) {
  const left = margin.left;
  const right = width - margin.right;
  const { top } = margin;
  const bottom = height - margin.bottom;
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  return {
    root,
    left,
    right,
    top,
    bottom,
    add: (...shapes) => root.append(...shapes),
    xAxis(axis, place) {
      for (const [value, text] of axis.ticks) {
        root.append(
          line(place(value), top, place(value), bottom, "grid"),
          write(text, place(value), bottom + 13, "muted", { anchor: "middle" }),
        );
      }
      root.append(write(axis.label, (left + right) / 2, height - 8, "muted", { anchor: "middle" }));
    },
    yAxis(axis, place) {
      for (const [value, text] of axis.ticks) {
        root.append(
          line(left, place(value), right, place(value), "grid"),
          write(text, left - 7, place(value), "muted", { anchor: "end" }),
        );
      }
      if (axis.label) root.append(write(axis.label, 2, 7, "muted"));
    },
    // Limits of a horizontal value: thin lines from top to bottom, named above.
    topLimits(limits, place) {
      for (const { value, label, align } of limits) {
        const at = place(value);
        root.append(
          line(at, top, at, bottom, "limit", { "stroke-width": 0.75 }),
          write(label, at + (align === "end" ? 3 : -3), top - 9, "limit", { size: 11, anchor: align }),
        );
      }
    },
  };
}
