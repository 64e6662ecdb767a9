// <book-predict>: a chapter's questions before it starts.

import { DataElement } from "../common/data-element.js";
import { html, uniqueId } from "../common/dom.js";
import { localStorageOrNothing } from "../common/storage.js";
import { plain, wordsIn } from "../common/words.js";
import { parseNumber } from "../quiz/grade.js";
import en from "../../../src/shardlab/predictions/locale/en.json";
import zhCN from "../../../src/shardlab/predictions/locale/zh_CN.json";
import { compared, decimal } from "./compare.js";
import { makeSketch } from "./sketch.js";
import style from "./style.js";

const PREFIX = "shardlab.predict/";
const memory = new Map();
const withUnit = (text, unit) => (unit === "×" || !unit ? `${text}${unit ?? ""}` : `${text}\u00a0${unit}`);

export class BookPredict extends DataElement {
  static list = "items";

  // What was typed, by question and version of it, and whether it was compared ------------------------------------
  get storage() {
    return localStorageOrNothing();
  }

  read() {
    const name = PREFIX + this.data.id;
    try {
      const found = JSON.parse((this.storage ? this.storage.getItem(name) : memory.get(name)) ?? "{}");
      this.typed = found.typed ?? {};
      this.compared = found.compared === true;
    } catch {
      // What can't be read can't be shown; the next guess replaces it.
      this.typed = {};
      this.compared = false;
    }
  }

  write() {
    const text = JSON.stringify({ typed: this.typed, compared: this.compared });
    memory.set(PREFIX + this.data.id, text);
    try {
      this.storage?.setItem(PREFIX + this.data.id, text);
    } catch {
      // A full storage: the guesses stay in memory.
    }
    if (this.model) {
      const guesses = this.data.items.map((item) => [item.id, this.valueOf(item)]);
      this.model.set("guesses", Object.fromEntries(guesses.filter(([, value]) => value !== null && !Number.isNaN(value))));
      this.model.save_changes();
    }
  }

  textOf(item) {
    return this.typed[`${item.id}@${item.version}`] ?? "";
  }

  // A number in the question's unit (NaN: none), or the option chosen (null: none).
  valueOf(item) {
    const text = this.textOf(item);
    if (item.kind === "choice") return item.options.some(({ id }) => id === text) ? text : null;
    return parseNumber(text, item.unit).values?.[0] ?? Number.NaN;
  }

  guessed(item) {
    const value = this.valueOf(item);
    return value !== null && !Number.isNaN(value);
  }

  keep(item, text) {
    this.typed[`${item.id}@${item.version}`] = text;
    this.write();
    this.drawSketch();
  }

  // On the screen -------------------------------------------------------------------------------------------------
  show() {
    this.words = wordsIn({ en, zhCN }, document.documentElement.lang, this.data.language);
    const { say, tag } = this.words;
    this.read();
    this.ids = uniqueId("sl-predict");
    const heading = `${this.ids}-title`;
    this.rows = this.data.items.map((item, index) => this.row(item, index));
    this.button = html("button", { type: "button", onclick: () => (this.compared ? this.anew() : this.compare()) });
    this.told = html("p", { role: "status", class: "told" });
    const columns = this.data.items.filter(({ tick }) => tick);
    this.columns = columns;
    this.sketch = this.data.sketch && makeSketch(this.data.sketch, columns.map(({ tick }) => tick), (column, value) => this.drawn(column, value));
    this.root.replaceChildren(
      html("style", {}, style),
      html("div", { role: "group", class: "predict card", lang: tag, "aria-labelledby": heading },
        html("h3", { id: heading }, say("title")),
        html("p", { class: "hint" }, say("intro"), this.sketch && ` ${say("draw")}`),
        html("div", { class: this.sketch ? "two" : "" },
          html("ol", {}, ...this.rows.map(({ node }) => node)),
          this.sketch && html("div", {}, this.sketch.picture)),
        html("div", { class: "actions" }, this.button, html("span", { class: "hint" }, say(this.storage ? "kept" : "notKept"))),
        this.told),
      html("div", { class: "static" }, html("slot")));
    if (this.model && Object.keys(this.typed).length) this.write(); // the kernel may have been started anew
    this.fill();
  }

  row(item, index) {
    const { say, rich } = this.words;
    const id = `${this.ids}-${index}`;
    const answer = html("div", { class: "answer" });
    let field;
    if (item.kind === "choice") {
      const inputs = item.options.map((option) =>
        html("input", { type: "radio", name: id, id: `${id}-${option.id}`, value: option.id,
          onchange: () => this.keep(item, option.id) }));
      field = {
        // Not a fieldset: a list's number would stand beside its options.
        node: html("div", { role: "radiogroup", "aria-labelledby": `${id}-prompt` }, rich("div", item.prompt, { id: `${id}-prompt` }),
          ...item.options.map((option, at) => html("label", { for: inputs[at].id }, inputs[at], rich("span", option.text)))),
        focus: () => (inputs.find(({ checked }) => checked) ?? inputs[0]).focus(),
        show: (text, fixed) => inputs.forEach((input) => {
          input.checked = input.value === text;
          input.disabled = fixed;
        }),
      };
    } else {
      const input = html("input", { id, type: "text", inputmode: "decimal", autocomplete: "off", "aria-describedby": `${id}-problem`,
        placeholder: item.example ? say("example", { value: item.example }) : null,
        oninput: () => this.keep(item, input.value),
        onkeydown: (event) => event.key === "Enter" && !this.compared && this.compare() });
      const label = plain(item.prompt) + " " + (item.unit ? say("guessUnit", { unit: item.unit }) : say("guess"));
      input.setAttribute("aria-label", label);
      field = {
        node: html("div", {}, rich("label", item.prompt, { for: id }),
          html("div", { class: "number" }, input, item.unit && html("span", { class: "unit" }, item.unit)),
          html("p", { class: "problem", id: `${id}-problem` })),
        focus: () => input.focus(),
        show: (text, fixed) => {
          if (input.value !== text) input.value = text;
          input.readOnly = fixed;
        },
        problem: (text) => {
          field.node.querySelector(".problem").textContent = text;
          input.setAttribute("aria-invalid", text ? "true" : "false");
        },
      };
    }
    return { item, field, answer, node: html("li", {}, field.node, answer) };
  }

  // The reader pointed into the chart.
  drawn(column, value) {
    const item = this.columns[column];
    this.keep(item, String(value));
    this.rows.find((row) => row.item === item).field.show(String(value), false);
  }

  compare() {
    const { say } = this.words;
    this.told.textContent = "";
    let first = null;
    for (const { item, field } of this.rows) {
      if (item.kind === "choice") continue;
      const found = parseNumber(this.textOf(item), item.unit);
      const problem = found.error && found.error !== "empty"
        ? say(found.error, { typed: this.textOf(item), unit: found.unit, expected: item.unit || say("guess") })
        : "";
      field.problem(problem);
      if (problem) first ??= field;
    }
    if (first) return first.focus();
    if (!this.data.items.some((item) => this.guessed(item))) {
      this.told.textContent = say("empty");
      return this.rows[0].field.focus();
    }
    this.compared = true;
    this.write();
    this.fill();
    this.rows[0].answer.focus();
  }

  anew() {
    this.compared = false;
    this.typed = {};
    this.write();
    this.fill();
    this.rows[0].field.focus();
  }

  // What the fields hold, and, once compared, the answers.
  fill() {
    const { say, rich } = this.words;
    this.button.textContent = say(this.compared ? "again" : "compare");
    this.button.className = this.compared ? "" : "primary";
    for (const { item, field, answer } of this.rows) {
      field.show(this.textOf(item), this.compared);
      // The focus goes to the first answer, and to nothing that is empty.
      if (this.compared) answer.tabIndex = -1;
      else answer.removeAttribute("tabindex");
      answer.replaceChildren(...(this.compared
        ? [html("p", {}, html("strong", {}, say("answer", { value: withUnit(plain(item.shown), item.unit) })), " ", this.verdict(item)),
           item.why ? rich("p", item.why) : ""]
        : []));
    }
    this.drawSketch();
  }

  verdict(item) {
    const { say } = this.words;
    if (!this.guessed(item)) return say("noGuess");
    const value = this.valueOf(item);
    if (item.kind === "choice") {
      if (value === item.key) return say("right");
      return say("other", { guess: plain(item.options.find(({ id }) => id === value).text) });
    }
    const { kind, ...rest } = compared(value, item.key);
    return say(kind, { guess: withUnit(decimal(value, 6), item.unit), ...rest });
  }

  drawSketch() {
    if (!this.sketch) return;
    const { say } = this.words;
    const guesses = this.columns.map((item) => this.valueOf(item));
    const told = (values) => values.map((value) => (Number.isFinite(value) ? String(value) : "–")).join(", ");
    const answers = this.columns.map(({ key }) => key);
    const alt = this.compared
      ? say("chart", { guesses: told(guesses), answers: this.columns.map(({ shown }) => shown).join(", ") })
      : say("chartOpen");
    this.sketch.draw(guesses, this.compared ? answers : null, { you: say("you"), model: say("model") }, alt);
  }
}
