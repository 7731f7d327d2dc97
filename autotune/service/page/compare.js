// Two of a kind beside each other: devices, sizes of a device, or drivers that it had.

import { at, get, sizeAddress } from "./api.js";
import { fill, h, hint, select } from "./dom.js";
import { pairs } from "./pairs.js";
import { sizes } from "./sizes.js";

const KINDS = { devices: [devices, "Devices"], sizes: [sizes, "Sizes of a device"], drivers: [drivers, "Drivers of a device"] };

export async function compareView(place, _, query, signal) {
  const [{ devices: all }, { families }] = await Promise.all(["api/devices", "api/families"].map((path) => get(path, signal)));
  const kind = Object.hasOwn(KINDS, query.get("what")) ? query.get("what") : "devices";
  const asked = Object.fromEntries(["device", "a", "b", "family"].map((name) => [name, query.get(name) ?? ""]));
  const known = { ...asked, what: kind, family: asked.family || "gemm", device: asked.device || (all.find(({ tuned }) => tuned) ?? all[0])?.slug };
  const go = (change) => (location.hash = at("#/compare", { ...known, ...change }));
  // What is chosen from: of `options`, the first two unless the address names others.
  const two = (options, words) => {
    known.a = options.includes(known.a) ? known.a : (options.find((one) => one !== known.b) ?? "");
    known.b = options.includes(known.b) ? known.b : (options.find((one) => one !== known.a) ?? "");
    return ["a", "b"].map((name, index) => chooser(words[index], name, options, known[name]));
  };
  const chooser = (word, name, options, chosen) => h("label", {}, `${word} `, select(name, options.map((one) => [one, one]), chosen, (one) => go(name === "device" ? { device: one, a: "", b: "" } : { [name]: one })));
  const device = () => chooser("Device", "device", all.map(({ slug }) => slug), known.device);
  const tabs = h("nav.tabs", { "aria-label": "What to compare" }, Object.entries(KINDS).map(([what, [, words]]) =>
    h("a", { href: at("#/compare", { what, family: known.family, device: known.device }), "aria-current": what === kind && "true" }, words)));
  const [filters, shown] = all.length ? await KINDS[kind][0]({ all, known, two, device, signal }) : [[], hint("No device is known yet.")];
  const family = all.length > 0 && chooser("Family", "family", families.map(({ name }) => name), known.family);
  fill(place, h("h1", {}, "Compare"), tabs, h("div.filters.pair", {}, filters, family), shown);
}

async function devices({ all, known, two, signal }) {
  const tuned = [...all].sort((one, other) => Boolean(other.tuned) - Boolean(one.tuned));
  const filters = two(tuned.map(({ slug }) => slug), ["Device", "with"]);
  const { a, b, family } = known;
  if (!a || !b) return [[], hint("There are no two devices.")];
  const [ofA, ofB] = await Promise.all([a, b].map((slug) => get(at(`api/devices/${encodeURIComponent(slug)}/winners`, { family }), signal)));
  const others = new Map(ofB.entries.map((entry) => [entry.shape, entry]));
  const both = ofA.entries.filter(({ shape }) => others.has(shape)).map((entry) => pair(entry, others.get(entry.shape)));
  return [filters, both.length ? pairs(a, b, both, (shape) => sizeAddress(a, family, shape)) : hint(`${a} and ${b} have no tuned size of ${family} in common.`)];
}

const pair = (one, other) => ({
  shape: one.shape, flops: one.flops, one: one.time_ns, other: other.time_ns, winner: likeness(one.configuration, other.configuration),
});

const likeness = (one, other) => {
  if (JSON.stringify(Object.entries(one).sort()) === JSON.stringify(Object.entries(other).sort())) return "the same";
  return one.algorithm === other.algorithm ? "same algorithm" : "different";
};

async function drivers({ known, two, device, signal }) {
  const { family } = known;
  const { drivers: names, problems } = await get(at(`api/devices/${encodeURIComponent(known.device)}/drivers`, { family }), signal);
  if (!problems.length) return [[device()], hint(`No size of ${family} was measured under two drivers of ${known.device}.`)];
  if (!known.a && !known.b) [known.a, known.b] = [names[0], names.at(-1)];
  const filters = [device(), ...two(names, ["Driver", "with"])];
  const [first, second] = [known.a, known.b].map((name) => names.indexOf(name));
  const both = problems.map(({ shape, flops, times_ns: times }) => ({ shape, flops, one: times[first], other: times[second] })).filter(({ one, other }) => one && other);
  const words = hint("The fastest trial of each size under each driver, without the care of the finals: a few percent may be chance.");
  return [filters, both.length ? [pairs(known.a, known.b, both, (shape) => sizeAddress(known.device, family, shape)), words] : hint("No size was measured under both.")];
}
