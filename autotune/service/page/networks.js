// The networks whose products are tuned on a device: total time before and after, and each layer's part of it.

import { bar, h, hint, sizeLink, table } from "./dom.js";
import { ratio, time } from "./format.js";

export function networks(slug, found) {
  if (!found.length) return [];
  return h("section.networks", {}, h("h2", {}, "Networks"),
    found.map((network) => one(slug, network)),
    hint("All matrix products of one pass, each times its calls, without tuning and with it; the rest of a network is not in these times. Layers that are not tuned are left out of the totals."));
}

function one(slug, { name, meaning, tuned, default_ns, time_ns, layers }) {
  const whole = tuned === layers.length ? "" : `, ${tuned} of ${layers.length} layers tuned`;
  const longest = Math.max(...layers.map((l) => l.calls * (l.default_ns ?? 0)));
  const list = table(`Layers of ${name}`, [
    { name: "Layer", kind: "head", cell: (l) => [sizeLink(slug, "gemm", l.shape), l.label && h("small", {}, l.label)] },
    { name: "Calls", kind: "number", cell: ({ calls }) => `${calls}` },
    { name: "Before", kind: "number", cell: (l) => time(l.default_ns && l.calls * l.default_ns) },
    { name: "After", kind: "number", cell: (l) => time(l.time_ns && l.calls * l.time_ns) },
    { name: "Gain", kind: "number", cell: (l) => (l.time_ns ? ratio(l.default_ns / l.time_ns) : "–") },
    { name: "Before and after", cell: (l) => l.time_ns && h("div.pair-bars", {}, bar((l.calls * l.default_ns) / longest, "", "before"), bar((l.calls * l.time_ns) / longest)) },
  ], { class: "bars" });
  list.show(layers, ({ shape }) => shape);
  return h("details", {}, h("summary", {}, h("strong", {}, name), ` ${time(default_ns)} → ${time(time_ns)}, ${ratio(default_ns / time_ns)}${whole}`), hint(meaning), list.element);
}
