// Small helpers for building HTML and SVG.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Make what is in `parent` look like `fresh`, keeping the nodes that stay: a browser lays out and paints only what
// changed, and most of a chart (grid, ticks, names) doesn't.
export function morphChildren(parent, fresh) {
  const old = [...parent.childNodes];
  fresh.forEach((node, index) => {
    if (index < old.length) morph(old[index], node);
    else parent.append(node);
  });
  for (const node of old.slice(fresh.length)) node.remove();
}

function morph(old, fresh) {
  if (old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
  } else if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
  } else {
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    // Listeners stay with their node, so what they do is kept where a new drawing can replace it.
    old.pointed = fresh.pointed;
    morphChildren(old, [...fresh.childNodes]);
  }
}

// Colours are the palette's roles, as CSS variables: a page that turns dark needs no redraw.
export const color = (role) => `var(--sl-${role})`;

let serial = 0;
export const uniqueId = (stem) => `${stem}-${(serial += 1)}`;

export function debounced(milliseconds, action) {
  let timer;
  const run = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
  run.cancel = () => clearTimeout(timer);
  return run;
}

// A live region that speaks once the reader has come to rest, and is empty again when that has been read: who walks
// through the page should not meet the same words twice.
export function announcer(milliseconds = 700, kept = 20_000) {
  const region = html("p", { role: "status", "aria-live": "polite", class: "sl-hidden" });
  const clear = debounced(kept, () => (region.textContent = ""));
  const now = (text) => {
    region.textContent = text;
    clear();
  };
  let last = "";
  const say = debounced(milliseconds, (text) => {
    if (text !== last) now((last = text));
  });
  return { region, say, now };
}

export const wantsLittleMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages opened from a disk or over plain http have no clipboard interface.
    const area = html("textarea", { class: "sl-hidden", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
