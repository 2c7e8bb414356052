// A request as a line for a shell and as a program; both run as copied.

function shell(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// Python reads JSON's strings and numbers; its names for three values differ.
function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

/** Whether a panel would send a file. */
export function isFile(sent) {
  return sent.kind === "image";
}

const CONTINUED = " \\\n  ";

function url(model, version) {
  const path = [model, ...(version ? [version] : [])].map(encodeURIComponent).join("/");
  return `${location.origin}/predictions/${path}`;
}

/** curl, for {model, version, sent, hasKey}; `sent` is a panel's current request. */
export function curl({ model, version, sent, hasKey }) {
  const parts = ["curl"];
  const options = Object.entries(sent.options);
  if (isFile(sent)) {
    // curl interprets brackets and braces of a name as a pattern, and `,;"` of a form's file name as separators.
    const glob = /[[\]{}]/.test(sent.file) ? "-g " : "";
    const form = /[,;"\\]/.test(sent.file) ? `"${sent.file.replace(/["\\]/g, "\\$&")}"` : sent.file;
    if (options.length) parts.push(`-F ${shell(`data=@${form}`)}`, ...options.map(([name, value]) => `-F ${shell(`${name}=${value}`)}`));
    else parts.push(`${glob}-T ${shell(sent.file)}`);
  } else if (sent.json !== undefined) {
    parts.push("-H 'Content-Type: application/json'", `--data-raw ${shell(JSON.stringify(sent.json))}`);
  } else {
    parts.push("-H 'Content-Type: text/plain'", `--data-raw ${shell(sent.text)}`);
  }
  if (hasKey) parts.push('-H "Authorization: Bearer $KEY"');
  return [...parts, shell(url(model, version))].join(CONTINUED).replace(CONTINUED, " ");
}

/** Python, with this project's client. */
export function program({ model, version, sent, hasKey }) {
  const imports = [...(hasKey ? ["import os"] : []), ...(isFile(sent) ? ["from pathlib import Path"] : [])];
  let payload = python(sent.text ?? "");
  if (isFile(sent)) payload = `Path(${python(sent.file)})`;
  else if (sent.kind === "json") payload = python(sent.fields);
  const given = [python(model), payload];
  if (version) given.push(`version=${python(version)}`);
  for (const [name, value] of Object.entries(sent.options)) given.push(`${name}=${python(value)}`);
  const token = hasKey ? ', token=os.environ["KEY"]' : "";
  return [
    ...imports,
    "from torchserve_client import Client",
    "",
    `with Client(${python(location.origin)}${token}) as client:`,
    `    print(client.predict(${given.join(", ")}))`,
  ].join("\n");
}
