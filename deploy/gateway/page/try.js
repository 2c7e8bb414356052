// "Try it": fields for a task, their values as a request, and the response beside them.
import { read, request } from "./api.js";
import { field, h } from "./dom.js";
import { errorOf, resultOf, timingOf } from "./results.js";
import { isFile } from "./snippets.js";
import { example, pretty } from "./tensors.js";

const TEXT = "Ada Lovelace met Charles Babbage in London.";
const SEARCH = "When does the last ferry leave?";
const DOCUMENTS = ["Plum cake is sold on Sundays.", "The last ferry leaves at seven in the evening.", "The wall is of stone."];
const QUESTION = "Who met Babbage?";
const CONTEXT = "In June 1833 Ada Lovelace met Charles Babbage at a party in London.";

/** The inputs that a model accepts: a question, an image, a text, any JSON; all of them if it declares none. */
function kindsOf(metadata) {
  const accepts = metadata?.accepts ?? [];
  const names = (metadata?.inputs ?? []).map((input) => input.name);
  if (names.includes("question")) return ["question"];
  if (metadata?.api === "rerank") return ["documents"];
  if (metadata?.view === "vectors") return ["texts"];
  const kinds = ["image", "text"].filter((kind) => accepts.some((type) => type.startsWith(`${kind}/`)));
  if (kinds.length) return kinds;
  return accepts.length ? ["json"] : ["text", "image", "json"];
}

const KIND_NAMES = { text: "A text", image: "A photograph", json: "JSON" };

/** A control for one option; empty selects the model's default. */
function optionControl(option) {
  const preset = option.default === null || option.default === undefined ? "" : String(option.default);
  const choices = option.enum ?? (option.type === "boolean" ? ["true", "false"] : null);
  if (choices) {
    const control = h("select", {}, h("option", { value: "" }, preset ? `default: ${preset}` : "default"));
    control.append(...choices.map((choice) => h("option", { value: String(choice) }, String(choice))));
    return control;
  }
  const isNumber = isNumeric(option);
  return h("input", {
    type: isNumber ? "number" : "text",
    step: isNumber ? (option.type === "integer" ? "1" : "any") : null,
    min: option.minimum,
    max: option.maximum,
    placeholder: preset ? `default: ${preset}` : "default",
    autocomplete: "off",
    spellcheck: "false",
  });
}

function isNumeric(option) {
  return option.type === "integer" || option.type === "number";
}

/** The value of a control's text, in JSON. */
function valueOf(text, option) {
  if (option.type === "boolean") return text === "true";
  if (isNumeric(option)) return Number(text);
  if (option.type === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A place for a photograph. */
function dropZone(change) {
  const name = "Photograph";
  const input = h("input", { type: "file", accept: "image/*", "aria-label": name });
  const preview = h("img", { alt: "", hidden: true });
  const words = h("span", {}, h("strong", {}, "Choose a photograph"), "or drop one here");
  const zone = h("div", { class: "drop" }, words, preview, input);
  let file = null;
  const take = (taken) => {
    if (!taken) return;
    file = taken;
    input.setAttribute("aria-label", `${name}: ${file.name}. Choose another`);
    if (preview.src) URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(file);
    preview.hidden = false;
    preview.alt = file.name;
    change();
  };
  // A file without a preview may still be an image; otherwise the model refuses it.
  preview.addEventListener("error", () => {
    preview.hidden = true;
    words.replaceChildren(h("strong", {}, file.name), "has no preview");
  });
  input.addEventListener("change", () => take(input.files[0]));
  for (const moved of ["dragenter", "dragover"]) {
    zone.addEventListener(moved, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  for (const moved of ["dragleave", "drop"]) zone.addEventListener(moved, () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
  return { zone, file: () => file };
}

/** Fields of each kind: the nodes, and their current values: {kind, text | fields | file, problem?}. */
const FIELDS = {
  image(_, change) {
    const { zone, file } = dropZone(change);
    const say = () => ({ kind: "image", file: file()?.name ?? "photograph.jpg", blob: file(), problem: file() ? null : "Choose a photograph first." });
    return { nodes: [zone], say };
  },
  text() {
    const text = h("textarea", { dir: "auto" });
    text.value = TEXT;
    const say = () => ({ kind: "text", text: text.value, problem: text.value.trim() ? null : "Type a text first." });
    return { nodes: [field("Text", text, { class: "grow" })], say };
  },
  texts() {
    const [text, other] = [h("textarea", { dir: "auto" }), h("input", { dir: "auto", autocomplete: "off" })];
    text.value = TEXT;
    const say = () => {
      const problem = text.value.trim() ? null : "Type a text first.";
      if (!other.value.trim()) return { kind: "text", text: text.value, problem };
      return { kind: "json", fields: { instances: [text.value, other.value] }, problem };
    };
    return { nodes: [field("Text", text, { class: "grow" }), field("Compare with", other)], say };
  },
  documents() {
    const [query, lines] = [h("input", { dir: "auto", autocomplete: "off" }), h("textarea", { dir: "auto" })];
    query.value = SEARCH;
    lines.value = DOCUMENTS.join("\n");
    const say = () => {
      const documents = lines.value.split("\n").filter((line) => line.trim());
      const fields = { query: query.value, instances: documents.map((document) => ({ document })) };
      return { kind: "json", fields, problem: query.value.trim() && documents.length ? null : "A query needs documents." };
    };
    return { nodes: [field("Query", query), field("Documents, one a line", lines, { class: "grow" })], say };
  },
  question() {
    const [question, context] = [h("input", { dir: "auto", autocomplete: "off" }), h("textarea", { dir: "auto" })];
    question.value = QUESTION;
    context.value = CONTEXT;
    const say = () => {
      const fields = { question: question.value, context: context.value };
      const isWhole = fields.question.trim() && fields.context.trim();
      return { kind: "json", fields, context: fields.context, problem: isWhole ? null : "A question needs a context." };
    };
    return { nodes: [field("Question", question), field("Context", context, { class: "grow" })], say };
  },
  json({ inputs }) {
    const text = h("textarea", { class: "mono", spellcheck: "false" });
    text.value = pretty(example(inputs ?? []) ?? {});
    const say = () => {
      try {
        const fields = JSON.parse(text.value);
        if (fields && typeof fields === "object" && !Array.isArray(fields)) return { kind: "json", fields };
      } catch {
        // One message describes every mistake.
      }
      return { kind: "json", fields: {}, problem: "This is not a valid JSON object." };
    };
    return { nodes: [field("JSON", text, { class: "grow" })], say };
  },
};

/** A panel's request as fetch's options. */
function requestOf(sent) {
  const options = Object.entries(sent.options);
  if (isFile(sent) && options.length) {
    const body = new FormData();
    body.append("data", sent.blob, sent.file);
    for (const [name, value] of options) body.append(name, String(value));
    return { method: "POST", body };
  }
  if (isFile(sent)) {
    return { method: "POST", body: sent.blob, headers: { "Content-Type": sent.blob.type || "application/octet-stream" } };
  }
  if (sent.json === undefined) return { method: "POST", body: sent.text, headers: { "Content-Type": "text/plain" } };
  return { method: "POST", body: JSON.stringify(sent.json), headers: { "Content-Type": "application/json" } };
}

/**
 * The panel of a model.
 * Returns {node, say}: the element, and a function for its current request: {kind, options, text | json | file}.
 * `changed` is called when the request may have changed; `where` returns the requested {model, version}.
 */
export function panel(metadata, where, changed) {
  const view = metadata?.view ?? "";
  const kinds = kindsOf(metadata);
  const made = kinds.map((kind) => FIELDS[kind](metadata ?? {}, () => changed()));
  let fields = made[0];
  const body = h("div", { class: "body" }, ...fields.nodes);
  const choice = h("select", {}, ...kinds.map((kind, index) => h("option", { value: String(index) }, KIND_NAMES[kind] ?? kind)));
  choice.addEventListener("change", () => {
    fields = made[Number(choice.value)];
    body.replaceChildren(...fields.nodes);
    changed();
  });
  const options = Object.entries(metadata?.options ?? {}).map(([name, option]) => ({ name, option, control: optionControl(option) }));
  const say = () => {
    const set = options.filter(({ control }) => control.value !== "");
    const chosen = Object.fromEntries(set.map(({ name, option, control }) => [name, valueOf(control.value, option)]));
    const said = { ...fields.say(), options: chosen };
    if (said.kind === "json") said.json = { ...said.fields, ...chosen };
    else if (said.kind === "text" && set.length) said.json = { text: said.text, ...chosen };
    return said;
  };

  const run = h("button", { class: "run", type: "submit" }, "Run");
  const progress = h("span", { class: "aside" });
  const answer = h("div", { class: "answer", role: "region", "aria-label": "Response", "aria-live": "polite", tabindex: "0" });
  answer.append(h("p", { class: "empty" }, "The response appears here."));
  const timing = h("p", { class: "timing" });
  const form = h("form", { class: "ask", novalidate: true }, kinds.length > 1 ? field("Send", choice) : null, body);
  if (options.length) {
    const grid = h("div", { class: "options" }, ...options.map(({ name, control }) => field(name, control)));
    form.append(h("details", {}, h("summary", {}, "Options"), grid));
  }
  form.append(h("div", { class: "send" }, run, progress));
  form.addEventListener("input", () => changed());

  let running = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    // Another click starts again: the page does not wait for the earlier response.
    running?.abort();
    const mine = new AbortController();
    running = mine;
    const sent = say();
    const { model, version } = where();
    const show = (...nodes) => answer.replaceChildren(...nodes.filter(Boolean));
    timing.textContent = "";
    if (sent.problem) {
      show(errorOf({ message: sent.problem }));
      return;
    }
    progress.textContent = "Running";
    answer.setAttribute("aria-busy", "true");
    const begin = performance.now();
    try {
      const path = [model, ...(version ? [version] : [])].map(encodeURIComponent).join("/");
      const response = await request(`/predictions/${path}`, { ...requestOf(sent), signal: mine.signal });
      show(...resultOf(view, await read(response), sent));
      timing.textContent = timingOf(performance.now() - begin, response.headers.get("Server-Timing"));
    } catch (error) {
      if (error.name === "AbortError") return;
      show(errorOf(error.message ? error : { message: "The response is incomplete." }));
    } finally {
      if (running === mine) {
        running = null;
        progress.textContent = "";
        answer.removeAttribute("aria-busy");
      }
    }
  });
  const node = h("div", { class: "try card" }, form, h("div", { class: "reply" }, answer, timing));
  return { node, say };
}
