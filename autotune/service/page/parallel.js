// Every trial of a size as a line over the parameters of one algorithm, and a slice for each of these: which values are fast.
// Ranks are left by two sliders, values by a list for each parameter; other lines fade.

import { axes, inner, linear, logarithmic, picture, s, spread } from "./charts.js";
import { steps } from "./comparison.js";
import { breakable, fill, h, hint, select } from "./dom.js";
import { count, tick, time } from "./format.js";

const MOST = 600;
const RANKS = 5;
const NARROWEST = 62;

// A trial of an earlier version may lack a parameter that came later.
const valueOf = (trial, name) => trial.configuration[name] ?? "–";

const timed = (trials, algorithm) => trials.filter((t) => t.time_ns !== null && t.purpose === "search" && t.configuration.algorithm === algorithm).slice(-MOST);

// The trials of `algorithm`, or of another one to choose; `ranked` are names of its parameters, those that matter most first.
export function parallel(trials, algorithm, ranked) {
  const names = [...new Set(trials.map((t) => t.configuration.algorithm))].filter((name) => varying(timed(trials, name)).length).sort();
  if (!names.length) return [];
  const first = names.includes(algorithm) ? algorithm : names[0];
  const title = h("h2");
  const shown = h("div.brushed");
  const show = (name) => {
    title.textContent = `Trials of ${name} by parameter`;
    fill(shown, new Brushed(timed(trials, name), name === algorithm ? ranked : []).elements);
  };
  show(first);
  const choice = names.length > 1 && h("div.filters", {}, h("label", {}, "Algorithm ", select("of", names.map((name) => [name, name]), first, show)));
  return h("section", {}, title, choice, shown,
    hint("A line for each configuration, from its time at the left over its values: orange for the fastest fifth, then dark blue, light blue, gray. Below, the times by each value. The sliders leave ranks, the lists leave values; a click on a value does so, too. Where there is no room for all parameters, those that matter most are drawn. The table of all trials has the same as numbers."));
}

// The parameters that have several values in the trials; none where these are too few to compare.
function varying(known) {
  if (known.length < 3) return [];
  return Object.keys(known.at(-1).configuration).filter((name) => name !== "algorithm" && new Set(known.map((t) => valueOf(t, name))).size > 1);
}

// Pictures of trials, of which those are in color that sliders and lists leave.
class Brushed {
  constructor(known, ranked) {
    this.known = known.sort((a, b) => b.time_ns - a.time_ns); // the fastest are drawn last, above the others
    const place = (name) => (ranked.includes(name) ? ranked.indexOf(name) : Infinity);
    this.names = varying(known).sort((a, b) => place(a) - place(b) || 0);
    this.levels = new Map(this.names.map((name) => [name, levelsOf(known, name)]));
    this.range = { slow: known.length, fast: 1 };
    this.lists = new Map(this.names.map((name) => [name, this.list(name)]));
    this.lines = h("div", { onclick: (event) => this.click(event.target.dataset) });
    this.slices = new Map(this.names.map((name) => [name, h("div")]));
    this.told = h("p.summary", { role: "status" });
    this.elements = [
      h("div.filters", {}, this.slider("From rank", "fast"), this.slider("to rank", "slow"), this.told), this.lines,
      h("div.multiples", {}, this.names.map((name) => h("figure.multiple", {}, h("figcaption.heading", {}, h("span", {}, breakable(name)), this.lists.get(name)), this.slices.get(name)))),
    ];
    this.draw();
  }

  slider = (word, name) => h("label", {}, `${word} `, h("input", {
    type: "range", min: 1, max: this.known.length, value: this.range[name],
    oninput: (event) => {
      this.range[name] = Number(event.target.value);
      this.draw();
    },
  }));

  list(name) {
    const options = [["", "all"], ...this.levels.get(name).map((value, index) => [`${index}`, short(`${value}`)])];
    const element = select(name, options, "", () => this.draw());
    element.setAttribute("aria-label", `Values of ${name}`);
    return element;
  }

  click({ name, index }) {
    if (!this.lists.has(name)) return;
    const list = this.lists.get(name);
    list.value = list.value === index ? "" : index;
    this.draw();
  }

  isIn(index) {
    const rank = this.known.length - index;
    const isWanted = ([name, { value }]) => value === "" || this.levels.get(name)[value] === valueOf(this.known[index], name);
    return rank <= this.range.slow && rank >= this.range.fast && [...this.lists].every(isWanted);
  }

  draw() {
    const left = this.known.map((_, index) => this.isIn(index));
    const chosen = this.known.filter((_, index) => left[index]);
    const span = [...new Set([chosen.at(-1), chosen[0]].filter(Boolean).map(({ time_ns }) => time(time_ns)))].join(" to ");
    this.told.textContent = [`${chosen.length} of ${count(this.known.length, "trial")}`, span].filter(Boolean).join(", ");
    fill(this.lines, lines(this.known, this.names, this.levels, left));
    for (const [name, place] of this.slices) fill(place, slice(this.known, name, this.levels.get(name), left));
  }
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
    const order = trials.map((trial, index) => [trial, index]).sort((a, b) => isIn[a[1]] - isIn[b[1]]);
    return [
      order.map(([trial, index]) => s(`polyline.path.${isIn[index] ? kindOf(index, trials.length) : "faded"}`, { points: path(trial).map((p) => p.join(",")).join(" ") })),
      s("line.bone", { x1: at(0), x2: at(0), y1: top, y2: bottom }),
      s("text.middle.name", { x: at(0), y: 12 }, "time"),
      steps(low, high, 5).map((ns) => s("text.end", { x: at(0) - 5, y: speed(ns) + 4 }, tick(ns))),
      names.map((name, i) => [
        s("line.bone", { x1: at(i + 1), x2: at(i + 1), y1: top, y2: bottom }),
        s("text.middle.name", { x: at(i + 1), y: isNarrow && i % 2 ? 24 : 12 }, isNarrow ? short(name) : name),
        levels.get(name).map((value, j) => s("text.level", { x: at(i + 1) + 4, y: place(name)(j) + 4, "data-name": name, "data-index": j }, short(`${value}`))),
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
  return picture(`Times by ${name}`, 170, (width, height) => {
    const box = inner(width, height);
    const y = logarithmic(low, Math.max(high, low * 1.01), box.bottom, box.top);
    const x = linear(-0.5, levels.length - 0.5, box.left, box.right);
    const apart = (index) => ((index * 7919) % 100) / 100 - 0.5; // so that equal ones do not hide each other
    return [
      axes(width, height, { at: x, ticks: fitting(levels.map((value) => short(`${value}`)), box.right - box.left), name: "" }, { at: y, ticks: steps(low, high, 4).map((ns) => [ns, tick(ns)]) }),
      trials.map((t, index) => s(`circle.mark.${isIn[index] ? kindOf(index, trials.length) : "faded"}`, { cx: x(levels.indexOf(valueOf(t, name)) + 0.5 * apart(index)), cy: y(t.time_ns), r: 2 })),
    ];
  });
}
