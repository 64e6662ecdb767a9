// The engine of a published page: a Web Worker with MicroPython that runs the very files of shardlab.
// It starts at the first question. One question is under way at a time; of those that wait, the latest wins.

const OFFLINE = location.protocol === "file:";

let connection = null; // promise of {worker, give}
let busy = null; // the question under way
const waiting = new Map(); // experiment -> its latest question

function loadScript(url) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${url} is missing`));
    document.head.append(script);
  });
}

async function fetchJson(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  return response.json();
}

// A page from a disk may not fetch its neighbours, but it may run them as scripts: offline.js holds
// the worker, the WebAssembly and the Python files as text.
async function startWorker(base, paths) {
  if (!OFFLINE) {
    const started = new Worker(base + paths.worker);
    started.postMessage({ wasm: base + paths.wasm });
    return { worker: started, files: (name) => fetchJson(base + globalThis.shardlabExperiments[name].python) };
  }
  await loadScript(`${base}offline.js`);
  const { source, wasm, python } = globalThis.shardlabOffline;
  const started = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const bytes = Uint8Array.from(atob(wasm), (letter) => letter.charCodeAt(0));
  started.postMessage({ wasm: bytes.buffer }, [bytes.buffer]);
  return { worker: started, files: async (name) => python[name] };
}

async function connect(base, paths) {
  const engine = await startWorker(base, paths);
  const sent = new Map();
  engine.worker.onmessage = ({ data }) => (data.failed ? lose(engine, data.failed) : finish(data));
  engine.worker.onerror = (event) => lose(engine, event.message || "the worker stopped");
  // Each experiment's Python files go to the worker once, before its first question.
  engine.give = (name) => {
    if (!sent.has(name)) sent.set(name, engine.files(name).then((files) => engine.worker.postMessage({ files })));
    return sent.get(name);
  };
  return engine;
}

// After a failure the next question starts anew.
function lose(engine, reason) {
  if (engine?.lost) return;
  if (engine) {
    engine.lost = true;
    engine.worker.terminate();
  }
  connection = null;
  if (busy) finish({ failed: reason });
}

function finish(data) {
  const { answer, refuse } = busy;
  busy = null;
  if (data.failed) refuse(new Error(data.failed));
  else answer(data.result);
  next();
}

async function next() {
  if (busy || waiting.size === 0) return;
  const [key, job] = waiting.entries().next().value;
  waiting.delete(key);
  busy = job;
  let engine;
  try {
    engine = await connection;
    await engine.give(job.name);
    engine.worker.postMessage({ name: job.name, values: job.values });
  } catch (error) {
    lose(engine, error.message);
  }
}

// `base` is the absolute address of the script's folder; `key` tells experiments on a page apart.
export function pageEngine(base, name, key) {
  return {
    compute(values) {
      connection ??= connect(base, globalThis.shardlabExperiments[name]);
      return new Promise((answer, refuse) => {
        waiting.get(key)?.answer(null);
        waiting.set(key, { name, values, answer, refuse });
        next();
      });
    },
  };
}
