// One question on the screen: its fields, its feedback, its solution.

import { html } from "../common/dom.js";
import { grade } from "./grade.js";
import { plain } from "./words.js";

const blank = { number: "", choice: [], several: [], open: { text: "", ticks: [] } };

// "2.91×", but "175 ms".
const withUnit = ({ shown, unit }) => (unit === "×" ? shown + unit : `${shown}\u00a0${unit}`);

function reason({ name, why }, { rich }) {
  return html("span", {}, name ? rich("strong", `${name}.`) : null, name ? " " : null, rich("span", why));
}

// Fields. Each returns its node and a function that puts the focus where the reader should go on.

function numberField(part, response, changed, { say, id }) {
  const whole = !part.relative && !part.absolute;
  const limit = part.relative
    ? `${+(100 * part.relative).toFixed(2)}\u00a0%`
    : part.unit === "%" ? say("percentagePoints", { value: part.absolute }) : `${part.absolute}\u00a0${part.unit}`;
  const input = html("input", {
    type: "text", id, inputmode: "decimal", autocomplete: "off", spellcheck: "false", value: response,
    "aria-describedby": `${id}-hint`, oninput: () => changed(input.value),
  });
  const node = html("div", {},
    html("label", { for: id, class: "hint" }, say("yourAnswer", { unit: part.unit })),
    html("div", { class: "number" },
      input,
      html("span", { class: "unit", "aria-hidden": "true" }, part.unit),
      html("span", { class: "hint", id: `${id}-hint` }, whole ? say("hintWhole") : say("hint", { tolerance: limit }))));
  return { node, focus: () => input.focus(), refuse: (refused) => input.setAttribute("aria-invalid", String(refused)) };
}

function optionFields(part, response, changed, { say, rich, id }) {
  const several = part.kind === "several";
  const inputs = part.options.map((option, index) =>
    html("input", {
      type: several ? "checkbox" : "radio", name: id, id: `${id}-${index}`, value: option.id,
      checked: response.includes(option.id),
      onchange: () => changed(inputs.filter((input) => input.checked).map((input) => input.value)),
    }));
  const node = html("div", {},
    html("p", { class: "hint" }, say(several ? "chooseSeveral" : "chooseOne")),
    html("div", { class: "options" },
      ...part.options.map((option, index) =>
        html("label", { for: `${id}-${index}` }, inputs[index], rich("span", option.text)))));
  return { node, focus: () => (inputs.find((input) => input.checked) ?? inputs[0]).focus() };
}

function orderField(part, response, changed, { say, rich, announce }) {
  const items = new Map(part.items.map((item) => [item.id, item]));
  const ids = [...response];
  const list = html("ol", { class: "order" });
  const rows = new Map();
  function move(id, by, button) {
    const from = ids.indexOf(id);
    const to = from + by;
    if (to < 0 || to >= ids.length) return;
    ids.splice(to, 0, ...ids.splice(from, 1));
    settle();
    button.focus(); // A node that moves loses the focus.
    changed([...ids]);
    announce(say("moved", { item: plain(items.get(id).text), position: to + 1, count: ids.length }));
  }
  function settle() {
    list.append(...ids.map((id) => rows.get(id).row));
    ids.forEach((id, position) => {
      const { up, down } = rows.get(id);
      // Not `disabled`: that would drop the focus of a reader who moves a line to the end.
      up.setAttribute("aria-disabled", String(position === 0));
      down.setAttribute("aria-disabled", String(position === ids.length - 1));
    });
  }
  for (const item of part.items) {
    const text = plain(item.text);
    const up = html("button", { type: "button", class: "move", "aria-label": say("moveUp", { item: text }), onclick: () => move(item.id, -1, up) }, "↑");
    const down = html("button", { type: "button", class: "move", "aria-label": say("moveDown", { item: text }), onclick: () => move(item.id, 1, down) }, "↓");
    rows.set(item.id, { row: html("li", {}, rich("span", item.text), html("span", { class: "moves" }, up, down)), up, down });
  }
  settle();
  const node = html("div", {},
    html("p", { class: "hint" }, say("orderHint")),
    rich("p", part.first, { class: "end" }), list, rich("p", part.last, { class: "end" }));
  return { node, focus: () => rows.get(ids[0]).down.focus() };
}

function openField(part, response, changed, { say, id }) {
  const area = html("textarea", { id, rows: 5, oninput: () => changed({ ...response, text: area.value }) });
  area.value = response.text;
  const node = html("div", {}, html("label", { for: id, class: "hint" }, say("ownWords")), area);
  return { node, focus: () => area.focus() };
}

const FIELDS = { number: numberField, choice: optionFields, several: optionFields, order: orderField, open: openField };

// Feedback.

function verdict(good, text) {
  return html("p", { class: `verdict ${good ? "good" : "bad"}` },
    html("span", { class: "mark", "aria-hidden": "true" }, good ? "✓" : "✗"), " ", html("strong", {}, text));
}

function numberFeedback(part, result, response, words) {
  const { say } = words;
  if (result.state === "right") {
    const nodes = [verdict(true, say("rightValue", { value: withUnit(part) }))];
    if (result.note) nodes.push(html("p", {}, say(result.note, { typed: response.trim(), value: +result.value.toPrecision(4) })));
    return nodes;
  }
  const nodes = [verdict(false, say("wrongValue", { typed: response.trim() }))];
  if (result.mistakes.length) nodes.push(html("p", {}, say("looksLike"), " ", reason(result.mistakes[0], words)));
  else if (result.hint) nodes.push(html("p", {}, say(result.hint)));
  return nodes;
}

function optionFeedback(part, result, words) {
  const { say, rich } = words;
  const good = result.state === "right";
  const nodes = [verdict(good, say(good ? "right" : "wrong"))];
  if (part.kind === "choice") {
    nodes.push(html("p", {}, reason((good ? result.reasons : result.mistakes)[0], words)));
    return nodes;
  }
  const told = good ? result.reasons : result.mistakes;
  if (told.length) nodes.push(html("ul", {}, ...told.map((option) => html("li", {}, rich("q", option.text), ": ", reason(option, words)))));
  if (result.missing) nodes.push(html("p", {}, say("missing", { count: result.missing })));
  return nodes;
}

function orderFeedback(part, result, words) {
  const { say } = words;
  if (result.state === "right") return [verdict(true, say("right")), placed(part, words)];
  const text = (id) => plain(part.items.find((item) => item.id === id).text);
  const nodes = [verdict(false, say("wrong")), html("p", {}, say("orderPlaces", { places: result.places, count: part.items.length }))];
  if (result.mistakes.length) nodes.push(...result.mistakes.map((trap) => html("p", {}, say("looksLike"), " ", reason(trap, words))));
  else nodes.push(html("p", {}, say("orderPair", { above: text(result.pair[0]), below: text(result.pair[1]) })));
  return nodes;
}

const placed = (part, { rich }) =>
  html("ol", {}, ...part.items.map((item) => html("li", {}, rich("span", item.text), " (", rich("span", item.note), ")")));

function solutionOf(part, words) {
  const { say, rich } = words;
  const nodes = [html("p", { class: "label" }, say("solution"))];
  if (part.kind === "number") nodes.push(html("p", {}, html("strong", {}, withUnit(part))));
  if (part.kind === "order") nodes.push(placed(part, words));
  if (part.options) {
    nodes.push(html("ul", { class: "judged" }, ...part.options.map((option) =>
      html("li", { class: option.correct ? "good" : "bad" },
        html("span", { class: "mark" }, `${option.correct ? "✓" : "✗"} ${say(option.correct ? "rightOption" : "wrongOption")}:`),
        " ", rich("q", option.text), ": ", reason(option, words)))));
  }
  if (part.solution.length) nodes.push(html("ol", { class: "steps" }, ...part.solution.map((step) => rich("li", step))));
  return nodes;
}

// Not a form: where a page is shown in a sandboxed frame, forms may not be submitted.
const sendsWithEnter = (node) => node instanceof HTMLInputElement && !node.closest(".points");

/** A question with its fields. `context`: `words`, `store`, `key`, `id`, `position`, and `changed()` after every check. */
export function partNode(part, context) {
  const { words, store, key, id, position } = context;
  const { say, rich } = words;
  let record = store.get(key) ?? { version: part.version, response: part.kind === "order" ? part.start : blank[part.kind], tries: 0 };
  if (part.kind === "open" && !record.response.text) record = { ...record, response: { text: store.wordsOf(key), ticks: [] } };
  const keep = (changes) => store.set(key, (record = { ...record, ...changes }));

  const status = html("div", { role: "status", class: "status" });
  const moving = html("div", { role: "status", class: "sr" });
  const field = FIELDS[part.kind](part, record.response, (response) => {
    keep({ response: part.kind === "open" ? { ...record.response, text: response.text } : response });
  }, { say, rich, id, announce: (text) => (moving.textContent = text) });

  const legend = html("legend", {}, html("span", {},
    html("span", { class: "badge", "aria-hidden": "true" }, String(position)),
    html("span", { class: "sr" }, say("question", { position }) + ": "),
    rich("span", part.prompt)));
  const panel = html("div", { class: "panel", id: `${id}-solution`, role: "group", "aria-label": say(part.kind === "open" ? "modelAnswer" : "solution"), tabindex: "-1", hidden: true });
  const check = html("button", { type: "button", class: "primary", onclick: () => submit() }, say(part.kind === "open" ? "compare" : "check"));
  const toggle = part.kind === "open" ? null : html("button", {
    type: "button", "aria-expanded": "false", "aria-controls": panel.id, hidden: true,
    onclick: () => { keep({ solution: panel.hidden }); showSolution(); },
  });

  function showSolution() {
    if (!toggle) return;
    toggle.hidden = record.tries === 0;
    panel.hidden = !record.solution;
    toggle.textContent = say(panel.hidden ? "showSolution" : "hideSolution");
    toggle.setAttribute("aria-expanded", String(!panel.hidden));
    if (!panel.hidden && !panel.hasChildNodes()) panel.append(...solutionOf(part, words));
  }

  function feedback(result, response) {
    if (result.state === "invalid") {
      const values = { typed: String(response).trim(), unit: result.unit, expected: part.unit };
      return [html("p", { class: "invalid" }, say(result.error, values))];
    }
    if (part.kind === "number") return numberFeedback(part, result, response, words);
    if (part.kind === "order") return orderFeedback(part, result, words);
    return optionFeedback(part, result, words);
  }

  function showModelAnswer() {
    const ticks = new Set(record.response.ticks);
    const count = part.points.length;
    const sum = () => {
      status.replaceChildren(html("p", {}, ticks.size === count ? say("pointsAll", { count }) : say("pointsTicked", { ticked: ticks.size, count })));
    };
    panel.hidden = false;
    panel.replaceChildren(
      html("p", { class: "label" }, say("modelAnswer")), rich("p", part.answer),
      html("fieldset", { class: "points" }, html("legend", {}, say("points")),
        ...part.points.map((point, index) => {
          const box = html("input", {
            type: "checkbox", id: `${id}-point-${index}`, checked: ticks.has(index),
            onchange: () => {
              if (box.checked) ticks.add(index);
              else ticks.delete(index);
              keep({ response: { ...record.response, ticks: [...ticks].sort() } });
              sum();
              context.changed();
            },
          });
          return html("label", { for: box.id }, box, rich("span", point));
        })));
    sum();
  }

  function submit() {
    const result = grade(part, record.response);
    field.refuse?.(result.state === "invalid");
    if (result.state === "invalid") {
      status.replaceChildren(...feedback(result, record.response));
      field.focus();
      return;
    }
    keep({
      checked: record.response,
      right: part.kind === "open" ? null : result.state === "right",
      tries: record.tries + 1,
      misconception: result.mistakes?.[0]?.misconception ?? null,
    });
    if (part.kind === "open") {
      showModelAnswer();
      panel.focus();
    } else {
      status.replaceChildren(...feedback(result, record.response));
      showSolution();
    }
    context.changed();
  }

  if (record.tries > 0) {
    if (part.kind === "open") showModelAnswer();
    else status.append(...feedback(grade(part, record.checked), record.checked));
  }
  showSolution();
  const onKey = (event) => {
    if (event.key !== "Enter" || event.isComposing || !sendsWithEnter(event.target)) return;
    event.preventDefault();
    submit();
  };
  return html("div", { class: "part", "data-part": key, onkeydown: onKey },
    html("fieldset", {}, legend, field.node,
      html("div", { class: "actions" }, check, toggle),
      part.kind === "open" ? null : status, panel, part.kind === "open" ? status : null, part.kind === "order" ? moving : null));
}
