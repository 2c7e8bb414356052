// Responses of each task as elements. Positions in a text count characters as Python does.
import { h, s } from "./dom.js";
import { boxes, segments } from "./pictures.js";
import { pretty } from "./tensors.js";

const percent = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });
const decimal = new Intl.NumberFormat(undefined, { maximumFractionDigits: 4 });

/** A score: a share in per cent, any other score as a number. */
function score(value) {
  return value >= 0 && value <= 1 ? percent.format(value) : decimal.format(value);
}

/** An error in words, with its status and type. */
export function errorOf(failure) {
  const status = failure.status || failure.code;
  const more = failure.retryAfter ? ` Try again in ${failure.retryAfter} s.` : "";
  const kind = [status, failure.type].filter(Boolean).join(" ");
  return h("div", { class: "error" }, h("strong", {}, `${failure.message}${more}`), kind ? h("code", {}, kind) : null);
}

const LANGUAGES = (() => {
  try {
    return new Intl.DisplayNames(undefined, { type: "language", fallback: "code" });
  } catch {
    return null;
  }
})();

function language(label) {
  const code = label.replace(/^__label__/, "");
  try {
    const name = LANGUAGES?.of(code) ?? code;
    return name === code ? label : `${name} (${label})`;
  } catch {
    return label;
  }
}

function bars(pairs, name = (label) => label) {
  if (!pairs.length) return h("p", { class: "empty" }, "The response has no label.");
  const rows = pairs.map(([label, value]) => {
    const bar = h("div", { class: "fill" });
    bar.style.width = `${Math.max(0, Math.min(1, value)) * 100}%`;
    const text = h("span", { class: "label-text" }, name(label));
    return h("li", {}, text, h("span", { class: "value" }, score(value)), h("div", { class: "track" }, bar));
  });
  return h("ul", { class: "bars" }, ...rows);
}

/** Mark parts of a text: [{start, end, label}], in code points; a part that overlaps an earlier one is omitted. */
function marked(text, parts) {
  const characters = Array.from(text);
  const hues = [...new Set(parts.map((part) => part.label))];
  const paragraph = h("p", { class: "prose" });
  let at = 0;
  for (const part of [...parts].sort((a, b) => a.start - b.start)) {
    if (part.start < at) continue;
    paragraph.append(characters.slice(at, part.start).join(""));
    const label = part.label ? [" ", h("small", {}, part.label)] : [];
    const hue = part.label ? String(hues.indexOf(part.label) % 4) : null;
    const title = part.score === undefined ? null : score(part.score);
    const words = characters.slice(part.start, part.end).join("");
    paragraph.append(h("mark", { "data-hue": hue, title }, words, ...label));
    at = part.end;
  }
  paragraph.append(characters.slice(at).join(""));
  return paragraph;
}

function entities(answer, sent) {
  const parts = answer.map(({ start, end, entity_group, entity, score: sure }) => {
    return { start, end, label: entity_group ?? entity ?? "", score: sure };
  });
  return [parts.length ? null : h("p", { class: "empty" }, "No entity was found."), marked(sent.text, parts)];
}

function answers(answer, sent) {
  const all = Array.isArray(answer) ? answer : [answer];
  const found = all.map((one) => h("li", {}, h("strong", {}, one.answer), h("span", {}, score(one.score))));
  const [best] = all;
  return [h("ul", { class: "found" }, ...found), marked(sent.context, [{ ...best, label: "" }])];
}

function embedding(answer) {
  const most = Math.max(...answer.map(Math.abs)) || 1;
  const norm = Math.hypot(...answer);
  const step = Math.max(1, Math.ceil(answer.length / 384));
  const shown = answer.filter((_, index) => index % step === 0);
  const width = 400 / shown.length;
  const columns = shown.map((value, index) => {
    const height = (Math.abs(value) / most) * 50;
    const y = value > 0 ? 50 - height : 50;
    return s("rect", { x: index * width, y, width: width * 0.8, height });
  });
  const drawing = s("svg", { class: "vector", viewBox: "0 0 400 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  drawing.append(...columns);
  const first = answer.slice(0, 8).map((value) => value.toFixed(4)).join(", ");
  return [
    h("p", { class: "figures" }, h("strong", {}, `${answer.length} numbers`), h("span", {}, `length ${norm.toFixed(3)}`)),
    drawing,
    h("p", { class: "mono" }, `[${first}${answer.length > 8 ? ", …" : ""}]`),
  ];
}

/** Two vectors, and the cosine of the angle between them. */
function compared([first, second]) {
  const product = first.reduce((sum, value, index) => sum + value * second[index], 0);
  const cosine = product / Math.hypot(...first) / Math.hypot(...second);
  return [h("p", { class: "figures" }, h("strong", {}, `Cosine ${cosine.toFixed(3)}`)), ...embedding(first), ...embedding(second)];
}

function ranking(scores, documents) {
  if (scores.some((one) => one.error)) return null;
  return bars(scores.map((one, index) => [documents[index].document, one.score]).sort((a, b) => b[1] - a[1]));
}

// By the metadata's `view`.
const RESULTS = {
  scores: (answer) => bars(Object.entries(answer)),
  boxes: (answer, sent) => boxes(answer, sent, score),
  segments: (answer, sent) => segments(answer, sent, score),
  labels: (answer) => bars(answer.map((one) => [one.label, one.score])),
  languages: (answer) => bars(answer.map((one) => [one.label, one.score]), language),
  entities,
  answers,
  vector: embedding,
  vectors: (answer) => (answer.predictions ? compared(answer.predictions) : embedding(answer)),
  ranking: (answer, sent) => ranking(answer.predictions, sent.fields.instances),
  translation: (answer, sent) => h("p", { class: "translation", lang: sent.options.tgt_lang ?? "" }, answer.translation_text),
};

/** A response, as nodes; an unknown form is shown as JSON. */
export function resultOf(view, answer, sent) {
  if (typeof answer?.message === "string" && answer.code >= 400) return [errorOf(answer)];
  try {
    const nodes = RESULTS[view]?.(answer, sent);
    if (nodes) return [nodes].flat();
  } catch {
    // The response does not have this form.
  }
  // Lists of numbers are on one line, which wraps.
  const text = typeof answer === "string" ? answer : pretty(answer);
  return [h("pre", { class: "json" }, text.length > 20000 ? `${text.slice(0, 20000)} …` : text)];
}

const PARTS = { decode: "decode", wait: "wait", forward: "model" };

/** Return the parts of the time, from the Server-Timing header, in one line. */
export function timingOf(roundTripMs, header) {
  const said = [`${Math.round(roundTripMs)} ms`];
  for (const part of (header ?? "").split(",")) {
    const [name, ...parameters] = part.trim().split(";");
    const values = Object.fromEntries(parameters.map((parameter) => parameter.trim().split("=")));
    if (name in PARTS && values.dur) said.push(`${PARTS[name]} ${Number(values.dur).toFixed(1)}`);
    if (name === "batch" && values.desc) said.push(`batch of ${values.desc.replaceAll('"', "")}`);
  }
  return said.join(" · ");
}
