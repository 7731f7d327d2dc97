// The same sizes on two devices, or under two drivers: how their times compare, as a picture and as a table.

import { axes, decades, inner, logarithmic, Points, spread } from "./charts.js";
import { facts, h, hint, paged, table } from "./dom.js";
import { count, ratio, time } from "./format.js";
import { median, operations } from "./overview.js";

// `both`: { shape, flops, one, other } with times in ns, and `winner` where it is known how alike the winners are.
export function pairs(a, b, both, address) {
  both.forEach((pair) => (pair.factor = pair.one / pair.other));
  both.sort((one, other) => one.flops - other.flops);
  const faster = both.filter(({ factor }) => factor < 1).length;
  const hasWinners = both.some(({ winner }) => winner);
  const points = new Points(`Time on ${a} divided by time on ${b}, by work; a point for each size; arrow keys go from size to size`, 300);
  points.show((width, height) => lay(a, b, both, address, width, height));
  const list = table(`Sizes on ${a} and on ${b}`, [
    { name: "Size", kind: "head", cell: ({ shape }) => h("a", { href: address(shape) }, shape) },
    { name: a, kind: "number", cell: ({ one }) => time(one) },
    { name: b, kind: "number", cell: ({ other }) => time(other) },
    { name: "Ratio", kind: "number", cell: ({ factor }) => ratio(factor) },
    ...(hasWinners ? [{ name: "Configuration", cell: ({ winner }) => winner }] : []),
  ]);
  list.element.classList.add("tall");
  const rows = paged(list, ({ shape }) => shape);
  rows.show(both);
  return [
    facts([
      ["In common", count(both.length, "size")],
      [`Faster on ${a}`, `${faster}`],
      [`Faster on ${b}`, `${both.filter(({ factor }) => factor > 1).length}`],
      ["Median ratio of times", ratio(median(both.map(({ factor }) => factor)))],
      ["Same winner", hasWinners && `${both.filter(({ winner }) => winner === "the same").length}`],
    ], "tiles"),
    h("section", {}, h("h2", {}, `Time on ${a} over time on ${b}`), points.element, hint("Above 1× the second one is faster.")),
    h("section", {}, h("h2", {}, "Sizes in common"), list.element, rows.more),
  ];
}

function lay(a, b, both, address, width, height) {
  const box = inner(width, height);
  const [low, high] = spread(both.map(({ flops }) => flops));
  const [least, most] = spread([...both.map(({ factor }) => factor), 0.5, 2]);
  const x = logarithmic(low / 1.3, Math.max(high, low * 2) * 1.3, box.left, box.right);
  const y = logarithmic(least, most, box.bottom, box.top);
  const factors = [0.001, 0.01, 0.1, 0.5, 1, 2, 10, 100, 1000].filter((v) => v >= least && v <= most);
  return {
    back: axes(width, height, { at: x, ticks: decades(low, high * 1.3, width < 500 ? 4 : 9).map((v) => [v, operations(v)]), name: "operations of one call" },
      { at: y, ticks: factors.map((v) => [v, `${v}×`]) }),
    points: both.map((p) => ({
      x: x(p.flops), y: y(p.factor), r: 3.5, kind: p.factor > 1 ? "much" : "none", href: address(p.shape),
      text: `${p.shape}: ${time(p.one)} on ${a}, ${time(p.other)} on ${b}, ${ratio(p.factor)}`,
    })),
  };
}
