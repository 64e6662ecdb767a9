// Blocks that scroll are stops of the Tab key, with a name, while they scroll: a reader without a mouse can then move
// them with the arrow keys. The theme does half of it for some of them, and nothing for equations; as it does so again
// after every change of the page, the last word is taken from it.

import { debounced } from "../common/dom.js";

// The first that matches tells what a block is.
const KINDS = [
  ['mjx-container[display="true"]', "Equation"],
  [".pst-scrollable-table-container", "Table"],
  [".cell_output > .output:has(> .sl-figure)", "Figure"],
  [".cell_output > .output", "Output"],
  [".cell_output pre", "Output"],
  ["pre", "Code"],
  [".shardlab-table, .sl-ledger", null], // named already
];
const ANY = KINDS.map(([selector]) => selector).join();
const PIXEL = 1; // rounding

// Writing what is there already would wake the observer of attributes for ever.
function write(block, name, value) {
  if (block.getAttribute(name) === value) return;
  if (value === null) block.removeAttribute(name);
  else block.setAttribute(name, value);
}

function settle(block) {
  const [, kind] = KINDS.find(([selector]) => block.matches(selector));
  const sideways = block.scrollWidth > block.clientWidth + PIXEL;
  const down = block.scrollHeight > block.clientHeight + PIXEL && /auto|scroll/.test(getComputedStyle(block).overflowY);
  const scrolls = block.clientWidth > 0 && (sideways || down);
  write(block, "tabindex", scrolls ? "0" : null);
  if (!kind) return;
  write(block, "role", scrolls ? "group" : null);
  write(block, "aria-label", scrolls ? `${kind}, scrolls${sideways ? " sideways" : ""}` : null);
}

export function start(article) {
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => settle(target)));
  const seen = new WeakSet();
  const all = () => article.querySelectorAll(ANY);
  // Equations come after the page, and an experiment may bring a table.
  const look = debounced(200, () => {
    for (const block of all()) {
      if (seen.has(block)) continue;
      seen.add(block);
      sizes.observe(block);
    }
  });
  new MutationObserver(look).observe(article, { childList: true, subtree: true });
  new MutationObserver((records) => {
    for (const { target } of records) if (target.matches(ANY)) settle(target);
  }).observe(article, { attributeFilter: ["tabindex"], subtree: true });
  // A font changes what is in a block, not the block's own size.
  const settleAll = () => all().forEach(settle);
  document.fonts.ready.then(settleAll);
  document.fonts.addEventListener("loadingdone", settleAll);
  look();
}

const article = document.querySelector("#main-content, main");
if (article) start(article);
