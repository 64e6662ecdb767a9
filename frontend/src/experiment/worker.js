// MicroPython in a Web Worker. Messages in: {wasm: url or bytes} once, {files: {path: text}}, {name, values}.
// Message out: {result} or {failed: reason}, one for each {name, values}.

import { loadMicroPython } from "@micropython/micropython-webassembly-pyscript";
import { startPython } from "./python.js";

let starting;

self.onmessage = async ({ data }) => {
  if (data.wasm) {
    const url = typeof data.wasm === "string" ? data.wasm : URL.createObjectURL(new Blob([data.wasm], { type: "application/wasm" }));
    starting = startPython(loadMicroPython, url);
    starting.catch(() => {}); // reported with the first question
    return;
  }
  try {
    const python = await starting;
    if (data.files) python.addFiles(data.files);
    else self.postMessage({ result: python.call("run_json", data.name, JSON.stringify(data.values)) });
  } catch (error) {
    if (data.name) self.postMessage({ failed: String(error.message || error) });
  }
};
