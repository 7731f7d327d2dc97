// Two sizes of a device: their winners parameter by parameter, and whether what is fast at one is fast at the other.

import { at, get, sizeAddress, trialsOf } from "./api.js";
import { axes, inner, logarithmic, Points } from "./charts.js";
import { breakable, facts, h, hint, table } from "./dom.js";
import { configuration, count, gain, moment, rate, ratio, time } from "./format.js";

const FACTORS = [1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000, 10000];

export async function sizes({ known, two, device, signal }) {
  const { family, device: slug } = known;
  const { entries } = await get(at(`api/devices/${encodeURIComponent(slug)}/winners`, { family }), signal);
  if (entries.length < 2) return [[device()], hint(`Fewer than two sizes of ${family} are tuned on ${slug}.`)];
  const ordered = [...entries].sort((one, other) => one.flops - other.flops);
  const filters = [device(), ...two(ordered.map(({ shape }) => shape), ["Size", "with"])];
  const pair = [known.a, known.b].map((shape) => entries.find((entry) => entry.shape === shape));
  const [one, other] = await Promise.all(pair.map(({ shape }) => trialsOf(slug, shape, family, signal)));
  return [filters, [beside(slug, family, pair), agreement(pair, timesOf(one), timesOf(other))]];
}

function beside(slug, family, pair) {
  const names = [...new Set(pair.flatMap(({ configuration: of }) => Object.keys(of)))];
  const of = (what, show) => ({ what, values: pair.map(show) });
  const parameters = names.map((name) => of(name, ({ configuration: values }) => (name in values ? `${values[name]}` : "–")));
  const columns = pair.map(({ shape }, index) => ({
    name: shape, head: h("a", { href: sizeAddress(slug, family, shape) }, shape), cell: ({ values, isNew }) => h(isNew ? "strong" : "span", {}, values[index]),
  }));
  const list = (caption, rows) => {
    const shown = table(caption, [{ name: caption, kind: "head", cell: ({ what }) => breakable(what) }, ...columns.map((column) => ({ ...column, head: column.head.cloneNode(true) }))], { class: "beside rows" });
    shown.show(rows, ({ what }) => what);
    return shown.element;
  };
  return [
    h("section", {}, h("h2", {}, "The winners"), list("Result", [
      of("Time", (e) => time(e.time_ns)), of("Rate", (e) => rate(e, e.time_ns)), of("Over default (95%)", gain), of("Verdict", (e) => e.verdict),
      of("Measured", (e) => moment(e.provenance.measured_at)), of("Driver", (e) => e.provenance.driver),
    ])),
    h("section", {}, h("h2", {}, "Their configurations"),
      list("Parameter", parameters.map((row) => ({ ...row, isNew: row.values[0] !== row.values[1] }))), hint("Values that differ are bold.")),
  ];
}

const keyOf = (values) => JSON.stringify(Object.entries(values).sort());

// The least time of each configuration that gave correct results.
function timesOf(trials) {
  const found = new Map();
  for (const { configuration: of, time_ns } of trials) {
    if (time_ns === null) continue;
    const key = keyOf(of);
    if (!(found.get(key)?.ns < time_ns)) found.set(key, { ns: time_ns, of });
  }
  return found;
}

function agreement([a, b], ofA, ofB) {
  const title = h("h2", {}, "Whether what is fast at one is fast at the other");
  const both = [...ofA].filter(([key]) => ofB.has(key)).map(([key, { ns, of }]) => ({ of, one: ns, other: ofB.get(key).ns }));
  if (!both.length) return h("section", {}, title, hint("No configuration was measured at both sizes in this database."));
  const best = (times) => Math.min(...[...times.values()].map(({ ns }) => ns));
  const [bestA, bestB] = [best(ofA), best(ofB)];
  const there = (winner, times, least) => {
    const found = times.get(keyOf(winner.configuration));
    return found ? `${ratio(found.ns / least)} of the best time` : "not measured";
  };
  both.forEach((p) => ([p.x, p.y] = [p.one / bestA, p.other / bestB]));
  both.sort((one, other) => one.x - other.x);
  const most = Math.max(1.2, ...both.flatMap(({ x, y }) => [x, y])) * 1.05;
  const points = new Points(`Time over the best at ${b.shape} by that at ${a.shape}; a point for each configuration; arrow keys go from one to the next`, 320,
    "Point at a configuration, or go through them with the arrow keys.");
  points.show((width, height) => {
    const box = inner(width, height);
    const [x, y] = [logarithmic(1, most, box.left, box.right), logarithmic(1, most, box.bottom, box.top)];
    const within = FACTORS.filter((v) => v <= most);
    const ticks = within.filter((_, index) => index % Math.ceil(within.length / (width < 500 ? 5 : 9)) === 0).map((v) => [v, `${v}×`]);
    return {
      back: axes(width, height, { at: x, ticks, name: `time over the best at ${a.shape}` }, { at: y, ticks }),
      points: both.map((p) => ({
        x: x(p.x), y: y(p.y), r: 3.5, kind: "more",
        text: `${ratio(p.x)} of the best at ${a.shape} (${time(p.one)}), ${ratio(p.y)} at ${b.shape} (${time(p.other)}): ${configuration(p.of)}`,
      })),
    };
  });
  return h("section", {}, title,
    facts([
      ["Measured at both", count(both.length, "configuration")],
      [`Winner of ${a.shape} at ${b.shape}`, there(a, ofB, bestB)],
      [`Winner of ${b.shape} at ${a.shape}`, there(b, ofA, bestA)],
    ]),
    points.element,
    hint(`Upwards: time over the best at ${b.shape}. On a line from the lower left to the upper right, both sizes order configurations alike. Least times of trials under every driver, as measured.`));
}
