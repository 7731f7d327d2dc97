// Every trial of a size as a line over the parameters of one algorithm, and a slice for each of these: which values are fast.
// A range of times is chosen with two sliders; lines outside it fade.

import { axes, inner, linear, logarithmic, picture, s, spread } from "./charts.js";
import { steps } from "./comparison.js";
import { h, hint, fill } from "./dom.js";
import { count, tick, time } from "./format.js";

const MOST = 600;
const RANKS = 5;
const NARROWEST = 62;

// A trial of an earlier version may lack a parameter that came later.
const valueOf = (trial, name) => trial.configuration[name] ?? "–";

// `ranked` are names of parameters, those that matter most first.
export function parallel(trials, algorithm, ranked) {
  const known = trials.filter((t) => t.time_ns !== null && t.purpose === "search" && t.configuration.algorithm === algorithm).slice(-MOST);
  const names = Object.keys(known.at(-1)?.configuration ?? {}).filter((name) => name !== "algorithm" && new Set(known.map((t) => valueOf(t, name))).size > 1);
  const place = (name) => (ranked.includes(name) ? ranked.indexOf(name) : Infinity);
  names.sort((a, b) => place(a) - place(b) || 0);
  if (known.length < 3 || !names.length) return [];
  known.sort((a, b) => b.time_ns - a.time_ns); // the fastest are drawn last, above the others
  const levels = new Map(names.map((name) => [name, levelsOf(known, name)]));
  const range = { slow: known.length, fast: 1 };
  const shown = h("div");
  const told = h("p.summary", { role: "status" });
  const isIn = (index) => known.length - index <= range.slow && known.length - index >= range.fast;
  const draw = () => {
    const chosen = known.filter((_, index) => isIn(index));
    told.textContent = `${count(chosen.length, "trial")}, ${time(chosen.at(-1)?.time_ns)} to ${time(chosen[0]?.time_ns)}`;
    fill(shown, lines(known, names, levels, isIn), h("div.multiples", {}, names.map((name) => slice(known, name, levels.get(name), isIn))));
  };
  const slider = (word, name) => h("label", {}, `${word} `, h("input", {
    type: "range", min: 1, max: known.length, value: range[name],
    oninput: (event) => {
      range[name] = Number(event.target.value);
      draw();
    },
  }));
  draw();
  return h("section", {}, h("h2", {}, `Trials of ${algorithm} by parameter`),
    h("div.filters", {}, slider("From rank", "fast"), slider("to rank", "slow"), told), shown,
    hint(`A line for each configuration${known.length === MOST ? ` of the last ${MOST}` : ""}, from its time at the left over its values: orange for the fastest fifth, then dark blue, light blue, gray. Below, the times by each value. Where there is no room for all parameters, those that matter most are drawn. The table of all trials has the same as numbers.`));
}

function levelsOf(trials, name) {
  const values = [...new Set(trials.map((t) => valueOf(t, name)))];
  return values.sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : `${a}` < `${b}` ? -1 : 1));
}

const kindOf = (index, whole) => `rank-${Math.min(RANKS - 1, Math.floor((RANKS * index) / whole))}`;

function lines(trials, all, levels, isIn) {
  const [low, high] = spread(trials.map((t) => t.time_ns));
  return picture(`Trials as lines over ${all.join(", ")}`, 320, (width, height) => {
    const [left, right, top, bottom] = [58, width - 48, 34, height - 12];
    const names = all.slice(0, Math.max(2, Math.floor((right - left) / NARROWEST)));
    const at = (index) => left + ((right - left) * index) / names.length;
    const speed = logarithmic(low, Math.max(high, low * 1.01), bottom, top);
    const place = (name) => linear(0, levels.get(name).length - 1, bottom, top);
    const isNarrow = (right - left) / names.length < 70;
    const path = (t) => [[at(0), speed(t.time_ns)], ...names.map((name, i) => [at(i + 1), place(name)(levels.get(name).indexOf(valueOf(t, name)))])];
    const order = trials.map((trial, index) => [trial, index]).sort((a, b) => isIn(a[1]) - isIn(b[1]));
    return [
      order.map(([trial, index]) => s(`polyline.path.${isIn(index) ? kindOf(index, trials.length) : "faded"}`, { points: path(trial).map((p) => p.join(",")).join(" ") })),
      s("line.bone", { x1: at(0), x2: at(0), y1: top, y2: bottom }),
      s("text.middle.name", { x: at(0), y: 12 }, "time"),
      steps(low, high, 5).map((ns) => s("text.end", { x: at(0) - 5, y: speed(ns) + 4 }, tick(ns))),
      names.map((name, i) => [
        s("line.bone", { x1: at(i + 1), x2: at(i + 1), y1: top, y2: bottom }),
        s("text.middle.name", { x: at(i + 1), y: isNarrow && i % 2 ? 24 : 12 }, isNarrow ? short(name) : name),
        levels.get(name).map((value, j) => s("text", { x: at(i + 1) + 4, y: place(name)(j) + 4 }, short(`${value}`))),
      ]),
    ];
  });
}

// Words beside each other below an axis: shortened while something of each is left, else as many as have room.
function fitting(words, width) {
  const room = Math.floor((width / words.length - 4) / 6.5);
  const longest = Math.max(...words.map(({ length }) => length));
  if (room >= Math.min(3, longest)) return words.map((word, index) => [index, word.length > room ? `${word.slice(0, room - 1)}…` : word]);
  const step = Math.ceil(((7 * longest + 4) * words.length) / width);
  return words.map((word, index) => [index, word]).filter(([index]) => index % step === 0);
}

const short = (word) => (word.length > 9 ? `${word.slice(0, 4)}…${word.slice(-4)}` : word);

function slice(trials, name, levels, isIn) {
  const [low, high] = spread(trials.map((t) => t.time_ns));
  return h("figure.multiple", {}, h("figcaption", {}, name), picture(`Times by ${name}`, 170, (width, height) => {
    const box = inner(width, height);
    const y = logarithmic(low, Math.max(high, low * 1.01), box.bottom, box.top);
    const x = linear(-0.5, levels.length - 0.5, box.left, box.right);
    const apart = (index) => ((index * 7919) % 100) / 100 - 0.5; // so that equal ones do not hide each other
    return [
      axes(width, height, { at: x, ticks: fitting(levels.map((value) => short(`${value}`)), box.right - box.left), name: "" }, { at: y, ticks: steps(low, high, 4).map((ns) => [ns, tick(ns)]) }),
      trials.map((t, index) => s(`circle.mark.${isIn(index) ? kindOf(index, trials.length) : "faded"}`, { cx: x(levels.indexOf(valueOf(t, name)) + 0.5 * apart(index)), cy: y(t.time_ns), r: 2 })),
    ];
  }));
}
