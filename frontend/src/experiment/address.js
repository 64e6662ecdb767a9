// An experiment's state in the page's address: ?live-scaling-explorer.ranks=64&...#live-scaling-explorer
// Each experiment on a page has its own prefix, the id of its element.

export function stateFromAddress(id, spec, address = location) {
  const query = new URLSearchParams(address.search);
  const state = {};
  for (const control of spec.controls) {
    const text = query.get(`${id}.${control.name}`);
    if (text === null) continue;
    if (control.kind === "toggle") state[control.name] = text === "true";
    else if (control.kind === "choice") state[control.name] = text;
    else state[control.name] = text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  }
  return state;
}

// The page's address with this experiment's state, or without it when `values` is null.
export function addressWith(id, values, address = location) {
  const url = new URL(address.href);
  for (const name of [...url.searchParams.keys()]) if (name.startsWith(`${id}.`)) url.searchParams.delete(name);
  for (const [name, value] of Object.entries(values ?? {})) url.searchParams.set(`${id}.${name}`, value);
  if (values) url.hash = id;
  return url.href;
}
