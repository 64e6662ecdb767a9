// Writes everything in ../src/shardlab/web/ that is built or copied from npm packages:
//
//   npm ci && node build.mjs          the result is the same, byte for byte, on every machine
//   node build.mjs --out /some/dir    for the test that compares with the committed files
//
// src/experiment/index.js -> experiment.js   \ each is a classic script that puts the module's exports in one
// src/predict/index.js    -> predict.js       > global, so that pages opened from a disk (file://) work as well.
// src/quiz/index.js       -> quiz.js         /
// src/page/index.js       -> page.js           what every page of the book loads
// src/experiment/worker.js -> worker.js        the MicroPython engine, a classic worker
// src/experiment/experiment.css and the like -> experiment.css, predict.css, quiz.css
//
// In a notebook the same file serves as an ES module once its default export is named: Python appends
// "export default shardlabExperiment.default;" (or the like) to the text for anywidget's `_esm`.

import { build } from "esbuild";
import { cp, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { existsSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const flag = process.argv.indexOf("--out");
const out = flag > 0 ? path.resolve(process.argv[flag + 1]) : path.join(here, "../src/shardlab/web");
const packages = path.join(here, "node_modules");
const micropython = path.join(packages, "@micropython/micropython-webassembly-pyscript");

const entries = [
  { from: "src/experiment/index.js", to: "experiment.js", global: "shardlabExperiment" },
  { from: "src/page/index.js", to: "page.js" },
  { from: "src/predict/index.js", to: "predict.js", global: "shardlabPredict" },
  { from: "src/quiz/index.js", to: "quiz.js", global: "shardlabQuiz" },
  { from: "src/experiment/worker.js", to: "worker.js" },
  { from: "src/experiment/experiment.css", to: "experiment.css" },
  { from: "src/predict/predict.css", to: "predict.css" },
  { from: "src/quiz/quiz.css", to: "quiz.css" },
].filter(({ from }) => existsSync(path.join(here, from)));

// micropython.mjs ends in a command line for Node. A classic script has no top-level await, so the worker
// takes the part that a browser runs.
const browserPartOfMicroPython = {
  name: "browser-part-of-micropython",
  setup(bundler) {
    bundler.onLoad({ filter: /micropython\.mjs$/ }, async ({ path: file }) => {
      const source = await readFile(file, "utf8");
      const start = source.indexOf("if(globalThis.loadMicroPython=loadMicroPython,");
      const end = source.indexOf("class PyProxy{");
      if (start < 0 || end < start) throw new Error("micropython.mjs has changed: look for its command line again");
      return { contents: source.slice(0, start) + source.slice(end), loader: "js" };
    });
  },
};

async function bundle({ from, to, global }) {
  const result = await build({
    absWorkingDir: here,
    entryPoints: [from],
    outfile: path.join(out, to),
    bundle: true,
    minify: true,
    format: "iife",
    globalName: global,
    target: ["es2020"],
    charset: "utf8",
    legalComments: "none", // all notices stand in LICENSES.txt
    define: { "import.meta.url": "location.href" },
    external: ["module"],
    plugins: [browserPartOfMicroPython],
    metafile: true,
    logLevel: "warning",
  });
  return Object.keys(result.metafile.inputs);
}

const copies = [
  [path.join(micropython, "micropython.mjs"), "micropython.mjs"],
  [path.join(micropython, "micropython.wasm"), "micropython.wasm"],
  [path.join(packages, "mathjax/es5/tex-chtml.js"), "mathjax/tex-chtml.js"],
  [path.join(packages, "mathjax/es5/output/chtml/fonts/woff-v2"), "mathjax/output/chtml/fonts/woff-v2"],
  [path.join(packages, "mathjax/es5/input/tex/extensions"), "mathjax/input/tex/extensions"],
];
// A bundle of what the single files hold already.
const notCopied = /all-packages\.js$/;

async function noticeOf(name) {
  const folder = path.join(packages, name);
  const { version, license } = JSON.parse(await readFile(path.join(folder, "package.json"), "utf8"));
  const file = (await readdir(folder)).filter((entry) => /^licen[cs]e/i.test(entry)).sort()[0];
  const own = { "@micropython/micropython-webassembly-pyscript": "licences/micropython.txt" }[name];
  if (!file && !own) throw new Error(`${name} ships without a licence text: add one to licences/`);
  const text = await readFile(file ? path.join(folder, file) : path.join(here, own), "utf8");
  return `${"=".repeat(100)}\n${name} ${version} (${license})\n${"=".repeat(100)}\n\n${text.trim()}\n`;
}

const packageOf = (input) => /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(input)?.[1];

await mkdir(out, { recursive: true });
await rm(path.join(out, "mathjax"), { recursive: true, force: true });
const inputs = (await Promise.all(entries.map(bundle))).flat();
for (const [from, to] of copies) {
  await cp(from, path.join(out, to), { recursive: true, filter: (file) => !notCopied.test(file) });
}
const shipped = new Set([...inputs.map(packageOf).filter(Boolean), "mathjax", packageOf("node_modules/@micropython/micropython-webassembly-pyscript")]);
const notices = await Promise.all([...shipped].sort().map(noticeOf));
const head = "Work of others in this folder, with the licence of each. Written by frontend/build.mjs.\n";
await writeFile(path.join(out, "LICENSES.txt"), [head, ...notices].join("\n"));
