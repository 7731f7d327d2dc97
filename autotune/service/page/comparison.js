// The winner beside what else does the same: dots with their intervals on one axis of time.

import { h, hint, scroll } from "./dom.js";
import { rate, ratio, tick, time } from "./format.js";

export function comparison(size) {
  const rows = [...size.rivals, ...size.host];
  const [low, high] = span(rows.flatMap((r) => [r.time_ns, r.low_ns ?? r.time_ns, r.high_ns ?? r.time_ns]));
  const at = (ns) => (100 * Math.log(ns / low)) / Math.log(high / low);
  const ticks = steps(low, high, matchMedia("(max-width: 640px)").matches ? 3 : 6);
  const axis = h("div.axis", { "aria-hidden": "true" }, ticks.map((ns) => placed(h("span", {}, tick(ns)), at(ns))));
  const plain = (text) => h("th.number", { scope: "col" }, text);
  const head = h("tr", {}, h("th", { scope: "col" }, h("span.hidden", {}, "What")),
    h("th.plot", { scope: "col" }, h("span.hidden", {}, "Time with its interval, logarithmic"), axis),
    plain("Time"), plain("Rate"), plain("Of the winner's time"));
  const [winner] = size.rivals;
  const body = rows.map((rival) => row(size, rival, { at, ticks, winner }));
  const table = h("table.rivals", {}, h("caption.hidden", {}, "The winner against others"), h("thead", {}, head), h("tbody", {}, body));
  const notes = rows.filter((r) => r.note).map((r) => h("li", {}, `${r.name}: ${r.note}`));
  return h("section", {}, h("h2", {}, "Against others"), scroll("The winner against others", table),
    hint("Bars are 95% intervals; shorter times are to the left, on a logarithmic axis." + (size.host.length ? "" : " The host's BLAS was not measured at this size.")),
    h("ul.notes", {}, notes));
}

function row(size, rival, { at, ticks, winner }) {
  const grid = ticks.map((ns) => placed(h("span.line"), at(ns)));
  const whisker = rival.low_ns === null ? null : placed(h("span.whisker"), at(rival.low_ns), at(rival.high_ns) - at(rival.low_ns));
  const interval = rival.low_ns === null ? null : h("small", {}, `${time(rival.low_ns)} to ${time(rival.high_ns)}`);
  return h(rival === winner ? "tr.winner" : "tr", {},
    h("th", { scope: "row" }, rival.name),
    h("td.plot", { "aria-hidden": "true" }, h("div.track", {}, grid, whisker, placed(h("span.dot"), at(rival.time_ns)))),
    h("td.number", {}, time(rival.time_ns), interval),
    h("td.number", {}, rate(size, rival.time_ns)),
    h("td.number", {}, rival === winner ? "–" : ratio(rival.time_ns / winner.time_ns)));
}

function placed(element, left, width) {
  element.style.setProperty("left", `${left}%`);
  if (width !== undefined) element.style.setProperty("width", `${width}%`);
  return element;
}

// Room at both sides, and a factor of 1.5 at least.
function span(times) {
  const low = Math.min(...times);
  const high = Math.max(...times);
  const room = Math.max((high / low) ** 0.06, (1.5 / (high / low)) ** 0.5, 1.02);
  return [low / room, high * room];
}

// Round times between two; few enough to stand beside each other.
export function steps(low, high, most = 6) {
  const decades = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) decades.push(power);
  const of = (digits) => decades.flatMap((p) => digits.map((d) => +(d * 10 ** p).toPrecision(12))).filter((v) => v >= low && v <= high);
  const choices = [[1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9], [1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]].map(of);
  return choices.find((found) => found.length <= most) ?? thinned(choices.at(-1), most);
}

const thinned = (values, most) => values.filter((_, index) => index % Math.ceil(values.length / most) === 0);
