// Starts MicroPython, gives it Python files (path -> text) and calls the engine's functions:
// call("run_json", name, params) and call("spec_json", name).
// The page's worker and the parity test under Node both start it here.

const HEAP_BYTES = 16 * 2 ** 20;
const ROOT = "/book";

export async function startPython(loadMicroPython, wasmUrl) {
  const python = await loadMicroPython({ url: wasmUrl, heapsize: HEAP_BYTES });
  const written = new Set();

  function makeFolder(folder) {
    if (written.has(folder)) return;
    written.add(folder);
    python.FS.mkdir(folder);
  }

  function addFiles(files) {
    makeFolder(ROOT);
    for (const [path, text] of Object.entries(files)) {
      if (written.has(path)) continue;
      written.add(path);
      const folders = path.split("/").slice(0, -1);
      folders.forEach((_, depth) => makeFolder([ROOT, ...folders.slice(0, depth + 1)].join("/")));
      python.FS.writeFile(`${ROOT}/${path}`, text);
    }
  }

  let engine;
  function call(name, ...texts) {
    if (!engine) {
      python.runPython(`import sys\nsys.path.insert(0, '${ROOT}')\nfrom shardlab.experiments import engine`);
      engine = python.globals.get("engine");
    }
    return JSON.parse(engine[name](...texts));
  }

  return { addFiles, call };
}
