/** This browser's local storage, or nothing where a page may not use it. */
export function localStorageOrNothing() {
  const probe = "shardlab.probe";
  try {
    window.localStorage.setItem(probe, "1");
    window.localStorage.removeItem(probe);
    return window.localStorage;
  } catch {
    return null;
  }
}
