// What tuning gained on a device, in a few numbers and two pictures.

import { sizeAddress } from "./api.js";
import { axes, decades, inner, logarithmic, Points, spread } from "./charts.js";
import { bar, facts, h, hint, table } from "./dom.js";
import { percent, rate, ratio, time } from "./format.js";

const EDGES = [1, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, Infinity];
const GAINS = [[1.02, "none", "up to 1.02×"], [1.25, "some", "up to 1.25×"], [2, "more", "up to 2×"], [Infinity, "much", "more"]];

export const median = (values) => {
  const ordered = [...values].sort((a, b) => a - b);
  const half = ordered.length >> 1;
  return ordered.length % 2 ? ordered[half] : (ordered[half - 1] + ordered[half]) / 2;
};

const total = (entries, of) => entries.reduce((sum, entry) => sum + of(entry), 0);
const compared = (entries) => entries.filter((e) => e.gain_over_default !== null && e.verdict !== "default failed");
const kindOf = ({ problem }) => problem.mode ?? problem.dtype ?? "";

export function overview(slug, family, entries, calls) {
  const known = compared(entries);
  const naive = entries.filter((e) => e.baseline_ns);
  return [
    h("section.overview", {}, h("h2", {}, "What tuning gained"),
      numbers(entries, known, naive),
      hint(`Total: all ${known.length} sizes once, without tuning and with it. Gains are over the configuration that is used without tuning (default) and over the plainest kernel.`),
      distribution(family, known)),
    scatter(slug, family, entries, calls),
  ];
}

function numbers(entries, known, naive) {
  const verdicts = (word) => entries.filter((e) => e.verdict === word).length;
  const fastest = entries.reduce((best, e) => (e.flops / e.time_ns > best.flops / best.time_ns ? e : best));
  const over = (some, of) => (some.length ? ratio(median(some.map(of))) : "–");
  const totals = (some, of) => (some.length ? ratio(total(some, of) / total(some, (e) => e.time_ns)) : "–");
  return facts([
    ["Median gain over default", over(known, (e) => e.gain_over_default)],
    ["Total gain over default", totals(known, (e) => e.default_ns)],
    ["Median gain over plainest", over(naive, (e) => e.baseline_ns / e.time_ns)],
    ["Total gain over plainest", totals(naive, (e) => e.baseline_ns)],
    ["Faster than the default", `${verdicts("faster")} of ${entries.length}`],
    ["Ties", `${verdicts("tie")}`],
    ["Default is best", `${verdicts("default")}`],
    ["Default fails", `${verdicts("default failed")}`],
    ["Not yet in finals", verdicts("provisional") > 0 && `${verdicts("provisional")}`],
    ["Best rate", [rate(fastest, fastest.time_ns), h("small", {}, fastest.shape)]],
  ], "tiles");
}

function distribution(family, entries) {
  const bins = EDGES.slice(0, -1).map((low, index) => ({ low, high: EDGES[index + 1], sizes: 0 }));
  for (const { gain_over_default: gain } of entries) bins.findLast(({ low }) => gain >= low || low === 1).sizes += 1;
  const most = Math.max(...bins.map(({ sizes }) => sizes), 1);
  const word = ({ low, high }) => (high === Infinity ? `${low}× and more` : low === 1 ? `under ${high}×, or a tie` : `${low}× to ${high}×`);
  const list = table(`Sizes of ${family} by their gain over the default`, [
    { name: "Gain over default", kind: "head", cell: word },
    { name: "Sizes", cell: ({ sizes }) => bar(sizes / most, `${sizes}`) },
  ], { class: "bars rows" });
  const last = bins.findLastIndex(({ sizes }) => sizes) + 1;
  list.show(bins.slice(0, Math.max(last, 1)), word);
  return list.element;
}

// How near each size comes to what the device's own best results allow: its best rate of the same type, or its best bandwidth.
export function limits(entries) {
  const bandwidth = Math.max(...entries.map((e) => e.bytes_moved / e.time_ns));
  const rates = new Map();
  for (const e of entries) rates.set(kindOf(e), Math.max(rates.get(kindOf(e)) ?? 0, e.flops / e.time_ns));
  return (e) => Math.max(e.flops / rates.get(kindOf(e)), e.bytes_moved / bandwidth) / e.time_ns;
}

function scatter(slug, family, all, calls) {
  const entries = all.filter((e) => e.flops > 0); // kernel files need not say their work
  if (!entries.length) return null;
  const share = limits(entries);
  const kindOfGain = (e) => GAINS.find(([most]) => (e.gain_over_default ?? 1) < most)[1];
  const ordered = [...entries].sort((a, b) => a.flops - b.flops);
  const points = new Points("Share of the device's limit by work, a point for each size; arrow keys go from size to size", 340);
  points.show((width, height) => {
    const box = inner(width, height);
    const [low, high] = spread(ordered.map((e) => e.flops));
    const [least] = spread(ordered.map(share));
    const bottom = Math.min(0.1, least * 0.9);
    const x = logarithmic(low / 1.3, Math.max(high, low * 2) * 1.3, box.left, box.right);
    const y = logarithmic(bottom, 1, box.bottom, box.top);
    const shares = [1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001].filter((v) => v >= bottom);
    return {
      back: axes(width, height,
        { at: x, ticks: decades(low, high * 1.3, width < 500 ? 4 : 9).map((v) => [v, operations(v)]), name: "operations of one call" },
        { at: y, ticks: (shares.length > 7 ? shares.filter((v) => /^0?\.?0*1/.test(`${v}`)) : shares).map((v) => [v, v < 0.01 ? `${v * 100}%` : percent(v)]) }),
      points: ordered.map((e) => ({
        x: x(e.flops), y: y(share(e)), r: 3 + 1.2 * Math.log2(calls.get(e.shape) ?? 1), kind: kindOfGain(e),
        href: sizeAddress(slug, family, e.shape),
        text: `${e.shape}: ${rate(e, e.time_ns)}, ${time(e.time_ns)}, ${percent(share(e))} of the limit, ${ratio(e.gain_over_default ?? 1)} over the default, ${e.configuration.algorithm}`,
      })),
    };
  });
  const key = GAINS.map(([, kind, word]) => h(`span.key.dot-${kind}`, {}, word));
  return h("section", {}, h("h2", {}, "How near the limit"),
    h("p.legend", {}, "Gain over default: ", key, calls.size > 0 && h("span", {}, "larger points: more calls in the networks")),
    points.element,
    hint("The limit is the best that this table shows for the device: the highest rate for the type of numbers, or the highest bandwidth, whichever allows less. What stays in caches may raise that bandwidth above the memory's."));
}

export const operations = (value) => {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (value >= size) return `${value / size} ${unit}`;
  return `${value}`;
};
