// Two devices beside each other: the sizes that both have tuned, and which is faster.

import { at, get, sizeAddress } from "./api.js";
import { axes, decades, inner, logarithmic, Points, spread } from "./charts.js";
import { facts, fill, h, hint, paged, select, table } from "./dom.js";
import { count, ratio, time } from "./format.js";
import { median } from "./overview.js";

export async function compareView(place, _, query, signal) {
  const [{ devices }, { families }] = await Promise.all(["api/devices", "api/families"].map((path) => get(path, signal)));
  const tuned = devices.filter((device) => device.tuned);
  const family = query.get("family") ?? "gemm";
  const a = query.get("a") ?? tuned[0]?.slug ?? "";
  const b = query.get("b") ?? tuned.find(({ slug }) => slug !== a)?.slug ?? "";
  const go = (change) => (location.hash = at("#/compare", { a, b, family, ...change }));
  const of = (name, chosen) => select(name, devices.map(({ slug }) => [slug, slug]), chosen, (slug) => go({ [name]: slug }));
  const head = [
    h("h1", {}, "Compare devices"),
    h("div.filters", {}, h("label", {}, "Device ", of("a", a)), h("label", {}, "with ", of("b", b)),
      h("label", {}, "Family ", select("family", families.map(({ name }) => [name, name]), family, (name) => go({ family: name })))),
  ];
  if (!a || !b) {
    fill(place, head[0], hint("There are no two devices with tuned sizes."));
    return;
  }
  const [ofA, ofB] = await Promise.all([a, b].map((slug) => get(at(`api/devices/${encodeURIComponent(slug)}/winners`, { family }), signal)));
  const others = new Map(ofB.entries.map((entry) => [entry.shape, entry]));
  const both = ofA.entries.filter(({ shape }) => others.has(shape)).map((entry) => ({ ...pair(entry, others.get(entry.shape)) }));
  fill(place, head, both.length ? comparison(a, b, family, both) : hint(`${a} and ${b} have no tuned size of ${family} in common.`));
}

const pair = (one, other) => ({
  shape: one.shape, flops: one.flops, one: one.time_ns, other: other.time_ns, factor: one.time_ns / other.time_ns,
  sameAlgorithm: one.configuration.algorithm === other.configuration.algorithm,
  isSame: JSON.stringify(Object.entries(one.configuration).sort()) === JSON.stringify(Object.entries(other.configuration).sort()),
});

function comparison(a, b, family, both) {
  both.sort((one, other) => one.flops - other.flops);
  const faster = both.filter(({ factor }) => factor < 1).length;
  const points = new Points(`Time on ${a} divided by time on ${b}, by work; a point for each size; arrow keys go from size to size`, 300);
  points.show((width, height) => {
    const box = inner(width, height);
    const [low, high] = spread(both.map(({ flops }) => flops));
    const [least, most] = spread([...both.map(({ factor }) => factor), 0.5, 2]);
    const x = logarithmic(low / 1.3, Math.max(high, low * 2) * 1.3, box.left, box.right);
    const y = logarithmic(least, most, box.bottom, box.top);
    const factors = [0.001, 0.01, 0.1, 0.5, 1, 2, 10, 100, 1000].filter((v) => v >= least && v <= most);
    return {
      back: axes(width, height, { at: x, ticks: decades(low, high * 1.3, width < 500 ? 4 : 9).map((v) => [v, v.toExponential(0).replace("+", "")]), name: "operations of one call" },
        { at: y, ticks: factors.map((v) => [v, `${v}×`]) }),
      points: both.map((p) => ({
        x: x(p.flops), y: y(p.factor), r: 3.5, kind: p.factor > 1 ? "much" : "none", href: sizeAddress(a, family, p.shape),
        text: `${p.shape}: ${time(p.one)} on ${a}, ${time(p.other)} on ${b}, ${ratio(p.factor)}`,
      })),
    };
  });
  const list = table(`Sizes tuned on ${a} and on ${b}`, [
    { name: "Size", kind: "head", cell: ({ shape }) => h("a", { href: sizeAddress(a, family, shape) }, shape) },
    { name: a, kind: "number", cell: ({ one }) => time(one) },
    { name: b, kind: "number", cell: ({ other }) => time(other) },
    { name: "Ratio", kind: "number", cell: ({ factor }) => ratio(factor) },
    { name: "Configuration", cell: ({ isSame, sameAlgorithm }) => (isSame ? "the same" : sameAlgorithm ? "same algorithm" : "different") },
  ]);
  list.element.classList.add("tall");
  const rows = paged(list, ({ shape }) => shape);
  rows.show(both);
  return [
    facts([
      ["In common", count(both.length, "size")],
      [`Faster on ${a}`, `${faster}`],
      [`Faster on ${b}`, `${both.length - faster}`],
      ["Median ratio of times", ratio(median(both.map(({ factor }) => factor)))],
      ["Same winner", `${both.filter(({ isSame }) => isSame).length}`],
    ], "tiles"),
    h("section", {}, h("h2", {}, `Time on ${a} over time on ${b}`), points.element, hint("Above 1× the second device is faster.")),
    h("section", {}, h("h2", {}, "Sizes in common"), list.element, rows.more),
  ];
}
