// The chart to draw guesses on: a column for each question, the reader's points, and, once compared, the model's.

import { color, svg } from "../common/dom.js";
import { decimal } from "./compare.js";

const WIDTH = 340;
const HEIGHT = 210;
const LEFT = 46;
const RIGHT = 70;
// Two names at the right ends keep this far apart.
const LINE = 14;
const TOP = 30;
const BOTTOM = 38;

/**
 * @param sketch  the chart's axes, from Python.
 * @param ticks   names of the columns.
 * @param drawn   called with (column, value) when the reader points; nothing once the answers are there.
 */
export function makeSketch(sketch, ticks, drawn) {
  const { low, high, scale } = sketch;
  const log = scale === "log";
  const share = (value) => {
    const bounded = Math.min(Math.max(value, low), high);
    return log ? Math.log(bounded / low) / Math.log(high / low) : (bounded - low) / (high - low);
  };
  const x = (column) => LEFT + ((column + 0.5) * (WIDTH - LEFT - RIGHT)) / ticks.length;
  const y = (value) => HEIGHT - BOTTOM - share(value) * (HEIGHT - TOP - BOTTOM);
  const valueAt = (place) => {
    const part = Math.min(Math.max((HEIGHT - BOTTOM - place) / (HEIGHT - TOP - BOTTOM), 0), 1);
    return Number(decimal(log ? low * (high / low) ** part : low + part * (high - low)));
  };
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "sketch" });
  const points = svg("g");
  picture.append(
    ...sketch.ticks.map(([value, text]) =>
      svg("g", {},
        svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: "grid" }),
        svg("text", { x: LEFT - 6, y: y(value) + 4, class: "tick end" }, text))),
    ...ticks.map((text, column) => svg("text", { x: x(column), y: HEIGHT - BOTTOM + 16, class: "tick middle" }, text)),
    svg("text", { x: LEFT, y: 14, class: "tick" }, sketch.y),
    svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, class: "tick middle" }, sketch.x),
    points,
  );

  const toValue = (event) => {
    const box = picture.getBoundingClientRect();
    const [across, down] = [((event.clientX - box.left) * WIDTH) / box.width, ((event.clientY - box.top) * HEIGHT) / box.height];
    const column = Math.floor(((across - LEFT) * ticks.length) / (WIDTH - LEFT - RIGHT));
    return [Math.min(Math.max(column, 0), ticks.length - 1), valueAt(down)];
  };
  const point = (event) => {
    if (event.buttons === 1 && !picture.classList.contains("done")) drawn(...toValue(event));
  };
  picture.addEventListener("pointerdown", (event) => {
    if (picture.classList.contains("done")) return;
    event.preventDefault();
    picture.setPointerCapture(event.pointerId);
    point(event);
  });
  picture.addEventListener("pointermove", point);

  const inside = (values) => values.map((value, column) => [x(column), y(value)]).filter(([, place]) => Number.isFinite(place));

  function row(places, role, dashed) {
    return [
      svg("polyline", { points: places.map((place) => place.join()).join(" "), fill: "none", stroke: color(role),
        "stroke-width": 2, "stroke-dasharray": dashed ? "5 4" : null }),
      ...places.map(([cx, cy]) => svg("circle", { cx, cy, r: 5, fill: color(dashed ? "surface" : role), stroke: color(role),
        "stroke-width": 2 })),
    ];
  }

  // Each line is named at its right end; the higher one's name stands higher.
  function names(lines) {
    const ends = lines.filter(([places]) => places.length).map(([places, name]) => [...places[places.length - 1], name]);
    ends.sort(([, one], [, other]) => one - other);
    if (ends.length === 2 && ends[0][0] === ends[1][0] && ends[1][1] - ends[0][1] < LINE) {
      const middle = (ends[0][1] + ends[1][1]) / 2;
      ends[0][1] = middle - LINE / 2;
      ends[1][1] = middle + LINE / 2;
    }
    return ends.map(([at, place, name]) => svg("text", { x: at + 10, y: place + 4, class: "name" }, name));
  }

  return {
    picture,
    /** Draw guesses (NaN where there is none) and, once they are shown, answers; `words` and `alt` in the page's language. */
    draw(guesses, answers, words, alt) {
      picture.classList.toggle("done", Boolean(answers));
      picture.setAttribute("aria-label", alt);
      const [mine, model] = [inside(guesses), inside(answers ?? [])];
      points.replaceChildren(...row(model, "compute", false), ...row(mine, "text", true), ...names([[mine, words.you], [model, words.model]]));
    },
  };
}
