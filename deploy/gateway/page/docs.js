// The API: each operation of /openapi.json, with a command that sends the model's own sample.
import { request } from "./api.js";
import { h } from "./dom.js";

function shell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function command(method, path, { parameters, requestBody }) {
  let where = path;
  for (const one of parameters.filter((each) => each.required)) {
    const value = encodeURIComponent(one.schema.enum[0]);
    where = one.in === "path" ? where.replace(`{${one.name}}`, value) : `${where}?${one.name}=${value}`;
  }
  const url = shell(location.origin + where);
  if (!requestBody) return `curl ${url}`;
  const shown = Object.entries(requestBody.content).find(([, { example }]) => example !== undefined);
  if (!shown) return method === "post" ? `curl -T FILE -X POST ${url}` : `curl ${url}`;
  const [type, { example }] = shown;
  const body = typeof example === "string" ? example : JSON.stringify(example);
  return `curl -H 'Content-Type: ${type}' --data-raw ${shell(body)} ${url}`;
}

function drawn(path, method, operation) {
  const content = Object.entries(operation.requestBody?.content ?? {});
  const schemas = content.map(([type, { schema }]) => h("div", {}, h("h4", {}, type), schema ? h("pre", { tabindex: "0" }, JSON.stringify(schema, null, 2)) : null));
  const name = h("summary", {}, h("code", {}, `${method.toUpperCase()} ${path}`), ` ${operation.summary}`);
  return h("details", { class: "card" }, name, h("pre", { tabindex: "0" }, command(method, path, operation)), ...schemas);
}

try {
  const { paths } = await (await request("/openapi.json")).json();
  const groups = new Map([["Server", []]]);
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const [group = "Server"] = operation.tags ?? [];
      groups.set(group, [...(groups.get(group) ?? []), drawn(path, method, operation)]);
    }
  }
  const sections = [...groups].map(([title, each]) => h("section", {}, h("h2", {}, title), ...each));
  document.getElementById("main").replaceChildren(...sections);
} catch (error) {
  const trouble = document.getElementById("trouble");
  trouble.textContent = error.status === 401 ? "Enter the key on the page of the models first." : String(error.message);
  trouble.hidden = false;
}
