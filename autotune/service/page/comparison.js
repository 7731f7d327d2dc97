// The winner beside what else does the same: dots with their intervals on one axis of time.

import { h, hint, scroll } from "./dom.js";
import { configuration, rate, ratio, tick, time } from "./format.js";

const MEASURED = "All were measured in turns, and ratios within the rounds decided: medians over all rounds, shown here, may differ a little.";
const IMPORTED = "The winner came with a table and is kept, since its time there is shorter than any measured here; below it are the finals made here, at the speed of the device here.";

export function comparison(size) {
  const [winner] = size.rivals;
  const finalists = size.rivals.filter(({ configuration: of }) => of).map((rival, index) => ({ ...rival, name: index || size.is_imported ? rival.name : `${rival.name}, runner-up` }));
  const others = [...size.rivals.filter(({ configuration: of }) => !of), ...size.host];
  const rest = size.host.length ? "" : " The host's BLAS was not measured at this size.";
  return [
    finalists.length > 0 && plot("The finals", size, [winner, ...finalists], size.is_imported ? IMPORTED : MEASURED),
    plot("Against others", size, others, rest),
  ];
}

function plot(title, size, rows, words) {
  const [winner] = rows;
  const [low, high] = span(rows.flatMap((r) => [r.time_ns, r.low_ns ?? r.time_ns, r.high_ns ?? r.time_ns]));
  const at = (ns) => (100 * Math.log(ns / low)) / Math.log(high / low);
  const ticks = steps(low, high, matchMedia("(max-width: 640px)").matches ? 2 : 6);
  const axis = h("div.axis", { "aria-hidden": "true" }, ticks.map((ns) => placed(h("span", {}, tick(ns)), at(ns))));
  const plain = (text) => h("th.number", { scope: "col", role: "columnheader" }, text);
  const head = h("tr", { role: "row" }, h("th", { scope: "col", role: "columnheader" }, h("span.hidden", {}, "What")),
    h("th.plot", { scope: "col", role: "columnheader" }, h("span.hidden", {}, "Time with its interval, logarithmic"), axis),
    plain("Time"), plain("Rate"), plain("Of the winner's time"));
  const body = rows.map((rival) => row(size, rival, { at, ticks, winner }));
  const caption = title === "The finals" ? "The winner and the others of its finals" : "The winner against others";
  const table = h("table.rivals", { role: "table" }, h("caption.hidden", {}, caption), h("thead", { role: "rowgroup" }, head), h("tbody", { role: "rowgroup" }, body));
  const notes = [...new Set(rows.filter((r) => r.note).map((r) => `${r.configuration ? "others" : r.name}: ${r.note}`))];
  return h("section", {}, h("h2", {}, title), scroll(caption, table),
    hint(`Bars are 95% intervals; shorter times are to the left, on a logarithmic axis. ${words}`),
    h("ul.notes", {}, notes.map((note) => h("li", {}, note))));
}

function row(size, rival, { at, ticks, winner }) {
  const grid = ticks.map((ns) => placed(h("span.line"), at(ns)));
  const whisker = rival.low_ns === null ? null : placed(h("span.whisker"), at(rival.low_ns), at(rival.high_ns) - at(rival.low_ns));
  const interval = rival.low_ns === null ? null : h("small", {}, `${time(rival.low_ns)} to ${time(rival.high_ns)}`);
  return h(rival === winner ? "tr.winner" : "tr", { role: "row" },
    h("th", { scope: "row", role: "rowheader" }, rival.name, rival.configuration && h("small", { title: configuration(rival.configuration) }, differences(winner, rival, size))),
    h("td.plot", { role: "cell" }, h("div.track", {}, grid, whisker, placed(h("span.dot"), at(rival.time_ns)))),
    h("td.number", { role: "cell" }, time(rival.time_ns), interval),
    h("td.number", { role: "cell" }, rate(size, rival.time_ns)),
    h("td.number", { role: "cell" }, rival === winner ? "–" : ratio(rival.time_ns / winner.time_ns)));
}

// In which parameters a finalist differs from the winner.
function differences(winner, rival, size) {
  const own = size.winner.configuration;
  if (own.algorithm !== rival.configuration.algorithm) return "in the finals";
  return Object.entries(rival.configuration).filter(([name, value]) => own[name] !== value).map(([name, value]) => `${name}=${value}`).join(", ");
}

function placed(element, left, width) {
  element.style.setProperty("left", `${left}%`);
  if (width !== undefined) element.style.setProperty("width", `${width}%`);
  return element;
}

// Room at both sides, and a factor of 1.1 at least.
function span(times) {
  const low = Math.min(...times);
  const high = Math.max(...times);
  const room = Math.max((high / low) ** 0.06, (1.1 / (high / low)) ** 0.5, 1.02);
  return [low / room, high * room];
}

// Round times between two; few enough to stand beside each other.
export function steps(low, high, most = 6) {
  const decades = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) decades.push(power);
  const of = (digits) => decades.flatMap((p) => digits.map((d) => +(d * 10 ** p).toPrecision(12))).filter((v) => v >= low && v <= high);
  const choices = [[1, 1.02, 1.04, 1.06, 1.08, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.85, 1.9, 1.95, 2, 2.1, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9], [1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]].map(of);
  return choices.find((found) => found.length <= most) ?? thinned(choices.at(-1), most);
}

const thinned = (values, most) => values.filter((_, index) => index % Math.ceil(values.length / most) === 0);
