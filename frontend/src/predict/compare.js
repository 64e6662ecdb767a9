// How far a guess is from the answer, without a screen.

const CLOSE = 1.1;

/** A number with so many significant digits and no exponent: 975, 2.91, 0.0998. */
export function decimal(value, digits = 2) {
  if (value === 0) return "0";
  const places = Math.max(digits - 1 - Math.floor(Math.log10(Math.abs(value)) + 1e-12), 0);
  const text = value.toFixed(Math.min(places, 12));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** `{ kind: "close" }`, `{ kind: "high" | "low", times }`, or `{ kind: "apart", difference }` where no ratio tells. */
export function compared(guess, key) {
  if (guess === key) return { kind: "close" };
  if (!(guess > 0 && key > 0)) return { kind: "apart", difference: decimal(Math.abs(guess - key)) };
  const ratio = guess / key;
  if (ratio <= CLOSE && ratio >= 1 / CLOSE) return { kind: "close" };
  return ratio > 1 ? { kind: "high", times: decimal(ratio) } : { kind: "low", times: decimal(1 / ratio) };
}
