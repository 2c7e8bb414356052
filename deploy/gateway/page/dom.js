// Elements, made only of names and texts: no code of the page parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  // A string becomes a text node, never markup.
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** An element of HTML with attributes, listeners (`onclick`) and children, of which strings are text. */
export function h(name, properties = {}, ...children) {
  return fill(document.createElement(name), properties, children);
}

/** An element of SVG, with the arguments of `h`. */
export function s(name, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, name), properties, children);
}

let count = 0;

/** An id that no other element has. */
export function id() {
  count += 1;
  return `id-${count}`;
}

/** A field under its label. */
export function field(label, control, properties = {}) {
  control.id ||= id();
  return h("div", properties, h("label", { for: control.id }, label), control);
}
