// <book-quiz>: a quiz on a page.

import { DataElement } from "../common/data-element.js";
import { html, uniqueId } from "../common/dom.js";
import { partNode } from "./parts.js";
import { Store } from "./store.js";
import style from "./style.js";
import { plain, wordsFor } from "./words.js";

// The name of a mistake in one of a question's lists.
function nameOf(part, misconception) {
  const found = [part.mistakes, part.options, part.traps].flatMap((list) => list ?? []).find((each) => each.misconception === misconception);
  return found && plain(found.name);
}

export class BookQuiz extends DataElement {
  static list = "variants";

  disconnectedCallback() {
    this.stop?.();
  }

  show() {
    this.stop?.();
    this.words = wordsFor(document.documentElement.lang, this.data.language);
    this.store = new Store(this.data, this.model);
    this.ids = uniqueId("sl-quiz");
    this.store.lost = () => this.showKept();
    const unwatch = this.store.watch(() => this.showVariant());
    // Paper shows the text version, its answers unfolded.
    const unfold = ({ type }) => {
      for (const details of this.querySelectorAll(".quiz-static > .quiz-answers")) details.open = type === "beforeprint";
    };
    addEventListener("beforeprint", unfold);
    addEventListener("afterprint", unfold);
    this.stop = () => {
      unwatch();
      removeEventListener("beforeprint", unfold);
      removeEventListener("afterprint", unfold);
    };
    this.build();
  }

  build() {
    const { say, rich, tag } = this.words;
    this.progress = html("p", { class: "progress" });
    this.select = html("select", { id: `${this.ids}-variant`, onchange: () => this.go(this.select.selectedIndex) },
      ...this.data.variants.map(() => html("option")));
    this.body = html("div", { class: "variant" });
    this.kept = html("p");
    this.told = html("p", { role: "status" });
    const only = this.data.variants.length === 1;
    const heading = `${this.ids}-title`;
    this.root.replaceChildren(
      html("style", {}, style),
      html("section", { class: "quiz card", lang: tag, "aria-labelledby": heading },
        html("header", {},
          html("p", { class: "eyebrow" }, say("selfCheck")),
          rich("h3", this.data.title, { id: heading }),
          rich("p", this.data.question)),
        html("div", { class: "bar" },
          only ? null : html("label", { for: this.select.id }, html("span", { class: "sr" }, say("variant")), this.select),
          only ? null : html("button", { type: "button", onclick: () => this.another() }, say("another")),
          this.progress),
        this.body,
        this.footer()),
      html("div", { class: "static" }, html("slot")));
    this.showKept();
    this.showVariant();
    if (Object.keys(this.store.current()).length) this.keepSummary(); // The questions may have changed since.
  }

  footer() {
    const { say } = this.words;
    const ask = html("div", { class: "actions", role: "group", "aria-label": say("clearAsk"), hidden: true },
      html("span", {}, say("clearAsk")),
      html("button", { type: "button", onclick: () => { done(); this.clear(); } }, say("clearYes")),
      html("button", { type: "button", onclick: () => done() }, say("clearNo")));
    const clear = html("button", { type: "button", onclick: () => { ask.hidden = false; buttons.hidden = true; ask.querySelector("button:last-child").focus(); } }, say("clear"));
    const buttons = html("div", { class: "actions" },
      html("button", { type: "button", onclick: () => this.export() }, say("export")), clear);
    const done = () => { ask.hidden = true; buttons.hidden = false; clear.focus(); };
    return html("footer", {}, this.kept, buttons, ask, this.told);
  }

  showKept() {
    const { say } = this.words;
    const key = this.store.persistent ? (this.model ? "keptNotebook" : "kept") : "notKept";
    this.kept.textContent = say(key);
    this.kept.className = this.store.persistent ? "" : "warn";
  }

  get index() {
    return Math.max(this.data.variants.findIndex((variant) => variant.id === this.store.variant), 0);
  }

  go(index) {
    this.store.variant = this.data.variants[index].id;
    this.showVariant();
  }

  another() {
    this.go((this.index + 1) % this.data.variants.length);
    this.body.querySelector("h4").focus();
  }

  showVariant() {
    const { rich } = this.words;
    const variant = this.data.variants[this.index];
    this.body.replaceChildren(
      rich("h4", variant.title, { tabindex: "-1" }),
      rich("p", variant.scenario),
      ...(variant.given.length
        ? [html("dl", { class: "given" }, ...variant.given.map(([symbol, meaning, value]) =>
            html("div", {}, html("dt", {}, html("em", {}, symbol), rich("span", meaning)), rich("dd", value))))]
        : []),
      ...(variant.table ? [this.table(variant.table)] : []),
      ...variant.parts.map((part, index) => {
        const key = `${variant.id}/${part.id}`;
        return partNode(part, {
          words: this.words, store: this.store, key, id: `${this.ids}-${variant.id}-${part.id}`, position: index + 1,
          changed: () => {
            this.showProgress();
            this.keepSummary();
          },
        });
      }));
    this.select.selectedIndex = this.index;
    this.showProgress();
  }

  table({ caption, columns, rows }) {
    const { rich } = this.words;
    return html("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": plain(caption) },
      html("table", {}, rich("caption", caption),
        html("thead", {}, html("tr", {}, ...columns.map((column) => rich("th", column, { scope: "col" })))),
        html("tbody", {}, ...rows.map(([first, ...cells]) => html("tr", {}, html("th", { scope: "row" }, first), ...cells.map((cell) => html("td", {}, cell)))))));
  }

  // How many questions of a variant are done: answered right, or all points of an open one ticked.
  done(variant) {
    return variant.parts.filter((part) => {
      const record = this.store.get(`${variant.id}/${part.id}`);
      return part.kind === "open" ? record?.tries && record.response.ticks.length === part.points.length : record?.right;
    }).length;
  }

  showProgress() {
    const { say } = this.words;
    const count = this.data.variants.length;
    this.data.variants.forEach((variant, index) => {
      const done = this.done(variant) === variant.parts.length ? " ✓" : "";
      this.select.options[index].textContent = say("variantChoice", { position: index + 1, count, title: plain(variant.title) }) + done;
    });
    const variant = this.data.variants[this.index];
    this.progress.textContent = say("progress", { right: this.done(variant), count: variant.parts.length });
  }

  // What the review page shows of this quiz: counts, and the names of the mistakes that stand.
  keepSummary() {
    const again = new Set();
    const variants = this.data.variants.map((variant) => {
      for (const part of variant.parts) {
        const record = this.store.get(`${variant.id}/${part.id}`);
        if (record?.right === false && record.misconception) again.add(nameOf(part, record.misconception));
      }
      return { title: plain(variant.title), right: this.done(variant), count: variant.parts.length };
    });
    again.delete(undefined);
    this.store.summary = { language: this.data.language, variants, again: [...again] };
  }

  clear() {
    this.store.clear();
    this.showVariant();
    this.told.textContent = this.words.say("cleared");
  }

  /** Everything the reader answered, with the questions, as a file. */
  export() {
    const variants = this.data.variants.map((variant) => ({
      id: variant.id,
      title: plain(variant.title),
      questions: variant.parts.flatMap((part) => {
        const record = this.store.get(`${variant.id}/${part.id}`);
        return record ? [{ id: part.id, question: plain(part.prompt), ...(part.unit ? { unit: part.unit } : {}), ...record }] : [];
      }),
    })).filter((variant) => variant.questions.length);
    const text = JSON.stringify({ quiz: this.data.id, title: plain(this.data.title), seed: this.data.seed, variants }, null, 2);
    const file = `shardlab-${this.data.id}-answers.json`;
    const address = URL.createObjectURL(new Blob([text + "\n"], { type: "application/json" }));
    html("a", { href: address, download: file }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
    this.told.textContent = this.words.say("exported", { file });
  }
}
