import { questions } from "../common/style.js";

export default `${questions}
:host { margin: 1.5em 0; }
p, ol, ul { margin: .5em 0; }
sub, sup { line-height: 0; }
code { font-family: ui-monospace, SFMono-Regular, Consolas, "DejaVu Sans Mono", monospace; font-size: .92em; }
q { quotes: "“" "”"; }

header { padding: 1em 1.2em .9em; border-bottom: 1px solid var(--line); border-left: 5px solid var(--accent);
  border-radius: 10px 0 0 0; background: var(--panel); }
.eyebrow { margin: 0; font-size: .8em; font-weight: 600; letter-spacing: .06em; color: var(--accent); }
h3 { margin: .1em 0 .2em; font-size: 1.25em; line-height: 1.3; font-weight: 650; }
header p { margin: .2em 0 0; }
.bar { display: flex; flex-wrap: wrap; align-items: center; gap: .5em .8em; padding: .7em 1.2em;
  border-bottom: 1px solid var(--line); }
.bar label { flex: 1 1 14em; min-width: 0; }
select { width: 100%; text-overflow: ellipsis; }
.progress { margin: 0 0 0 auto; color: var(--muted); font-variant-numeric: tabular-nums; white-space: nowrap; }

.variant { padding: 1em 1.2em 0; }
h4 { margin: 0 0 .3em; font-size: 1.08em; font-weight: 650; }
.given { max-width: 31em; margin: .8em 0 1.1em; }
.given div { display: flex; align-items: baseline; gap: .8em; padding: .25em 0; border-bottom: 1px solid var(--line); }
.given dt { display: flex; flex: 1; color: var(--muted); }
.given dt em { flex: none; min-width: 1.5em; padding-inline-end: .4em; color: var(--text); white-space: nowrap; }
.given dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums; text-align: end; }
.scroll { overflow-x: auto; margin: .9em 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: start; color: var(--muted); font-size: .85em; padding-bottom: .2em; }
th, td { padding: .25em .9em; border-bottom: 1px solid var(--line); text-align: right; font-weight: inherit; }
thead th { color: var(--muted); border-bottom-color: var(--edge); }

.part { padding: 1em 0; border-top: 1px solid var(--line); }
fieldset { margin: 0; padding: 0; border: 0; min-width: 0; }
legend { width: 100%; padding: 0; font-weight: 600; }
legend > span { display: flex; align-items: baseline; }
.badge { display: inline-block; min-width: 1.6em; flex: none; margin-inline-end: .6em; padding: 0 .3em; border-radius: 1em;
  border: 1.5px solid var(--accent); color: var(--accent); font-size: .85em; line-height: 1.5; text-align: center;
  font-variant-numeric: tabular-nums; }
.hint { display: block; margin: .2em 0; }
.number .hint { margin: 0 0 0 .6em; flex: 1 1 14em; }
input[type=text] { width: 9em; max-width: 60%; }
textarea { display: block; width: 100%; resize: vertical; }
input:is([type=radio], [type=checkbox]) { margin-top: .18em; }
.options, .points { display: grid; gap: .35em; }
.options label, .points label { display: flex; gap: .7em; padding: .45em .7em; border: 1px solid var(--line);
  border-radius: 6px; cursor: pointer; }
.options label:hover, .points label:hover { background: var(--panel); border-color: var(--edge); }
.options label:has(:checked) { border-color: var(--accent); box-shadow: inset 3px 0 0 var(--accent); }
.points { margin-top: .6em; }
.points legend { font-weight: 400; }
.points label { background: var(--surface); }

.end { margin: .3em 0; font-size: .88em; color: var(--muted); }
.order { list-style: none; margin: 0; padding: 0; display: grid; gap: .35em; }
.order li { display: flex; align-items: center; justify-content: space-between; gap: .6em; padding: .3em .4em .3em .8em;
  border: 1px solid var(--line); border-radius: 6px; background: var(--surface); }
.moves { display: flex; flex: none; gap: .3em; }
button.move { min-width: 2.4em; padding: 0; line-height: 1; }
button[aria-disabled=true] { color: var(--muted); border-style: dashed; border-color: var(--line); cursor: default; }
.actions { margin-top: .7em; }

.status > * { margin: .35em 0; }
.status:not(:empty) { margin-top: .7em; padding: .25em .9em; border-left: 4px solid var(--edge); }
.status:has(.good) { border-color: var(--good); }
.status:has(.bad) { border-color: var(--bad); }
.verdict.good, .good > .mark { color: var(--good); }
.verdict.bad, .bad > .mark { color: var(--bad); }
.status ul, .status ol, .panel ul, .panel ol { padding-inline-start: 1.4em; }
.status li, .panel li { margin: .25em 0; }
.panel { margin-top: .8em; padding: .5em 1em; background: var(--panel); border: 1px solid var(--line); border-radius: 6px; }
.label { font-size: .85em; font-weight: 600; color: var(--muted); }
.judged { list-style: none; padding: 0 !important; }
.judged .mark { font-weight: 600; }

footer { padding: .8em 1.2em; border-top: 1px solid var(--line); font-size: .9em; color: var(--muted); }
footer p { margin: 0 0 .5em; }
footer .actions { margin-top: 0; }
footer .warn { color: var(--bad); }
.status p { overflow-wrap: anywhere; }

@media (max-width: 30em) {
  header, .bar, .variant, footer { padding-inline: .8em; }
  .progress { margin-inline-start: 0; }
}
`;
