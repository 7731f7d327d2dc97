// Small charts of the searches of a job, one for each size: each trial, and the best so far.

import { sizeAddress } from "./api.js";
import { inner, linear, logarithmic, picture, s, spread } from "./charts.js";
import { h } from "./dom.js";
import { count, failures, time } from "./format.js";

const HEIGHT = 120;

export function multiple(device, problem, trials) {
  const searched = trials.filter(({ purpose }) => purpose === "search");
  const timed = searched.map((trial, index) => ({ index, ns: trial.time_ns })).filter(({ ns }) => ns !== null);
  const states = {};
  for (const { state, time_ns } of searched) if (time_ns === null) states[state] = (states[state] ?? 0) + 1;
  const best = Math.min(...timed.map(({ ns }) => ns));
  const told = [count(searched.length, "trial"), timed.length && `best ${time(best)}`, Object.keys(states).length && failures(states)].filter(Boolean).join(", ");
  return h("figure.multiple", {},
    h("figcaption", {}, h("a", { href: sizeAddress(device, problem.family, problem.shape) }, problem.shape), h("small", {}, told)),
    timed.length > 0 && picture(`Search at ${problem.shape}: ${told}`, HEIGHT, (width, height) => draw(timed, searched.length, width, height)));
}

function draw(timed, whole, width, height) {
  const box = { ...inner(width, height), left: 6, right: width - 6, bottom: height - 8 };
  const [low, high] = spread(timed.map(({ ns }) => ns));
  const x = linear(0, Math.max(whole - 1, 1), box.left, box.right);
  const y = logarithmic(low, Math.max(high, low * 1.05), box.bottom, box.top);
  const line = [];
  let best = Infinity;
  for (const { index, ns } of timed) {
    if (ns < best) {
      if (line.length) line.push([x(index), y(best)]);
      best = ns;
      line.push([x(index), y(best)]);
    }
  }
  line.push([x(whole - 1), y(best)]);
  return [
    s("line.grid", { x1: 0, x2: width, y1: box.bottom, y2: box.bottom }),
    timed.map(({ index, ns }) => s("circle.mark", { cx: x(index), cy: y(ns), r: 1.8 })),
    s("polyline.line", { points: line.map((p) => p.join(",")).join(" ") }),
  ];
}
