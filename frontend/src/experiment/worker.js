// MicroPython in a Web Worker. Messages in: {wasm: url or bytes} once, {files: {path: text}}, {name, values}.
// Message out: {result} or {failed: reason}, one for each {name, values}.

import { loadMicroPython } from "@micropython/micropython-webassembly-pyscript";
import { startPython } from "./python.js";

let starting;

// Browsers compile WebAssembly plainly at first, and well only what has run often: some hundred answers at half the
// speed. So the engine repeats its last answer while the reader looks at it, and stops when there is a question.
const PRACTICE = 150;
const REST_MS = 150;
let practised = 0;
let resting;

function practise(python, question) {
  if (practised === PRACTICE) return;
  practised += 1;
  python.call(...question);
  resting = setTimeout(practise, 0, python, question);
}

self.onmessage = async ({ data }) => {
  clearTimeout(resting);
  if (data.wasm) {
    const url = typeof data.wasm === "string" ? data.wasm : URL.createObjectURL(new Blob([data.wasm], { type: "application/wasm" }));
    starting = startPython(loadMicroPython, url);
    starting.catch(() => {}); // reported with the first question
    return;
  }
  try {
    const python = await starting;
    if (data.files) python.addFiles(data.files);
    else {
      const question = ["run_json", data.name, JSON.stringify(data.values)];
      self.postMessage({ result: python.call(...question) });
      resting = setTimeout(practise, REST_MS, python, question);
    }
  } catch (error) {
    if (data.name) self.postMessage({ failed: String(error.message || error) });
  }
};
