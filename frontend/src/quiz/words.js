// The words of the quiz's own controls. One dictionary per language, shared with the text version that Python writes.
import { wordsIn } from "../common/words.js";
import en from "../../../src/shardlab/quiz/locale/en.json";
import zhCN from "../../../src/shardlab/quiz/locale/zh_CN.json";

export { plain } from "../common/words.js";

export const wordsFor = (pageLanguage, quizLanguage) => wordsIn({ en, zhCN }, pageLanguage, quizLanguage);
