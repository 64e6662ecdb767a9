// <book-quiz-progress>: what the reader has got right so far, from the answers that the quizzes keep in this browser.
// With quiz="q3" it tells of one quiz; without, of all those on the page, and offers to start over. It knows no question
// and no answer: the quizzes leave a summary of themselves beside the answers.

import { html } from "../common/dom.js";
import { forget, keeps, onChange, summaryOf } from "./store.js";
import style from "./progress-style.js";
import { wordsFor } from "./words.js";

const NAME = "book-quiz-progress";

const totalOf = (variants) => ({
  right: variants.reduce((sum, variant) => sum + variant.right, 0),
  count: variants.reduce((sum, variant) => sum + variant.count, 0),
});

// A bar for the eye; the sentence beside it says the same.
function bar({ right, count }) {
  return html("span", { class: "bar", "aria-hidden": "true" },
    html("span", { style: `width: ${count ? (100 * right) / count : 0}%` }));
}

export class BookQuizProgress extends HTMLElement {
  connectedCallback() {
    this.words = wordsFor(document.documentElement.lang, "en");
    const root = this.shadowRoot ?? this.attachShadow({ mode: "open" });
    this.body = html("div", { class: "body", lang: this.words.tag });
    this.told = html("p", { role: "status" });
    root.replaceChildren(html("style", {}, style), this.body, ...(this.quiz ? [] : [this.startOver(), this.told]));
    const unwatch = onChange(() => this.show());
    // A script in the page's head runs before the rest of the page is there.
    const parsed = () => this.show();
    document.addEventListener("DOMContentLoaded", parsed);
    this.stop = () => {
      unwatch();
      document.removeEventListener("DOMContentLoaded", parsed);
    };
    this.show();
  }

  disconnectedCallback() {
    this.stop?.();
  }

  get quiz() {
    return this.getAttribute("quiz");
  }

  show() {
    this.body.replaceChildren(...(this.quiz ? this.one(summaryOf(this.quiz)) : this.all()));
  }

  one(summary) {
    const { say } = this.words;
    if (!summary) return [html("p", {}, say("notStarted"), " ", this.link())];
    const total = totalOf(summary.variants);
    const open = this.body.querySelector("details")?.open ?? false;
    const lines = summary.variants.map((variant) =>
      html("li", {}, html("span", { lang: summary.language }, variant.title), ` (${say("progress", variant)})`));
    return [
      html("details", { open },
        html("summary", {}, bar(total), say("rightSoFar", total)),
        html("ul", {}, ...lines)),
      ...(summary.again.length
        ? [html("p", {}, say("lookAgain"), " ", html("span", { lang: summary.language }, summary.again.join(" · ")))]
        : []),
      html("p", {}, this.link()),
    ];
  }

  // The chapter's address stands in the same line of the page; the quiz has an address inside it.
  link() {
    const chapter = this.closest("li")?.querySelector("a[href]");
    if (!chapter) return null;
    const address = new URL(chapter.href);
    address.hash = `quiz-${this.quiz}`;
    // "q3" is question 3 of the source; "c05" the quiz of chapter 05.
    const [, number] = /^c(\d+)$/.exec(this.quiz) ?? [];
    const text = number
      ? this.words.say("toChapterQuiz", { chapter: number })
      : this.words.say("toQuiz", { quiz: this.quiz.toUpperCase() });
    return html("a", { href: address.href }, text);
  }

  names() {
    return [...document.querySelectorAll(`${NAME}[quiz]`)].map((element) => element.quiz);
  }

  all() {
    const { say } = this.words;
    if (!keeps()) return [html("p", { class: "warn" }, say("reviewNotKept"))];
    const names = this.names();
    const found = names.map(summaryOf).filter(Boolean);
    this.clear.hidden = found.length === 0;
    if (!found.length) return [html("p", {}, say("reviewNone"))];
    const total = totalOf(found.flatMap((summary) => summary.variants));
    return [html("p", { class: "sum" }, bar(total), say("reviewSum", { ...total, started: found.length, quizzes: names.length }))];
  }

  startOver() {
    const { say } = this.words;
    const close = () => {
      ask.hidden = true;
      this.ready.hidden = false;
    };
    const ask = html("div", { class: "actions", role: "group", "aria-label": say("startOverAsk"), hidden: true },
      html("span", {}, say("startOverAsk")),
      html("button", { type: "button", onclick: () => { close(); this.clearAll(); } }, say("clearYes")),
      html("button", { type: "button", onclick: () => { close(); this.clear.focus(); } }, say("clearNo")));
    this.clear = html("button", { type: "button", onclick: () => {
      this.told.textContent = "";
      this.ready.hidden = true;
      ask.hidden = false;
      ask.querySelector("button:last-child").focus();
    } }, say("startOver"));
    this.ready = html("div", { class: "actions" }, this.clear);
    this.told.tabIndex = -1;
    return html("div", {}, this.ready, ask);
  }

  clearAll() {
    this.names().forEach(forget);
    for (const element of document.querySelectorAll(NAME)) element.show();
    // The button is gone with the answers: the focus goes to what is said about it.
    this.told.textContent = this.words.say("startOverDone");
    this.told.focus();
  }
}
