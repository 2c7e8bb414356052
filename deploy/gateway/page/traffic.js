// A model's last minutes, from counters that only grow: points of the charts, and sizes of micro-batches.

export const HISTORY_S = 300;
// Seconds of observations for a quantile or a mean; fewer would base a p99 on a handful.
const WINDOW_S = 10;
// Types of errors of refused items, which did not fail.
const REFUSALS = ["Overloaded", "QueueFull", "QueueTimeout"];

/** Counter -> label -> number: the sum of several of them. */
function add(parts) {
  const sums = {};
  for (const part of parts) {
    for (const [name, labels] of Object.entries(part)) {
      const own = (sums[name] ??= {});
      for (const [label, value] of Object.entries(labels)) own[label] = (own[label] ?? 0) + value;
    }
  }
  return sums;
}

/** The growth of counters; one that fell has started again at 0. */
function grow(counters, before) {
  const growth = {};
  for (const [name, labels] of Object.entries(counters)) {
    const grown = Object.entries(labels).map(([label, value]) => {
      const last = before[name]?.[label] ?? 0;
      return [label, value >= last ? value - last : value];
    });
    growth[name] = Object.fromEntries(grown);
  }
  return growth;
}

/** The cumulative buckets of a histogram: [upper end, count], ascending. */
function buckets(sums, histogram) {
  const found = Object.entries(sums[`${histogram}_bucket`] ?? {});
  return found.map(([end, count]) => [end === "+Inf" ? Infinity : Number(end), count]).sort(([one], [other]) => one - other);
}

/** A quantile of cumulative buckets as Prometheus' histogram_quantile estimates it; null without observations. */
export function quantile(share, found) {
  // Versions with different latency targets have different buckets, so the sums may fall.
  const ends = [0];
  const counts = [0];
  for (const [end, count] of found) {
    ends.push(end);
    counts.push(Math.max(count, counts.at(-1)));
  }
  const total = counts.at(-1);
  if (!total) return null;
  if (ends.at(-1) === Infinity) ends[ends.length - 1] = ends.at(-2);
  const index = counts.findIndex((count, number) => number && count >= share * total);
  const part = (share * total - counts[index - 1]) / (counts[index] - counts[index - 1]);
  return ends[index - 1] + (ends[index] - ends[index - 1]) * part;
}

/** The figures of a point, from the growth in `seconds` and in the window; null without observations. */
function figures(growth, seconds, window) {
  const perS = (name, but = []) => {
    const counted = Object.entries(growth[name] ?? {}).filter(([label]) => !but.includes(label));
    return counted.reduce((sum, [, value]) => sum + value, 0) / seconds;
  };
  const of = (name) => window[name]?.[""] ?? 0;
  const mean = (histogram, scale = 1) => (of(`${histogram}_count`) ? (scale * of(`${histogram}_sum`)) / of(`${histogram}_count`) : null);
  // TorchServe's counters, for handlers of other projects.
  const requests = of("ts_inference_requests_total");
  const frontendMs = requests ? of("ts_queue_latency_microseconds") / 1000 / requests : null;
  const waits = [frontendMs, mean("handler_engine_wait_seconds", 1000)].filter((each) => each !== null);
  const latencies = buckets(window, "handler_request_seconds");
  const [p50, p99] = [0.5, 0.99].map((share) => {
    const latencyS = quantile(share, latencies);
    return latencyS === null ? null : latencyS * 1000 + (frontendMs ?? 0);
  });
  return {
    // Answered by the workers, or accepted by TorchServe if the workers do not count.
    requests_per_s: perS("handler_requests_total" in growth ? "handler_requests_total" : "ts_inference_requests_total"),
    // Texts and images, including failed ones.
    items_per_s: perS("handler_items_total") + perS("handler_item_errors_total"),
    // The time of a request in the worker, plus the mean wait in TorchServe's queue.
    p50_ms: p50,
    p99_ms: p99,
    batch_items: mean("handler_batch_size"),
    // The mean wait of a request for the engine, in TorchServe's queue and the worker's.
    wait_ms: waits.length ? waits.reduce((sum, each) => sum + each) : null,
    // The mean items that wait when a micro-batch begins, and the age of the oldest; adaptive mode only.
    queue_items: mean("handler_queue_depth"),
    queue_age_ms: mean("handler_queue_age_seconds", 1000),
    // Requests that an adaptive worker refused, and items without a result, except those of refused requests.
    refusals_per_s: perS("handler_refusals_total"),  // archives of 0.3 have this name alone
    errors_per_s: perS("handler_item_errors_total", REFUSALS),
  };
}

export class History {
  constructor() {
    this.samples = [];
    // Gateways behind one address have sums of their own.
    this.last = new Map();
  }

  /** Add a gateway's counters, read at `timeS` of its clock. */
  add(nowS, gateway, timeS, counters) {
    const last = this.last.get(gateway);
    if (last?.timeS === timeS) return;
    this.last.set(gateway, { timeS, counters });
    if (!last) return;
    const growth = grow(counters, last.counters);
    const recent = this.samples.filter((sample) => sample.timeS > nowS - WINDOW_S);
    const window = add([...recent.map((sample) => sample.growth), growth]);
    this.samples = this.samples.filter((sample) => sample.timeS >= nowS - HISTORY_S);
    this.samples.push({ timeS: nowS, growth, point: { timeS: nowS, ...figures(growth, timeS - last.timeS, window) } });
  }

  get points() {
    return this.samples.map((sample) => sample.point);
  }

  /** Micro-batches by the upper end of their bucket, null for the open one: [size, count]. */
  batchSizes() {
    const found = [];
    let below = 0;
    for (const [end, count] of buckets(add(this.samples.map((sample) => sample.growth)), "handler_batch_size")) {
      if (count > below) {
        found.push([end === Infinity ? null : end, count - below]);
        below = count;
      }
    }
    return found;
  }
}
