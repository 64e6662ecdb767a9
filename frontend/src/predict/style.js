import { questions } from "../common/style.js";

export default `${questions}
:host { margin: 1.2em 0; }
.card { padding: .9em 1.2em; border-left: 5px solid var(--accent); }
h3 { margin: 0; font-size: 1.1em; font-weight: 650; }
p { margin: .3em 0; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(18em, 100%), 1fr)); gap: .5em 1.5em; align-items: start; }
ol { margin: .6em 0; padding-inline-start: 1.4em; }
li { margin: .5em 0; padding-inline-start: .2em; }
li::marker { color: var(--accent); font-weight: 600; }
[role=radiogroup] { display: flex; flex-wrap: wrap; }
[role=radiogroup] > div { flex: 1 0 100%; }
[role=radiogroup] label { display: inline-flex; align-items: center; gap: .5em; min-height: 2.2em; margin-inline-end: 1.2em; cursor: pointer; }
.number { margin-top: .2em; }
.actions { margin-top: .6em; }
input[type=text] { width: 10em; }
input[type=text]:read-only { background: var(--panel); border-style: dashed; }
input::placeholder { color: var(--muted); opacity: 1; }
.answer:not(:empty) { margin-top: .4em; padding: .1em .9em; border-left: 4px solid var(--accent); }
.answer strong { color: var(--accent); }
.problem, .told { margin: .2em 0 0; color: var(--bad); }
/* Still there: a region that is not shown is none that a screen reader listens to. */
:is(.problem, .told):empty { margin: 0; }
.sketch { display: block; width: 100%; max-width: 26em; cursor: crosshair; touch-action: none; }
.sketch.done { cursor: auto; touch-action: auto; }
.sketch text { font-size: 12.5px; fill: var(--muted); }
.sketch .name { fill: var(--text); font-weight: 600; }
.sketch .end { text-anchor: end; }
.sketch .middle { text-anchor: middle; }
.sketch .grid { stroke: var(--line); }
@media (max-width: 30em) { .card { padding-inline: .8em; } }
`;
