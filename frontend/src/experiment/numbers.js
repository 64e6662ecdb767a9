// The numbers behind the pictures, as tables: for readers who cannot see the charts, or want to copy them.

import { html } from "../common/dom.js";

const round = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value));

const TABLES = {
  lines({ x, series }) {
    const at = [...new Set(series.flatMap(({ points }) => points.map(([value]) => value)))].sort((a, b) => a - b);
    const curves = series.map(({ points }) => new Map(points));
    return {
      columns: [x.label, ...series.map(({ label }) => label)],
      rows: at.map((value) => [value, ...curves.map((curve) => curve.get(value) ?? "")]),
    };
  },
  bars: ({ categories, stacks }) => ({
    columns: ["", ...stacks.map(({ label }) => label)],
    rows: categories.map((name, index) => [name, ...stacks.map(({ values }) => values[index])]),
  }),
  timeline: ({ lanes, spans, time }) => ({
    columns: ["", "start (s)", "end (s)", time.label],
    rows: spans.map(({ lane, start, end, label }) => [lanes[lane], start, end, label]),
  }),
  matrix: ({ rows, columns, texts, row_label, column_label }) => ({
    columns: [`${row_label} \\ ${column_label}`, ...columns],
    rows: texts.map((line, index) => [rows[index], ...line]),
  }),
};

export function numberTables(panels) {
  return panels
    .filter(({ kind }) => TABLES[kind])
    .map((panel) => {
      const { columns, rows } = TABLES[panel.kind](panel);
      return html(
        "table",
        {},
        html("caption", {}, panel.title),
        html("thead", {}, html("tr", {}, ...columns.map((name) => html("th", { scope: "col" }, name)))),
        html(
          "tbody",
          {},
          ...rows.map(([first, ...others]) =>
            html("tr", {}, html("th", { scope: "row" }, round(first)), ...others.map((value) => html("td", {}, round(value)))),
          ),
        ),
      );
    });
}
