// What a device did, hour by hour: trials, temperature, clock; and whether it kept its speed in searches.

import { axes, inner, linear, picture, s, spread } from "./charts.js";
import { h, hint, sizeLink, table } from "./dom.js";
import { count, moment, ratio } from "./format.js";

const MOST_DEVICES = 24;
const SERIES = [
  ["trials", "Trials an hour", (v) => `${Math.round(v)}`],
  ["temperature_c", "Temperature, °C", (v) => `${Math.round(v)}`],
  ["clock_mhz", "Clock, MHz", (v) => `${Math.round(v)}`],
];

export function hours(slug, found, checks) {
  if (!found.length) return [];
  const shown = SERIES.filter(([name]) => found.some((hour) => hour[name] !== null));
  const list = table("Hours in which the device measured", [
    { name: "Hour", kind: "head", cell: ({ hour }) => moment(hour) },
    { name: "Failed", kind: "number", cell: ({ failed }) => `${failed}` },
    ...shown.map(([name, word, text]) => ({ name: word, kind: "number", cell: (item) => (item[name] === null ? "–" : text(item[name])) })),
  ], { class: "rows" });
  list.element.classList.add("tall");
  list.show([...found].reverse(), ({ hour }) => hour);
  const points = (name) => found.filter((hour) => hour[name] !== null).map((hour) => ({ at: Date.parse(hour.hour), value: hour[name], kind: "more" }));
  const speed = checks.map((check) => ({ at: Date.parse(check.measured_at), value: check.ratio, kind: check.is_change ? "much" : "more" }));
  return h("section", {}, h("h2", {}, "Over time"),
    h("div.multiples", {},
      found.length > 1 && shown.map(([name, word, text]) => line(points(name), word, text, name === "trials" ? 0 : undefined)),
      speed.length > 1 && line(speed, "Drift, time of a repeated run", ratio, undefined, 1)),
    hint("Only hours in which the device measured; at most the last 168. Temperature and clock are means over the trials whose system reports them."),
    speed.length > 0 && drift(slug, checks),
    h("details", {}, h("summary", {}, `${count(found.length, "hour")} as numbers`), list.element));
}

// What each device did, those first that measured last: { slug: hours }.
export function fleetHours(devices) {
  const worked = Object.entries(devices).sort(([, one], [, other]) => other.at(-1).hour.localeCompare(one.at(-1).hour));
  if (!worked.length) return null;
  const more = worked.length > MOST_DEVICES ? ` The ${MOST_DEVICES} that measured last are shown.` : "";
  return h("section", {}, h("h2", {}, "Over time"),
    h("div.multiples", {}, worked.slice(0, MOST_DEVICES).map(([slug, found]) => deviceHours(slug, found))),
    hint(`Trials an hour, of the hours in which a device measured; temperature and clock are means over trials. A device's own page has both by the hour, and its drift.${more}`));
}

function deviceHours(slug, found) {
  const sum = (hours, of) => hours.reduce((whole, hour) => whole + of(hour), 0);
  const mean = (name, unit) => {
    const known = found.filter((hour) => hour[name] !== null);
    return known.length && `${Math.round(sum(known, (hour) => hour[name] * hour.trials) / sum(known, ({ trials }) => trials))} ${unit}`;
  };
  const trials = sum(found, (hour) => hour.trials);
  const words = [count(trials, "trial"), `${((100 * sum(found, ({ failed }) => failed)) / trials).toFixed(1)}% failed`, mean("temperature_c", "°C"), mean("clock_mhz", "MHz")];
  const caption = [h("a", { href: `#/device/${slug}` }, slug), h("small", {}, words.filter(Boolean).join(", "))];
  if (found.length === 1) return h("figure.multiple", {}, h("figcaption", {}, caption, h("small", {}, `in the hour from ${moment(found[0].hour)}`)));
  return line(found.map((hour) => ({ at: Date.parse(hour.hour), value: hour.trials, kind: "more" })), caption, SERIES[0][2], 0, undefined, `Trials an hour on ${slug}`);
}

// The changes of speed that searches have confirmed.
function drift(slug, checks) {
  const changes = checks.filter(({ is_change }) => is_change).reverse();
  const list = table("Changes of speed", [
    { name: "Seen", kind: "head", cell: ({ measured_at }) => moment(measured_at) },
    { name: "Search", cell: ({ family, shape }) => sizeLink(slug, family, shape) },
    { name: "Time of a call, over the first trial's", kind: "number", cell: ({ slowdown }) => ratio(slowdown) },
  ]);
  list.show(changes, ({ measured_at, shape }) => `${measured_at} ${shape}`);
  list.element.classList.add("tall");
  return [
    hint("Searches repeat one measurement to see whether the device keeps its speed: above 1× it is slower than at the search's first trial, such as by heat. Orange: a change that a second run confirmed; times after it are corrected."),
    changes.length
      ? h("details", {}, h("summary", {}, `${count(changes.length, "change")} of speed in ${count(checks.length, "repeated measurement")}`), list.element)
      : hint(`No change of speed in ${count(checks.length, "repeated measurement")}.`),
  ];
}

// Points over time, joined; `from` is where the axis begins, `level` a value to draw as a line.
function line(points, caption, text, from, level, word = caption) {
  const [least, most] = spread([...points.map(({ value }) => value), ...(level === undefined ? [] : [level])]);
  const room = (most - least || 1) * 0.1;
  return h("figure.multiple", {}, h("figcaption", {}, caption),
    picture(`${word}: from ${text(least)} to ${text(most)}`, 150, (width, height) => {
      const box = inner(width, height);
      const x = linear(points[0].at, points.at(-1).at, box.left, box.right);
      const y = linear(from ?? least - room, most + room, box.bottom, box.top);
      const [first, last] = [points[0], points.at(-1)].map(({ at }) => moment(new Date(at).toISOString()));
      const isDay = first.slice(0, 10) === last.slice(0, 10); // then hours tell more
      const [begin, end] = isDay ? [11, 16] : [5, 10];
      return [
        axes(width, height, { at: x, ticks: [], name: `${first.slice(begin, end)} to ${last.slice(begin, end)}` },
          { at: y, ticks: [...new Set([from ?? least, level ?? most, most])].map((v) => [v, text(v)]) }),
        s("polyline.line", { points: points.map((p) => `${x(p.at)},${y(p.value)}`).join(" ") }),
        points.map((p) => s(`circle.dot.${p.kind}`, { cx: x(p.at), cy: y(p.value), r: p.kind === "much" ? 3.5 : 2.5 })),
      ];
    }));
}
