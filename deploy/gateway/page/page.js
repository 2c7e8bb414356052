// The page: requests /summary every two seconds, lists the models, and shows the model of the address.
//
//   /summary -> models, their counters -> History -> list, state, charts, facts   (drawn again)
//   #/MODEL  -> a view of the model: try, calls                                       (kept, with its input)
import * as api from "./api.js";
import { lineChart, short, sizeChart } from "./charts.js";
import { h } from "./dom.js";
import { metadataTables, stateOf, taskName, versionTable } from "./facts.js";
import { curl, program } from "./snippets.js";
import { History, HISTORY_S } from "./traffic.js";
import { panel } from "./try.js";

const POLL_MS = 2000;
const find = (name) => document.getElementById(name);

const store = { summary: null, histories: new Map(), views: new Map(), shown: null, timer: null };

// -- the server's data --------------------------------------------------------------------------------------------

async function poll() {
  clearTimeout(store.timer);
  let wait = POLL_MS;
  try {
    store.summary = await (await api.request("/summary")).json();
    remember(store.summary);
    trouble(null);
    draw();
  } catch (error) {
    wait = Math.max(POLL_MS, Number(error.retryAfter) * 1000 || 0);
    if (error.status === 401) wait = null;
    else trouble(error instanceof api.Failure ? `${error.message} The page shows earlier data and tries again.` : "The summary cannot be read.");
  }
  if (wait !== null && !document.hidden) store.timer = setTimeout(poll, wait);
}

function remember({ id, time_s: timeS, models }) {
  const nowS = performance.now() / 1000;
  store.histories = new Map(models.map(({ name }) => [name, store.histories.get(name) ?? new History()]));
  for (const { name, counters } of models) store.histories.get(name).add(nowS, id, timeS, counters);
}

function trouble(words) {
  const node = find("trouble");
  if (words !== null && node.textContent !== words) node.textContent = words;
  node.hidden = words === null;
}

// -- the list ---------------------------------------------------------------------------------------------------------

function href(name) {
  return `#/${encodeURIComponent(name)}`;
}

function chosen() {
  const names = store.summary.models.map((model) => model.name);
  let asked = "";
  try {
    asked = decodeURIComponent(location.hash.replace(/^#\/?/, ""));
  } catch {
    // The address is not from this page.
  }
  return names.includes(asked) ? asked : (names.includes(store.shown) ? store.shown : names[0]);
}

function drawList(current) {
  const list = find("models");
  const { models } = store.summary;
  const names = models.map((model) => model.name);
  const shown = [...list.children].map((item) => item.dataset.model);
  if (names.join("\n") !== shown.join("\n")) {
    const items = models.map((model) => {
      const dot = h("span", { class: "dot", "aria-hidden": "true" });
      const link = h("a", { href: href(model.name) }, dot, h("span", { class: "name", title: model.name }, model.name), h("span", { class: "rate" }), h("span", { class: "unseen" }));
      return h("li", { "data-model": model.name }, link);
    });
    list.replaceChildren(...items);
  }
  models.forEach((model, index) => {
    const [link] = list.children[index].children;
    const { state, words } = stateOf(model.versions);
    link.querySelector(".dot").dataset.state = state;
    link.querySelector(".unseen").textContent = words;
    const rate = store.histories.get(model.name).points.at(-1)?.requests_per_s ?? 0;
    link.querySelector(".rate").textContent = rate > 0 ? `${short(rate)}/s` : "";
    if (model.name === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
}

function count(number, one, many) {
  return `${number} ${number === 1 ? one : many}`;
}

function drawFleet() {
  const { models, nodes } = store.summary;
  const ready = models.filter((model) => model.is_ready).length;
  const words = ready === models.length ? `${count(models.length, "model", "models")} ready` : `${ready} of ${models.length} models ready`;
  const text = models.length ? `${words} on ${count(nodes.length, "node", "nodes")}` : "No model is registered";
  if (find("fleet").textContent !== text) find("fleet").textContent = text;
}

// -- one model --------------------------------------------------------------------------------------------------------

function copyButton(text, what) {
  const button = h("button", { class: "quiet", type: "button", "aria-label": `Copy ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    const isCopied = await copy(text());
    button.textContent = isCopied ? "Copied" : "Copy failed";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Over plain HTTP from another machine, navigator.clipboard does not exist.
    const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return isCopied;
  }
}

/** The view of a model. It is kept while the page is open, with its input. */
class View {
  constructor(model) {
    this.name = model.name;
    this.model = model;
    this.dot = h("span", { class: "dot", "aria-hidden": "true" });
    this.state = h("span", {});
    this.what = h("p", { class: "what" });
    this.version = h("select", { "aria-label": "Version" });
    this.version.addEventListener("change", () => this.rebuild());
    this.panel = h("div", {});
    this.calls = { curl: h("code", {}), python: h("code", {}) };
    this.versions = h("div", { class: "wide" });
    this.tables = [];
    this.facts = h("div", { class: "facts" }, this.versions);
    const requests = [{ figure: "requests_per_s", name: "", unit: "/s" }];
    const latency = [{ figure: "p50_ms", name: "p50", unit: "ms" }, { figure: "p99_ms", name: "p99", unit: "ms" }];
    // Only an adaptive worker has the last two.
    const wait = [
      { figure: "wait_ms", name: "waiting", unit: "ms" },
      { figure: "queue_age_ms", name: "oldest", unit: "ms" },
      { figure: "queue_items", name: "", unit: "items ready", isText: true },
    ];
    const refused = [{ figure: "refusals_per_s", name: "refused", unit: "/s" }, { figure: "errors_per_s", name: "errors", unit: "/s" }];
    this.charts = { requests: lineChart("Requests", requests), latency: lineChart("Latency", latency), sizes: sizeChart("Batch sizes") };
    this.charts.wait = lineChart("Queue", wait, { class: "wide" });
    this.charts.refused = lineChart("Refusals and errors", refused, { class: "wide" });
    this.note = h("span", { class: "aside" });
    this.node = h(
      "div",
      {},
      h("div", { class: "head" }, h("div", {}, h("h2", {}, model.name), this.what), h("div", { class: "side" }, h("span", { class: "state" }, this.dot, this.state), this.version)),
      h("section", { "aria-label": "Try it" }, this.panel),
      h("section", { "aria-label": "Call it" }, h("h3", {}, "Call it"), this.drawCalls()),
      h("section", { "aria-label": "Live" }, h("h3", {}, "Live ", this.note), h("div", { class: "charts" }, ...Object.values(this.charts).map((chart) => chart.node))),
      h("section", { "aria-label": "Facts" }, h("h3", {}, "Details"), this.facts),
    );
    this.update(model);
  }

  drawCalls() {
    const call = (title, code) => h("div", { class: "call" }, h("header", {}, h("h4", {}, title), copyButton(() => code.textContent, title)), h("pre", { tabindex: "0", "aria-label": title }, code));
    return h("div", { class: "calls card" }, call("curl", this.calls.curl), call("Python", this.calls.python));
  }

  get chosen() {
    const asked = this.version.value || this.model.default;
    return this.model.versions.find((version) => version.version === asked) ?? this.model.versions.at(-1);
  }

  /** The requested model; no version means the default, or its canary. */
  where() {
    return { model: this.name, version: this.version.value };
  }

  /** Build the parts that depend on the metadata: fields, and tables of inputs and outputs. */
  rebuild() {
    const metadata = this.chosen?.metadata ?? null;
    this.told = JSON.stringify(metadata);
    // A function's outputs are known after its first run, which must keep the input and the response.
    const asked = JSON.stringify([this.version.value, { ...metadata, outputs: null }]);
    if (asked !== this.asked) {
      this.asked = asked;
      this.made = panel(metadata, () => this.where(), () => this.tell());
      this.panel.replaceChildren(this.made.node);
    }
    this.what.textContent = metadata ? [taskName(metadata.task ?? ""), metadata.mode, metadata.platform].filter(Boolean).join(" · ") : "";
    for (const made of this.tables) made.remove();
    this.tables = metadataTables(metadata);
    this.facts.append(...this.tables);
    this.tell();
  }

  /** Write the calls for the values of the fields. */
  tell() {
    if (!this.made) return;
    const call = { ...this.where(), sent: this.made.say(), hasKey: api.key() !== null };
    this.calls.curl.textContent = curl(call);
    this.calls.python.textContent = program(call);
  }

  update(model) {
    this.model = model;
    const { state, words } = stateOf(model.versions);
    this.dot.dataset.state = state;
    if (this.state.textContent !== words) this.state.textContent = words;
    this.updateVersions();
    if (this.told !== JSON.stringify(this.chosen?.metadata ?? null)) this.rebuild();
    const nodes = store.summary.nodes;
    const drawn = JSON.stringify([model.versions.map((version) => version.replicas), model.default, model.canary, nodes]);
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.versions.replaceChildren(versionTable(model, nodes));
    }
    const history = store.histories.get(model.name);
    const drawnOf = { points: history.points, nowS: performance.now() / 1000, historyS: HISTORY_S };
    for (const name of ["requests", "latency", "wait", "refused"]) this.charts[name].update(drawnOf);
    const mean = history.points.findLast((point) => point.batch_items !== null)?.batch_items ?? null;
    this.charts.sizes.update({ sizes: history.batchSizes(), mean });
    this.note.textContent = "while this page is open, five minutes at most";
  }

  updateVersions() {
    const names = this.model.versions.map((version) => version.version);
    const offered = ["", ...names];
    const shown = [...this.version.options].map((option) => option.value);
    this.version.hidden = names.length < 2;
    const preset = this.model.default ? `Default (${this.model.default})` : "Default";
    if (offered.join("\n") !== shown.join("\n")) {
      const kept = this.version.value;
      this.version.replaceChildren(...offered.map((name) => h("option", { value: name }, name ? `Version ${name}` : preset)));
      this.version.value = offered.includes(kept) ? kept : "";
    } else if (this.version.options[0].textContent !== preset) this.version.options[0].textContent = preset;
  }
}

function draw() {
  drawFleet();
  const main = find("main");
  const { models } = store.summary;
  if (!models.length) {
    find("models").replaceChildren();
    store.shown = null;
    main.replaceChildren(h("p", { class: "empty" }, "Models appear here within seconds of being registered with a node."));
    return;
  }
  const current = chosen();
  drawList(current);
  const model = models.find((one) => one.name === current);
  for (const name of [...store.views.keys()]) if (!models.some((one) => one.name === name)) store.views.delete(name);
  const view = store.views.get(current) ?? new View(model);
  store.views.set(current, view);
  view.update(model);
  if (main.firstChild !== view.node) main.replaceChildren(view.node);
  if (store.shown !== current) {
    store.shown = current;
    document.title = `${current} – Models`;
    // On a phone the list is a row. scrollIntoView would also move the starting point of the Tab key.
    const link = find("models").querySelector("[aria-current]");
    const row = find("models").parentElement;
    row.scrollLeft = link.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
  }
}

// -- the key ----------------------------------------------------------------------------------------------------------

function askForKey(wasRefused) {
  const dialog = find("key-dialog");
  const why = find("key-why");
  why.classList.toggle("wrong", wasRefused);
  why.textContent = wasRefused ? "The gateway does not accept this key." : "This tab keeps the key until it closes.";
  if (dialog.open) return;
  find("key").value = "";
  dialog.showModal();
}

function showKeyState() {
  find("forget-key").hidden = api.key() === null;
  for (const view of store.views.values()) view.tell();
}

addEventListener("keyneeded", (event) => askForKey(Boolean(event.detail.sent)));
find("key-form").addEventListener("submit", () => {
  api.setKey(find("key").value.trim());
  find("key").value = "";
  showKeyState();
  poll();
});
find("key-dialog").addEventListener("cancel", () => trouble("The page needs an API key. Reload it to enter one."));
find("forget-key").addEventListener("click", () => {
  api.setKey(null);
  location.reload();
});

// -- the rest ---------------------------------------------------------------------------------------------------------

addEventListener("hashchange", () => store.summary && location.hash.startsWith("#/") && draw());
document.addEventListener("visibilitychange", () => !document.hidden && poll());
showKeyState();
poll();
// A file that is dropped beside its field must not replace the page.
for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault());
