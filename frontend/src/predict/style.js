// Colours come from the page (`--sl-*`, written by shardlab.palette); without them, from the reader's system.
export default `
:host { display: block; margin: 1.2em 0; text-align: start;
  --text: var(--sl-text, CanvasText); --muted: var(--sl-muted, GrayText); --line: var(--sl-grid, ButtonBorder);
  --surface: var(--sl-surface, Canvas); --panel: var(--sl-panel, Canvas); --accent: var(--sl-compute-text, LinkText);
  --bad: var(--sl-bad-text, CanvasText); --edge: var(--sl-muted, ButtonBorder); }
* { box-sizing: border-box; }
[hidden] { display: none !important; }
.static { display: none; }
.predict { max-width: 50em; padding: .9em 1.2em; color: var(--text); background: var(--surface); border: 1px solid var(--line);
  border-left: 5px solid var(--accent); border-radius: 10px; line-height: 1.5; overflow-wrap: break-word; }
h3 { margin: 0; font-size: 1.1em; font-weight: 650; }
p { margin: .3em 0; }
.hint { font-size: .88em; color: var(--muted); }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(18em, 100%), 1fr)); gap: .5em 1.5em; align-items: start; }
ol { margin: .6em 0; padding-inline-start: 1.4em; }
li { margin: .5em 0; padding-inline-start: .2em; }
li::marker { color: var(--accent); font-weight: 600; }
em { font-style: italic; }
[role=radiogroup] { display: flex; flex-wrap: wrap; }
[role=radiogroup] > div { flex: 1 0 100%; }
[role=radiogroup] label { display: inline-flex; align-items: center; gap: .5em; min-height: 2.2em; margin-inline-end: 1.2em; cursor: pointer; }
.number { display: flex; align-items: center; gap: .5em; margin-top: .2em; }
.unit { font-weight: 600; }
input, button { font: inherit; color: inherit; }
input[type=text] { width: 10em; max-width: 70%; min-height: 2.4em; padding: .35em .6em; background: var(--surface);
  border: 1px solid var(--edge); border-radius: 5px; font-variant-numeric: tabular-nums; }
input[type=text]:read-only { background: var(--panel); border-style: dashed; }
input::placeholder { color: var(--muted); opacity: 1; }
/* Drawn here, so that it follows the page's theme and not the system's. */
input[type=radio] { appearance: none; display: grid; place-content: center; width: 1.15em; height: 1.15em; margin: 0;
  border: 1.5px solid var(--edge); border-radius: 50%; background: var(--surface); }
input[type=radio]:checked { background: var(--accent); border-color: var(--accent); }
input[type=radio]:checked::before { content: ""; width: .42em; height: .42em; background: var(--surface); border-radius: 50%; }
button { min-height: 2.4em; padding: .3em 1em; border: 1px solid var(--edge); border-radius: 5px; background: var(--surface); cursor: pointer; }
button:hover { background: var(--panel); border-color: var(--accent); }
button.primary { background: var(--accent); border-color: var(--accent); color: var(--surface); font-weight: 600; }
.actions { display: flex; flex-wrap: wrap; align-items: center; gap: .4em .8em; }
:is(input, button, .answer):focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.answer:not(:empty) { margin-top: .4em; padding: .1em .9em; border-left: 4px solid var(--accent); }
.answer strong { color: var(--accent); }
.problem, .told { margin: .2em 0 0; color: var(--bad); }
:is(.problem, .told):empty { display: none; }
.sketch { display: block; width: 100%; max-width: 26em; cursor: crosshair; touch-action: none; }
.sketch.done { cursor: auto; touch-action: auto; }
.sketch text { font-size: 12.5px; fill: var(--muted); }
.sketch .name { fill: var(--text); font-weight: 600; }
.sketch .end { text-anchor: end; }
.sketch .middle { text-anchor: middle; }
.sketch .grid { stroke: var(--line); }
@media (max-width: 30em) { .predict { padding-inline: .8em; } }
@media (forced-colors: active) { input[type=radio] { appearance: auto; } }
@media print {
  .predict { display: none; }
  .static { display: block; }
}
`;
