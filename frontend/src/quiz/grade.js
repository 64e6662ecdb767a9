// Grading without a screen: what a reader typed, ticked or ordered, against a question's data.
// Every function is pure; the words for its result are found elsewhere.

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const TYPED = [
  // What input methods and copied text bring along, and the ways to write a power of ten.
  [/[−–]/g, "-"],
  [/\s*[×·*x]\s*10\s*\^\s*([-+]?\d+)/i, "e$1"],
  [/[。．]/g, "."],
  [/，/g, ","],
];

// unit: [dimension, factor]; units of one dimension convert into one another.
const UNITS = {
  s: ["time", 1], ms: ["time", 1e-3], us: ["time", 1e-6], "µs": ["time", 1e-6], "μs": ["time", 1e-6],
  min: ["time", 60], h: ["time", 3600],
  B: ["size", 1], kB: ["size", 1e3], MB: ["size", 1e6], GB: ["size", 1e9], TB: ["size", 1e12],
  KiB: ["size", 2 ** 10], MiB: ["size", 2 ** 20], GiB: ["size", 2 ** 30],
  "B/s": ["rate", 1], "kB/s": ["rate", 1e3], "MB/s": ["rate", 1e6], "GB/s": ["rate", 1e9], "TB/s": ["rate", 1e12],
  "Mb/s": ["rate", 1e6 / 8], "Gb/s": ["rate", 1e9 / 8], "Tb/s": ["rate", 1e12 / 8],
  "Mbit/s": ["rate", 1e6 / 8], "Gbit/s": ["rate", 1e9 / 8], "Tbit/s": ["rate", 1e12 / 8],
  "×": ["ratio", 1], x: ["ratio", 1], X: ["ratio", 1], "%": ["ratio", 0.01],
};

function tidy(text) {
  // Before NFKC, which would turn 10³ into 103.
  let typed = text.replace(/[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+/g, (power) =>
    "^" + [...power].map((c) => (c === "⁻" ? "-" : c === "⁺" ? "+" : SUPERSCRIPTS.indexOf(c))).join(""));
  typed = typed.normalize("NFKC").trim();
  for (const [from, to] of TYPED) typed = typed.replace(from, to);
  return typed;
}

// The numbers that digits with separators can mean: "1,008" is 1.008 or 1008.
function readings(digits) {
  const plain = digits.replace(/[ _'’]/g, "");
  const commas = plain.split(",").length - 1;
  const points = plain.split(".").length - 1;
  const grouped = (mark) => new RegExp(`^\\d{1,3}(\\${mark}\\d{3})+$`);
  if (commas && points) {
    const decimal = plain.lastIndexOf(",") > plain.lastIndexOf(".") ? "," : ".";
    const group = decimal === "," ? "." : ",";
    const [whole, fraction, ...more] = plain.split(decimal);
    if (more.length || fraction.includes(group) || !grouped(group).test(whole)) return [];
    return [Number(whole.split(group).join("") + "." + fraction)];
  }
  if (commas > 1 || points > 1) {
    const mark = commas ? "," : ".";
    return grouped(mark).test(plain) ? [Number(plain.split(mark).join(""))] : [];
  }
  const found = [Number(plain.replace(",", "."))];
  if (commas && grouped(",").test(plain) && !plain.startsWith("0")) found.push(Number(plain.replace(",", "")));
  return found.filter(Number.isFinite);
}

/** What a typed answer says in the question's unit.
 *
 * Returns `{ values }` (all readings, the likelier first; `bare` when no unit was typed), or
 * `{ error: "empty" | "unreadable" | "unit" }`.
 */
export function parseNumber(text, unit) {
  const typed = tidy(String(text ?? ""));
  if (!typed) return { error: "empty" };
  const match = /^([-+]?)((?:[.,]?\d)[\d.,' _’]*)(?:e([-+]?\d+))?(.*)$/i.exec(typed);
  if (!match) return { error: "unreadable" };
  const [, sign, digits, power, rest] = match;
  const scale = (sign === "-" ? -1 : 1) * 10 ** Number(power ?? 0);
  let values = readings(digits.trim()).map((value) => value * scale);
  if (!values.length) return { error: "unreadable" };
  const suffix = rest.trim();
  if (/\d/.test(suffix)) return { error: "unreadable" };
  if (!suffix || suffix === unit) return { values, bare: !suffix };
  const asked = UNITS[unit];
  // A unit that is a word ("ranks") takes any word.
  if (!asked) return /^\p{L}[\p{L}\s-]*$/u.test(suffix) && !UNITS[suffix] ? { values, bare: false } : { error: "unit", unit: suffix };
  const given = UNITS[suffix];
  if (!given || given[0] !== asked[0]) return { error: "unit", unit: suffix };
  values = values.map((value) => (value * given[1]) / asked[1]);
  return { values, bare: false };
}

export const tolerance = (part, target) => Math.max(part.relative * Math.abs(target), part.absolute);

// A hair more than the tolerance: 0.1 + 0.2 should count where 0.3 does.
const within = (part, value, target, widths = 1) =>
  Math.abs(value - target) <= widths * tolerance(part, target) + 1e-9 * Math.abs(target);

export function gradeNumber(part, text) {
  const parsed = parseNumber(text, part.unit);
  if (parsed.error) return { state: "invalid", ...parsed };
  const { values, bare } = parsed;
  if (values.some((value) => within(part, value, part.key))) return { state: "right" };
  if (bare && part.unit === "%" && values.some((value) => within(part, 100 * value, part.key))) {
    return { state: "right", note: "asPercent", value: 100 * values[0] };
  }
  const near = part.mistakes
    .filter((mistake) => values.some((value) => within(part, value, mistake.value)))
    .sort((a, b) => Math.abs(a.value - values[0]) - Math.abs(b.value - values[0]));
  if (near.length) return { state: "wrong", mistakes: [near[0]] };
  const off = (factor) => values.some((value) => within(part, value * factor, part.key) || within(part, value / factor, part.key));
  let hint = values[0] > part.key ? "tooLarge" : "tooSmall";
  if (tolerance(part, part.key) > 0 && values.some((value) => within(part, value, part.key, 5))) hint = "close";
  else if (off(1000)) hint = "thousand";
  else if (off(100)) hint = "hundred";
  return { state: "wrong", mistakes: [], hint };
}

export function gradeSelection(part, ticked) {
  if (!ticked?.length) return { state: "invalid", error: "choose" };
  const mistakes = part.options.filter((option) => ticked.includes(option.id) && !option.correct);
  const reasons = part.options.filter((option) => ticked.includes(option.id) && option.correct);
  const missing = part.options.filter((option) => option.correct && !ticked.includes(option.id)).length;
  const state = mistakes.length || missing ? "wrong" : "right";
  return { state, mistakes, reasons, missing: part.kind === "several" ? missing : 0 };
}

export function gradeOrder(part, ids) {
  const order = part.items.map((item) => item.id);
  const places = ids.filter((id, position) => id === order[position]).length;
  if (places === order.length) return { state: "right", places, mistakes: [] };
  const at = (id) => ids.indexOf(id);
  const mistakes = part.traps.filter((trap) => at(trap.above) < at(trap.below));
  const wrongWay = ids.findIndex((id, position) => position + 1 < ids.length && order.indexOf(id) > order.indexOf(ids[position + 1]));
  return { state: "wrong", places, mistakes, pair: [ids[wrongWay], ids[wrongWay + 1]] };
}

export function grade(part, response) {
  if (part.kind === "number") return gradeNumber(part, response);
  if (part.kind === "order") return gradeOrder(part, response);
  if (part.kind === "open") return response?.text?.trim() ? { state: "compared" } : { state: "invalid", error: "write" };
  return gradeSelection(part, response);
}
