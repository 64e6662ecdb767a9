// What the elements on a page have in common. Colours come from the page (`--sl-*`, written by shardlab.palette);
// without them, from the reader's system.

/** Colours by what they are for, and buttons. */
export const ground = `
:host { display: block; text-align: start;
  --text: var(--sl-text, CanvasText); --muted: var(--sl-muted, GrayText); --line: var(--sl-grid, ButtonBorder);
  --surface: var(--sl-surface, Canvas); --panel: var(--sl-panel, Canvas); --accent: var(--sl-compute-text, LinkText);
  --good: var(--sl-good-text, CanvasText); --bad: var(--sl-bad-text, CanvasText); --edge: var(--sl-muted, ButtonBorder); }
* { box-sizing: border-box; }
[hidden] { display: none !important; }
button { min-height: 2.4em; padding: .3em 1em; font: inherit; color: inherit; border: 1px solid var(--edge); border-radius: 5px;
  background: var(--surface); cursor: pointer; }
button:hover { background: var(--panel); border-color: var(--accent); }
button.primary { background: var(--accent); border-color: var(--accent); color: var(--surface); font-weight: 600; }
button.primary:hover { filter: brightness(1.12); }
.actions { display: flex; flex-wrap: wrap; align-items: center; gap: .6em; }
:is(a, button, input, select, summary, textarea, [tabindex]):focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
`;

/** A frame with fields, drawn instead of the text version; on paper that one stands. */
export const questions = `${ground}
.static { display: none; }
.card { max-width: 50em; color: var(--text); background: var(--surface); border: 1px solid var(--line); border-radius: 10px;
  line-height: 1.5; overflow-wrap: break-word; }
.sr { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
em { font-style: italic; }
.hint { font-size: .88em; color: var(--muted); }
.number { display: flex; flex-wrap: wrap; align-items: center; gap: .2em .5em; }
.unit { font-weight: 600; }
input, textarea, select { font: inherit; color: inherit; }
:is(input[type=text], textarea, select) { min-height: 2.4em; padding: .35em .6em; background: var(--surface);
  border: 1px solid var(--edge); border-radius: 5px; }
input[type=text] { max-width: 70%; font-variant-numeric: tabular-nums; }
/* Drawn here, so that they follow the page's theme and not the system's. */
input:is([type=radio], [type=checkbox]) { appearance: none; flex: none; display: grid; place-content: center;
  width: 1.15em; height: 1.15em; margin: 0; border: 1.5px solid var(--edge); border-radius: 3px;
  background: var(--surface); cursor: inherit; }
input[type=radio] { border-radius: 50%; }
input:checked { background: var(--accent); border-color: var(--accent); }
input:checked::before { content: ""; width: .8em; height: .8em; background: var(--surface);
  clip-path: polygon(8% 52%, 22% 38%, 40% 56%, 78% 14%, 92% 28%, 40% 84%); }
input[type=radio]:checked::before { width: .42em; height: .42em; clip-path: none; border-radius: 50%; }
/* The system's own marks and colours; a selected button keeps a border of its own. */
@media (forced-colors: active) { input:is([type=radio], [type=checkbox]) { appearance: auto; } }
@media print {
  .card { display: none; }
  .static { display: block; }
}
`;
