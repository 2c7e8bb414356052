// Results on a photograph, drawn over it: boxes, and the class of each pixel.
import { h, s } from "./dom.js";

// Degrees between the hues of neighbouring numbers: the golden angle keeps hues apart.
const GOLDEN = 137.508;
const hue = (number) => (number * GOLDEN) % 360;
const colour = (number) => `hsl(${hue(number)} 85% 48%)`;

/** A photograph under a drawing; `ready` is called when its width and height are known. */
function picture(blob, drawing, ready) {
  const image = h("img", { alt: "Sent photograph" });
  image.addEventListener("load", () => {
    URL.revokeObjectURL(image.src);
    ready?.(image.naturalWidth, image.naturalHeight);
  });
  image.src = URL.createObjectURL(blob);
  return h("div", { class: "picture" }, image, drawing);
}

/** The names of the results, each with its colour in the drawing. */
function legend(found, value) {
  const rows = found.map((one) => {
    const swatch = h("i", { "aria-hidden": "true" });
    swatch.style.background = colour(one.number);
    return h("li", {}, swatch, h("span", { class: "label-text" }, one.label), h("span", { class: "value" }, value(one)));
  });
  return h("ul", { class: "legend" }, ...rows);
}

/** Boxes of object detection: [{label, score, box: {xmin, ymin, xmax, ymax}}], in pixels of the photograph. */
export function boxes(answer, sent, score) {
  if (!answer.length) return [picture(sent.blob), h("p", { class: "empty" }, "No object was found.")];
  const labels = [...new Set(answer.map((one) => one.label))];
  const found = answer.map((one) => ({ ...one, number: labels.indexOf(one.label) }));
  const drawing = s("svg", { role: "img", "aria-label": `${answer.length} objects: ${labels.join(", ")}` });
  for (const { label, box, number } of found) {
    const [width, height] = [box.xmax - box.xmin, box.ymax - box.ymin];
    const place = { x: box.xmin, y: box.ymin, width, height, stroke: colour(number) };
    drawing.append(s("rect", place, s("title", {}, label)));
  }
  const shown = picture(sent.blob, drawing, (width, height) => drawing.setAttribute("viewBox", `0 0 ${width} ${height}`));
  return [shown, legend(found, (one) => score(one.score))];
}

/** The map of image segmentation: {segments: [{label, score, value}], map: a PNG whose grey values are `value`}. */
export function segments({ segments: found, map }, sent, score) {
  const canvas = h("canvas", { role: "img", "aria-label": `Segments: ${found.map((one) => one.label).join(", ")}` });
  paint(canvas, map);
  return [picture(sent.blob, canvas), legend(found.map((one) => ({ ...one, number: one.value })), (one) => score(one.score))];
}

async function paint(canvas, map) {
  const bytes = Uint8Array.from(atob(map), (character) => character.charCodeAt(0));
  // The grey values are numbers of classes: no colour profile may change them.
  const options = { colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }), options);
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  const pixels = context.getImageData(0, 0, bitmap.width, bitmap.height);
  const colours = Array.from({ length: 256 }, (_, number) => rgb(hue(number)));
  for (let at = 0; at < pixels.data.length; at += 4) pixels.data.set(colours[pixels.data[at]], at);
  context.putImageData(pixels, 0, 0);
}

/** Red, green, blue and opacity of `colour`, 0..255: hsl(hue 85% 48%) as CSS Color 4 defines it. */
function rgb(degrees) {
  const channel = (offset) => {
    const k = (offset + degrees / 30) % 12;
    return 255 * (0.48 - 0.85 * 0.48 * Math.max(-1, Math.min(k - 3, 9 - k, 1)));
  };
  return [channel(0), channel(8), channel(4), 255];
}
