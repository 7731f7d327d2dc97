// The same sizes under the drivers that a device had: what an upgrade has brought.

import { at } from "./api.js";
import { h, hint, paged, sizeLink, table } from "./dom.js";
import { ratio, time } from "./format.js";

export function drivers(slug, family, { drivers: names, problems }) {
  if (!problems.length) return [];
  const list = table("Sizes under several drivers", [
    { name: "Size", kind: "head", cell: ({ shape }) => sizeLink(slug, family, shape) },
    ...names.map((name, index) => ({ name, kind: "number", cell: ({ times_ns: times }) => time(times[index]) })),
    { name: "Gain, first to last", kind: "number", cell: ({ times_ns: times }) => gained(times.filter((ns) => ns !== null)) },
  ]);
  const rows = paged(list, ({ shape }) => shape);
  rows.show(problems);
  return h("section", {}, h("div.heading", {}, h("h2", {}, "Drivers"), h("a", { href: at("#/compare", { what: "drivers", device: slug, family }) }, "Compare two")), list.element, rows.more,
    hint("The fastest trial of each size under each driver, without the care of the finals: a few percent may be chance."));
}

const gained = (times) => ratio(times[0] / times.at(-1));
