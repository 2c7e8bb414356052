// Small charts of the last minutes, drawn as SVG: lines over time, and sizes of micro-batches.
import { h, s } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 100;

const NUMBERS = [0, 1, 2].map((digits) => new Intl.NumberFormat(undefined, { maximumFractionDigits: digits }));

/** A number with three digits: 1,234, 56.7, 0.12. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  return NUMBERS[value >= 100 ? 0 : value >= 10 ? 1 : 2].format(value);
}

/** The least of 1, 2, 5, 10, 20 ... that is not below a value: a stable top of an axis. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** The path of a line; a missing value interrupts it. */
function path(points, most) {
  let drawn = "";
  let isDown = false;
  for (const [x, value] of points) {
    if (value === null) {
      isDown = false;
      continue;
    }
    const y = HEIGHT - (Math.min(value, most) / most) * HEIGHT;
    // A single point is a line without length and with round ends.
    drawn += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}${isDown ? "" : "h0"}`;
    isDown = true;
  }
  return drawn;
}

/**
 * A chart of one or two lines.
 * offered: [{figure, name, unit, isText}]; `isText` shows a number without a line. After the first, a line without any
 * value is omitted.
 */
export function lineChart(title, offered, properties = {}) {
  const now = h("span", { class: "now" });
  const most = h("span", { class: "most" });
  const drawing = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const left = h("span", {});
  const right = h("span", {}, "now");
  const plot = h("div", { class: "plot" }, drawing, most);
  const node = h("figure", { class: `chart card ${properties.class ?? ""}` }, h("figcaption", {}, title, now), plot, h("div", { class: "ends" }, left, right));
  let state = null;
  let hovered = null;

  function draw() {
    const { points, nowS, historyS } = state;
    const lines = offered.filter((line, number) => !number || points.some((point) => point[line.figure] !== null));
    const drawn = lines.filter((line) => !line.isText);
    const values = points.flatMap((point) => drawn.map((line) => point[line.figure])).filter((value) => value !== null);
    const top = roundUp(Math.max(...values, properties.least ?? 1));
    const place = (point) => WIDTH * (1 - (nowS - point.timeS) / historyS);
    const shapes = [];
    lines.forEach((line, number) => {
      if (line.isText) return;
      const curve = path(points.map((point) => [place(point), point[line.figure]]), top);
      if (!number && points.length > 1 && !points.some((point) => point[line.figure] === null)) {
        shapes.push(s("path", { class: "area", d: `${curve}L${WIDTH} ${HEIGHT}L${place(points[0]).toFixed(1)} ${HEIGHT}Z` }));
      }
      shapes.push(s("path", { class: number ? "second" : "", d: curve }));
    });
    const latest = points.findLast((each) => lines.some((line) => each[line.figure] !== null)) ?? points.at(-1);
    const point = hovered === null ? latest : nearest(points, nowS - (1 - hovered) * historyS);
    if (hovered !== null && point) {
      const x = place(point).toFixed(1);
      shapes.push(s("path", { class: "cross", d: `M${x} 0V${HEIGHT}` }));
    }
    drawing.replaceChildren(...shapes);
    most.textContent = `${short(top)} ${lines[0].unit}`;
    left.textContent = `${Math.round(historyS / 60)} min ago`;
    right.textContent = point === points.at(-1) || !point ? "now" : `${Math.max(0, Math.round(nowS - point.timeS))} s ago`;
    const said = lines.map((line) => [line, point ? point[line.figure] : null]);
    now.replaceChildren(
      ...said.map(([line, value], number) => {
        const swatch = lines.length > 1 && !line.isText ? h("i", { class: number ? "second" : "", "aria-hidden": "true" }) : null;
        return h("span", {}, swatch, short(value), h("small", {}, `${line.unit}${line.name ? ` ${line.name}` : ""}`));
      }),
    );
    const words = said.map(([line, value]) => `${line.name || title} ${short(value)} ${line.unit}`).join(", ");
    drawing.setAttribute("aria-label", `${title} over five minutes. Now: ${words}.`);
  }

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    hovered = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    if (state) draw();
  });
  plot.addEventListener("pointerleave", () => {
    hovered = null;
    if (state) draw();
  });
  return {
    node,
    update(next) {
      state = next;
      draw();
    },
  };
}

function nearest(points, wantedS) {
  return points.reduce((best, point) => (!best || Math.abs(point.timeS - wantedS) < Math.abs(best.timeS - wantedS) ? point : best), null);
}

/** A chart of the number of micro-batches by size; empty buckets are omitted. */
export function sizeChart(title, properties = {}) {
  const now = h("span", { class: "now" });
  const drawing = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const bins = h("div", { class: "ends bins" });
  const node = h("figure", { class: `chart card ${properties.class ?? ""}` }, h("figcaption", {}, title, now), h("div", { class: "plot" }, drawing), bins);
  return {
    node,
    update({ sizes, mean }) {
      const total = sizes.reduce((sum, [, count]) => sum + count, 0);
      const most = Math.max(...sizes.map(([, count]) => count), 1);
      const width = WIDTH / Math.max(sizes.length, 1);
      const bar = Math.min(width * 0.7, 36);
      const named = sizes.map(([size]) => (size === null ? "more" : String(size)));
      drawing.replaceChildren(
        ...sizes.map(([, count], index) => {
          const height = (count / most) * (HEIGHT - 8);
          return s("rect", { x: index * width + (width - bar) / 2, y: HEIGHT - height, width: bar, height });
        }),
      );
      bins.replaceChildren(...(named.length ? named.map((name) => h("span", {}, name)) : [h("span", {}, "none yet")]));
      now.replaceChildren(h("span", {}, short(mean), h("small", {}, `${mean === 1 ? "item" : "items"}, most recently`)));
      const words = sizes.map(([, count], index) => `${named[index]}: ${Math.round((100 * count) / total)} %`).join(", ");
      drawing.setAttribute("aria-label", `${title} of five minutes. ${words || "None yet"}.`);
    },
  };
}
