// Places for words in a picture, so that none lies on another.

const LETTER = 0.575; // about the width of a letter, in parts of its size
const BOLD = 0.63;
const STEP = 3; // pixels between the points at which a curve is looked at
const OVERLAP = 4; // square pixels on another word that are as bad as one such point

/** Places (pixels, downwards) moved as little as keeps them `gap` apart, in their order, between `top` and `bottom`. */
export function spread(places, gap, top, bottom) {
  const order = places.map((_, index) => index).sort((one, other) => places[one] - places[other]);
  const moved = [...places];
  let least = top;
  for (const index of order) {
    moved[index] = Math.max(moved[index], least);
    least = moved[index] + gap;
  }
  let most = bottom;
  for (const index of order.reverse()) {
    moved[index] = Math.min(moved[index], most);
    most = moved[index] - gap;
  }
  return moved;
}

/** The box of a text: `x` is its anchor, `y` the middle of its line. */
export function boxOf(text, x, y, { size = 12, anchor = "start", bold = false } = {}) {
  const width = text.length * size * (bold ? BOLD : LETTER);
  const left = { start: x, middle: x - width / 2, end: x - width }[anchor];
  return { left, right: left + width, top: y - size * 0.6, bottom: y + size * 0.6 };
}

const shared = (one, other) =>
  Math.max(0, Math.min(one.right, other.right) - Math.max(one.left, other.left)) *
  Math.max(0, Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top));

/** Keeps account of what is drawn. `frame` is the box in which words should stay. */
export function makeRoom(frame) {
  const boxes = [];
  const points = [];

  function cost(box) {
    const area = (box.right - box.left) * (box.bottom - box.top);
    let sum = (area - shared(box, frame)) / OVERLAP;
    for (const other of boxes) sum += shared(box, other) / OVERLAP;
    for (const [x, y] of points) if (x > box.left && x < box.right && y > box.top && y < box.bottom) sum += 1;
    return sum;
  }

  return {
    take: (box) => boxes.push(box),
    takeCurve(corners) {
      corners.slice(1).forEach(([x, y], index) => {
        const [fromX, fromY] = corners[index];
        const steps = Math.max(1, Math.ceil(Math.hypot(x - fromX, y - fromY) / STEP));
        for (let step = 1; step <= steps; step += 1) {
          points.push([fromX + ((x - fromX) * step) / steps, fromY + ((y - fromY) * step) / steps]);
        }
      });
    },
    /** The first of the places `{x, y, anchor}` at which a text covers least. */
    place(text, places, look) {
      const costs = places.map(({ x, y, anchor }) => cost(boxOf(text, x, y, { ...look, anchor })));
      const best = places[costs.indexOf(Math.min(...costs))];
      boxes.push(boxOf(text, best.x, best.y, { ...look, anchor: best.anchor }));
      return best;
    },
  };
}
