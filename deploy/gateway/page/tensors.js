// An example request for a model of tensors, from its metadata; and JSON of tensors, with a line for each list of numbers.

// The size of a free dimension in an example, and the most elements of an example.
const FREE_SIZE = 8;
const MOST_ELEMENTS = 4096;

/** The element with this number, of a datatype: integers are 0 or 1, which are valid indices of most tables. */
function element(datatype, index) {
  if (datatype === "BOOL") return index % 2 === 0;
  if (datatype === "BYTES") return `text ${index}`;
  if (datatype.includes("INT")) return index % 2;
  return (index % 10) / 10;
}

/** A row's sizes: the shape without the dimension that counts rows; a few numbers if nothing is declared. */
function sizesOf({ datatype, shape, batch_dim: batchDim = 0 }) {
  if (datatype === "ANY" && shape.length === 1) return [FREE_SIZE];
  return shape.filter((_, index) => index !== batchDim).map((size) => (size < 0 ? FREE_SIZE : size));
}

function filled(sizes, next) {
  if (!sizes.length) return next();
  return Array.from({ length: sizes[0] }, () => filled(sizes.slice(1), next));
}

/** A request of one row; null if it would be too long to read. */
export function example(inputs) {
  const count = inputs.reduce((sum, tensor) => sum + sizesOf(tensor).reduce((product, size) => product * size, 1), 0);
  if (count > MOST_ELEMENTS) return null;
  const row = {};
  for (const tensor of inputs) {
    let index = -1;
    row[tensor.name] = filled(sizesOf(tensor), () => element(tensor.datatype, (index += 1)));
  }
  // With one of these names, a bare row would be another form of request.
  return "inputs" in row || "instances" in row ? { instances: [row] } : row;
}

/** Indented JSON; lists without inner lists are on one line. */
export function pretty(value) {
  const flat = /\[\s+((?:(?:"(?:[^"\\]|\\.)*"|[-\d.eE+]+|true|false|null)(?:,\s+)?)+)\s+\]/g;
  return JSON.stringify(value, null, 2).replace(flat, (_, list) => `[${list.replace(/\n\s*/g, " ")}]`);
}
