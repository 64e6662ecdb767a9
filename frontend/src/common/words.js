// The words of an element's own controls, in the page's language, and texts in the language that they are written in.

import { html } from "./dom.js";

const primary = (tag) => tag.split("-")[0].toLowerCase();

/** The words for the page's language (`<html lang>`), English where there are no others.
 *
 * `say(key, values)` is a text of the controls; `rich(tag, markup, attributes)` an element with a text of the content,
 * marked with its language where that is another one.
 */
export function wordsIn({ en, zhCN }, pageLanguage, contentLanguage) {
  const chinese = /^zh\b/i.test((pageLanguage || "en").replace("_", "-"));
  const [tag, words] = chinese ? ["zh-CN", zhCN] : ["en", en];
  const say = (key, values = {}) => words[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const lang = primary(contentLanguage) === primary(tag) ? null : contentLanguage;
  const rich = (name, markup, attributes = {}) => {
    const node = html(name, { ...attributes, lang });
    node.innerHTML = markup;
    return node;
  };
  return { tag, say, rich };
}

/** A text without its markup, for labels that take none. */
export function plain(markup) {
  const template = document.createElement("template");
  template.innerHTML = markup;
  return template.content.textContent;
}
