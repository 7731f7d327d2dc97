// What a device did, hour by hour: trials, temperature, clock.

import { axes, inner, linear, picture, s, spread } from "./charts.js";
import { h, hint, table } from "./dom.js";
import { count, moment } from "./format.js";

const SERIES = [
  ["trials", "Trials an hour", (v) => `${Math.round(v)}`],
  ["temperature_c", "Temperature, °C", (v) => `${Math.round(v)}`],
  ["clock_mhz", "Clock, MHz", (v) => `${Math.round(v)}`],
];

export function hours(found) {
  if (!found.length) return [];
  const shown = SERIES.filter(([name]) => found.some((hour) => hour[name] !== null));
  const list = table("Hours in which the device measured", [
    { name: "Hour", kind: "head", cell: ({ hour }) => moment(hour) },
    { name: "Failed", kind: "number", cell: ({ failed }) => `${failed}` },
    ...shown.map(([name, word, text]) => ({ name: word, kind: "number", cell: (item) => (item[name] === null ? "–" : text(item[name])) })),
  ]);
  list.show([...found].reverse(), ({ hour }) => hour);
  return h("section", {}, h("h2", {}, "Over time"),
    found.length > 1 && h("div.multiples", {}, shown.map(([name, word, text]) => line(found.filter((hour) => hour[name] !== null), name, word, text))),
    hint("Only hours in which the device measured; at most the last 168. Temperature and clock are means over the trials whose system reports them."),
    h("details", {}, h("summary", {}, `${count(found.length, "hour")} as numbers`), list.element));
}

function line(found, name, word, text) {
  const when = ({ hour }) => Date.parse(hour);
  const [low, high] = spread(found.map((hour) => hour[name]));
  const from = name === "trials" ? 0 : low - (high - low || 1) * 0.1;
  return h("figure.multiple", {}, h("figcaption", {}, word),
    picture(`${word}: from ${text(low)} to ${text(high)}`, 150, (width, height) => {
      const box = inner(width, height);
      const x = linear(when(found[0]), when(found.at(-1)), box.left, box.right);
      const y = linear(from, high + (high - low || 1) * 0.1, box.bottom, box.top);
      const day = (hour) => moment(hour.hour).slice(5, 16);
      return [
        axes(width, height, { at: x, ticks: [], name: `${day(found[0])} to ${day(found.at(-1))}` }, { at: y, ticks: [...new Set([from, high])].map((v) => [v, text(v)]) }),
        s("polyline.line", { points: found.map((hour) => `${x(when(hour))},${y(hour[name])}`).join(" ") }),
        found.map((hour) => s("circle.dot.more", { cx: x(when(hour)), cy: y(hour[name]), r: 2.5 })),
      ];
    }));
}
