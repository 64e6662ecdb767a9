// Runs experiments in MicroPython under Node, from the committed files, as the page's worker does.
// stdin: {"files": {name: {path: text}}, "cases": [[name, params_json], ...]}; stdout: a JSON list of texts.

import { readFileSync } from "node:fs";
import { startPython } from "../../frontend/src/experiment/python.js";
import { loadMicroPython } from "../../src/shardlab/web/micropython.mjs";

const wasm = new URL("../../src/shardlab/web/micropython.wasm", import.meta.url).pathname;
const { files, cases } = JSON.parse(readFileSync(0, "utf8"));
const python = await startPython(loadMicroPython, wasm);
for (const bundle of Object.values(files)) python.addFiles(bundle);
const answers = cases.map(([name, params]) => python.call(params === null ? "spec_json" : "run_json", name, ...(params === null ? [] : [params])));
process.stdout.write(JSON.stringify(answers));
