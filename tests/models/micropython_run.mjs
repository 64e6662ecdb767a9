// Runs Python text in MicroPython under Node. stdin: {"files": {path: text}, "code": text}; stdout: what it prints.

import { readFileSync } from "node:fs";
import { loadMicroPython } from "../../src/shardlab/web/micropython.mjs";

const wasm = new URL("../../src/shardlab/web/micropython.wasm", import.meta.url).pathname;
const { files, code } = JSON.parse(readFileSync(0, "utf8"));
const lines = [];
const python = await loadMicroPython({ heapsize: 64 * 1024 * 1024, url: wasm, stdout: (line) => lines.push(line) });
for (const [path, text] of Object.entries(files)) {
  const folders = ["probe", ...path.split("/").slice(0, -1)];
  folders.forEach((_, depth) => {
    try { python.FS.mkdir("/" + folders.slice(0, depth + 1).join("/")); } catch { /* is there already */ }
  });
  python.FS.writeFile("/probe/" + path, text);
}
python.runPython("import sys\nsys.path.insert(0, '/probe')");
python.runPython(code);
process.stdout.write(lines.join("\n"));
