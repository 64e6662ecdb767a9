import { ground } from "../common/style.js";

export default `${ground}
:host { margin: .3em 0 1em; color: var(--text); }
p, ul { margin: .3em 0; }
ul { padding-inline-start: 1.6em; }
a { color: var(--accent); }
summary { cursor: pointer; width: fit-content; max-width: 100%; }
.bar { display: inline-block; width: 7em; height: .7em; margin-inline-end: .7em; border: 1px solid var(--edge);
  border-radius: .35em; background: var(--surface); overflow: hidden; }
.bar span { display: block; height: 100%; background: var(--accent); }
.sum { font-weight: 600; }
.warn { color: var(--bad); }
.actions { margin-top: .5em; }
@media (forced-colors: active) { .bar span { background: CanvasText; forced-color-adjust: none; } }
@media print { .actions { display: none; } }
`;
