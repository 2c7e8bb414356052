// What a model of tensors is sent as an example, made of its metadata; and JSON of tensors, a line for each list of numbers.

// A free dimension has so many places in an example, and an example has no more elements than this in all.
const FREE_SIZE = 8;
const MOST_ELEMENTS = 4096;

/** The element with this number, of a datatype: whole numbers are 0 or 1, which are indices of anything. */
function element(datatype, index) {
  if (datatype === "BOOL") return index % 2 === 0;
  if (datatype === "BYTES") return `text ${index}`;
  if (datatype.includes("INT")) return index % 2;
  return (index % 10) / 10;
}

/** A row's sizes: the shape without the dimension that counts rows; of what nothing is known, a few numbers. */
function sizesOf({ datatype, shape, batch_dim: batchDim = 0 }) {
  if (datatype === "ANY" && shape.length === 1) return [FREE_SIZE];
  return shape.filter((_, index) => index !== batchDim).map((size) => (size < 0 ? FREE_SIZE : size));
}

function filled(sizes, next) {
  if (!sizes.length) return next();
  return Array.from({ length: sizes[0] }, () => filled(sizes.slice(1), next));
}

/** A request of one row; null where it would be too long to read. */
export function example(inputs) {
  const count = inputs.reduce((sum, tensor) => sum + sizesOf(tensor).reduce((product, size) => product * size, 1), 0);
  if (count > MOST_ELEMENTS) return null;
  const row = {};
  for (const tensor of inputs) {
    let index = -1;
    row[tensor.name] = filled(sizesOf(tensor), () => element(tensor.datatype, (index += 1)));
  }
  // Alone, these would be taken for another form of request.
  return "inputs" in row || "instances" in row ? { instances: [row] } : row;
}

/** JSON to read: indented, but for lists that hold no others. */
export function pretty(value) {
  const flat = /\[\s+((?:(?:"(?:[^"\\]|\\.)*"|[-\d.eE+]+|true|false|null)(?:,\s+)?)+)\s+\]/g;
  return JSON.stringify(value, null, 2).replace(flat, (_, list) => `[${list.replace(/\n\s*/g, " ")}]`);
}
