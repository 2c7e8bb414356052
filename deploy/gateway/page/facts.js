// A model's details: versions and workers, inputs and outputs, options.
import { h } from "./dom.js";

export function taskName(task) {
  const words = task.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Return {state: ready | partly | down, words} of a model or one version. */
export function stateOf(versions) {
  const replicas = versions.flatMap((version) => version.replicas);
  const wanted = replicas.reduce((sum, replica) => sum + replica.workers, 0);
  const ready = replicas.reduce((sum, replica) => sum + replica.ready_workers, 0);
  if (!ready) return { state: "down", words: wanted ? `None of ${wanted} workers is ready` : "No workers" };
  if (versions.every((version) => version.is_ready)) return { state: "ready", words: "Ready" };
  return { state: "partly", words: `${ready} of ${wanted} workers ready` };
}

function table(caption, head, rows, properties = {}) {
  const heads = head.map(([name, kind]) => h("th", { scope: "col", class: kind }, name));
  const body = rows.map((cells) => {
    return h("tr", {}, ...cells.map((cell, index) => h(index ? "td" : "th", { scope: index ? null : "row", class: head[index][1] }, cell)));
  });
  const made = h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...body));
  // If it is wider than the page, the keyboard scrolls it too.
  return h("div", { class: `card table ${properties.class ?? ""}`, role: "group", "aria-label": caption, tabindex: "0" }, made);
}

export function versionTable(model, nodes) {
  const draining = new Set(nodes.filter((node) => node.is_draining).map((node) => node.name));
  const rows = model.versions.flatMap((version) =>
    version.replicas.map((replica) => {
      const share = model.canary?.version === version.version ? `, ${model.canary.percent} % canary` : "";
      const { state, words } = stateOf([{ is_ready: replica.workers > 0 && replica.ready_workers >= replica.workers, replicas: [replica] }]);
      const shown = draining.has(replica.node) ? "Draining" : words;
      return [
        `${version.version}${version.version === model.default ? " (default)" : ""}${share}`,
        replica.node,
        h("span", { class: "state" }, h("span", { class: "dot", "data-state": state, "aria-hidden": "true" }), shown),
        `${replica.ready_workers} of ${replica.workers}`,
        String(replica.batch_size),
        `${replica.max_batch_delay_ms} ms`,
      ];
    }),
  );
  const head = [["Version"], ["Node"], ["State"], ["Workers", "number"], ["Batch size", "number"], ["Batch delay", "number"]];
  return table("Versions and workers", head, rows, { class: "wide" });
}

function tensorTable(caption, tensors, none = "") {
  const rows = tensors.map((tensor) => {
    const rows = tensor.batch_dim ? `, rows along dimension ${tensor.batch_dim}` : "";
    const shape = h("span", {}, h("code", {}, `[${tensor.shape.join(", ")}]`), rows);
    return [h("code", {}, tensor.name), h("code", {}, tensor.datatype), shape];
  });
  if (!rows.length && none) rows.push([none, "", ""]);
  return table(caption, [["Name"], ["Datatype"], ["Shape"]], rows);
}

export function metadataTables(metadata) {
  if (!metadata) return [h("p", { class: "empty wide" }, "Inputs, outputs and options appear when a worker has reported them.")];
  const tables = [tensorTable("Inputs", metadata.inputs ?? []), tensorTable("Outputs", metadata.outputs ?? [], "Known after the first run")];
  const options = Object.entries(metadata.options ?? {});
  if (options.length) {
    const rows = options.map(([name, option]) => {
      const preset = option.default === null || option.default === undefined ? "–" : String(option.default);
      return [h("code", {}, name), option.type ?? "", h("code", {}, preset), option.description ?? ""];
    });
    tables.push(table("Options of an item", [["Name"], ["Type"], ["Default"], ["Effect"]], rows, { class: "wide" }));
  }
  return tables;
}
