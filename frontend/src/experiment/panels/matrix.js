// Cells in rows and columns, filled by level, with framed ends of moves.

import { color, svg } from "../../common/dom.js";

const MARGIN = { left: 40, top: 34, right: 4, bottom: 4 };
const THICKEST = 3;
const SMALLEST = 9;
const BOLD_LETTER = 0.68; // about the width of a bold letter, in parts of its size
const MOST_FILL = 0.5; // so that text keeps its contrast on every level

export function drawMatrix(panel, width, { short }) {
  const { columns, rows, texts, levels, role, marks } = panel;
  const cell = Math.max(
    10,
    Math.min(46, (Math.min(width, 330) - MARGIN.left - MARGIN.right) / columns.length, (short ? 152 : 240) / rows.length),
  );
  const left = MARGIN.left + Math.max(0, (width - MARGIN.left - MARGIN.right - cell * columns.length) / 2);
  const height = MARGIN.top + cell * rows.length + MARGIN.bottom;
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const longest = Math.max(1, ...texts.flat().map((text) => text.length));
  const inside = cell - 2 * THICKEST; // a frame may lie on a cell's rim
  const fontSize = Math.min(14, cell * 0.62);
  const textSize = Math.max(SMALLEST, Math.min(fontSize, inside / (BOLD_LETTER * longest)));
  const write = (text, x, y, more = {}) =>
    svg("text", { x, y, "text-anchor": "middle", "font-size": fontSize, fill: color("muted"), ...more }, text);
  const centre = (index) => (index + 0.5) * cell;
  const middleOf = (count) => (count * cell) / 2;

  root.append(write(panel.column_label, left + middleOf(columns.length), 12, { "font-size": 12 }));
  root.append(
    svg(
      "text",
      {
        transform: `translate(${left - 26},${MARGIN.top + middleOf(rows.length)}) rotate(-90)`,
        "text-anchor": "middle",
        "font-size": 12,
        fill: color("muted"),
      },
      panel.row_label,
    ),
  );
  columns.forEach((name, column) => root.append(write(name, left + centre(column), MARGIN.top - 6)));
  rows.forEach((name, row) =>
    root.append(write(name, left - 6, MARGIN.top + centre(row) + fontSize * 0.36, { "text-anchor": "end" })),
  );
  texts.forEach((line, row) =>
    line.forEach((text, column) => {
      const [x, y] = [left + column * cell, MARGIN.top + row * cell];
      const full = levels[row][column] >= 1;
      root.append(
        svg("rect", {
          x: x + 0.75,
          y: y + 0.75,
          width: cell - 1.5,
          height: cell - 1.5,
          rx: 2,
          fill: color(role),
          "fill-opacity": MOST_FILL * levels[row][column],
          stroke: color(full ? role : "grid"),
          "stroke-width": full ? 1.5 : 1,
        }),
        write(text, x + cell / 2, y + cell / 2 + textSize * 0.36, {
          "font-size": textSize,
          fill: color("text"),
          "font-weight": full ? "bold" : "normal",
        }),
      );
    }),
  );
  for (const [row, column, kind] of marks) {
    root.append(
      svg("rect", {
        x: left + column * cell + 1.5,
        y: MARGIN.top + row * cell + 1.5,
        width: cell - 3,
        height: cell - 3,
        rx: 2,
        fill: "none",
        stroke: color("communication"),
        "stroke-width": kind === "to" ? THICKEST : 1.5,
        "stroke-dasharray": kind === "to" ? undefined : "3 2",
      }),
    );
  }
  return root;
}
