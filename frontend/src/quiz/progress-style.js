// Colours as in style.js: from the page, or from the reader's system.
export default `
:host { display: block; margin: .3em 0 1em; text-align: start;
  --text: var(--sl-text, CanvasText); --muted: var(--sl-muted, GrayText); --line: var(--sl-grid, ButtonBorder);
  --surface: var(--sl-surface, Canvas); --panel: var(--sl-panel, Canvas); --accent: var(--sl-compute-text, LinkText);
  --bad: var(--sl-bad-text, CanvasText); --edge: var(--sl-muted, ButtonBorder); color: var(--text); }
* { box-sizing: border-box; }
[hidden] { display: none !important; }
p, ul { margin: .3em 0; }
ul { padding-inline-start: 1.6em; }
a { color: var(--accent); }
summary { cursor: pointer; width: fit-content; max-width: 100%; }
.bar { display: inline-block; width: 7em; height: .7em; margin-inline-end: .7em; border: 1px solid var(--edge);
  border-radius: .35em; background: var(--surface); overflow: hidden; }
.bar span { display: block; height: 100%; background: var(--accent); }
.sum { font-weight: 600; }
.warn { color: var(--bad); }
.actions { display: flex; flex-wrap: wrap; align-items: center; gap: .6em; margin-top: .5em; }
button { min-height: 2.4em; padding: .3em 1em; font: inherit; color: inherit; border: 1px solid var(--edge); border-radius: 5px;
  background: var(--surface); cursor: pointer; }
button:hover { background: var(--panel); border-color: var(--accent); }
:is(button, summary, a, p):focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
@media (forced-colors: active) { .bar span { background: CanvasText; forced-color-adjust: none; } }
@media print { .actions { display: none; } }
`;
