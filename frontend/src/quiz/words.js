// The words of the quiz's own controls. One dictionary per language, shared with the text version that Python writes.
import { html } from "../common/dom.js";
import en from "../../../src/shardlab/quiz/locale/en.json";
import zhCN from "../../../src/shardlab/quiz/locale/zh_CN.json";

const LANGUAGES = [
  { matches: /^zh\b/i, tag: "zh-CN", words: zhCN },
  { matches: /./, tag: "en", words: en },
];

const primary = (tag) => tag.split("-")[0].toLowerCase();

/** The words for the page's language (`<html lang>`), English where there are no others.
 *
 * `say(key, values)` is a text of the controls; `rich(tag, markup, attributes)` an element with a text of the questions,
 * marked with their language where it is another one.
 */
export function wordsFor(pageLanguage, quizLanguage) {
  const { tag, words } = LANGUAGES.find(({ matches }) => matches.test((pageLanguage || "en").replace("_", "-")));
  const say = (key, values = {}) => words[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const lang = primary(quizLanguage) === primary(tag) ? null : quizLanguage;
  const rich = (name, markup, attributes = {}) => {
    const node = html(name, { ...attributes, lang });
    node.innerHTML = markup;
    return node;
  };
  return { tag, say, rich };
}

/** A question's text without its markup, for labels that take none. */
export function plain(markup) {
  const template = document.createElement("template");
  template.innerHTML = markup;
  return template.content.textContent;
}
