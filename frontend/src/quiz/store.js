// Keeps answers: in this browser's local storage, in a notebook's kernel (the widget's `answers` trait), or, where
// neither is to be had, in memory.

import { localStorageOrNothing } from "../common/storage.js";

const PREFIX = "shardlab.quiz/";
const memory = new Map();

// What a browser holds under a quiz's name; nothing where there is nothing, or nothing readable.
function parsed(text) {
  try {
    const found = JSON.parse(text ?? "{}");
    return { variant: found.variant ?? null, answers: found.answers ?? {}, summary: found.summary ?? null };
  } catch {
    return null;
  }
}

/** Whether this browser keeps anything from one page to the next. */
export const keeps = () => localStorageOrNothing() !== null;

/** How far the reader is in a quiz, as it was left: see `Store.summary`. */
export function summaryOf(quiz) {
  const storage = localStorageOrNothing();
  return parsed(storage ? storage.getItem(PREFIX + quiz) : memory.get(PREFIX + quiz))?.summary ?? null;
}

/** Forgets all answers of a quiz. */
export function forget(quiz) {
  memory.delete(PREFIX + quiz);
  localStorageOrNothing()?.removeItem(PREFIX + quiz);
}

/** Calls back when another tab has changed answers, or the page is shown again. Returns a function that stops it. */
export function onChange(changed) {
  const onStorage = ({ key }) => {
    if (key === null || key.startsWith(PREFIX)) changed();
  };
  window.addEventListener("storage", onStorage);
  window.addEventListener("pageshow", changed); // "Back" brings a page as it was, without what happened since.
  return () => {
    window.removeEventListener("storage", onStorage);
    window.removeEventListener("pageshow", changed);
  };
}

/** Answers of one quiz. A record belongs to a question and a version of it, so that a question that was changed
 * starts anew and its old answer stays where it is. */
export class Store {
  /** @param model an anywidget model with an `answers` trait, or nothing. */
  constructor(quiz, model) {
    this.name = PREFIX + quiz.id;
    this.versions = new Map(quiz.variants.flatMap((variant) => variant.parts.map((part) => [`${variant.id}/${part.id}`, part.version])));
    this.storage = localStorageOrNothing();
    this.model = model;
    this.state = { variant: null, answers: {}, summary: null };
    this.read();
    if (model) {
      for (const [key, record] of Object.entries(model.get("answers") ?? {})) this.state.answers[this.entry(key)] = record;
      this.send();
    }
  }

  get persistent() {
    return this.storage !== null;
  }

  entry(key) {
    return `${key}@${this.versions.get(key)}`;
  }

  read() {
    // What can't be read can't be shown; the next answer replaces it.
    this.state = parsed(this.storage ? this.storage.getItem(this.name) : memory.get(this.name)) ?? this.state;
  }

  get(key) {
    return this.state.answers[this.entry(key)];
  }

  /** A reader's own words outlive a change of the question. */
  wordsOf(key) {
    const kept = Object.entries(this.state.answers).filter(([entry, record]) => entry.startsWith(key + "@") && record.response?.text);
    return kept.length ? kept[kept.length - 1][1].response.text : "";
  }

  set(key, record) {
    this.state.answers[this.entry(key)] = record;
    this.write();
    this.sendSoon();
  }

  get variant() {
    return this.state.variant;
  }

  set variant(id) {
    this.state.variant = id;
    this.write();
  }

  /** For the review page, which has no questions: `{ language, variants: [{ title, right, count }], again: [names] }`. */
  set summary(value) {
    this.state.summary = value;
    this.write();
  }

  write() {
    const text = JSON.stringify(this.state);
    memory.set(this.name, text);
    try {
      this.storage?.setItem(this.name, text);
    } catch {
      this.storage = null; // Full, or forbidden since the page was opened.
      this.lost?.();
    }
  }

  clear() {
    this.state = { variant: this.state.variant, answers: {}, summary: null };
    this.write();
    this.send();
  }

  /** The answers to the questions as they are now, by "variant/part". */
  current() {
    const found = {};
    for (const key of this.versions.keys()) {
      const record = this.get(key);
      if (record) found[key] = record;
    }
    return found;
  }

  // One message to the kernel per pause in typing.
  sendSoon() {
    if (!this.model) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.send(), 300);
  }

  send() {
    if (!this.model) return;
    clearTimeout(this.timer);
    this.sent = JSON.stringify(this.current());
    this.model.set("answers", JSON.parse(this.sent));
    this.model.save_changes();
  }

  /** Calls back when another tab, or the kernel, has changed the answers. Returns a function that stops it. */
  watch(changed) {
    const onStorage = (event) => {
      if (event.key !== this.name || !this.storage) return;
      this.read();
      changed();
    };
    const onModel = () => {
      const answers = this.model.get("answers") ?? {};
      if (JSON.stringify(answers) === this.sent) return;
      for (const key of this.versions.keys()) delete this.state.answers[this.entry(key)];
      for (const [key, record] of Object.entries(answers)) this.state.answers[this.entry(key)] = record;
      this.sent = JSON.stringify(answers);
      this.write();
      changed();
    };
    window.addEventListener("storage", onStorage);
    this.model?.on("change:answers", onModel);
    return () => {
      this.send();
      window.removeEventListener("storage", onStorage);
      this.model?.off("change:answers", onModel);
    };
  }
}
