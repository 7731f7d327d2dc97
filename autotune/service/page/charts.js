// Pictures as SVG, in the colors of the style sheet, each as wide as its place and drawn anew when that changes.

import { fill, h } from "./dom.js";

const NS = "http://www.w3.org/2000/svg";

// As h() for elements of SVG.
export function s(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElementNS(NS, name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(properties)) element.setAttribute(key, value);
  return fill(element, ...children);
}

// `draw` returns the elements of a picture of a width; the label tells what it shows.
export function picture(label, height, draw) {
  const place = h("div.picture", { role: "img", "aria-label": label });
  redrawn(place, (width) => fill(place, s("svg", { width, height, "aria-hidden": "true" }, draw(width, height))));
  return place;
}

function redrawn(place, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = place.clientWidth;
    if (width && width !== last) draw((last = width));
  }).observe(place);
}

export const logarithmic = (low, high, from, to) => (value) => from + ((to - from) * Math.log(value / low)) / Math.log(high / low);

export const linear = (low, high, from, to) => (value) => from + ((to - from) * (value - low)) / (high - low || 1);

// Powers of ten between two values, thinned to `most`.
export function decades(low, high, most = 8) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power++) found.push(10 ** power);
  const step = Math.ceil(found.length / most);
  return found.filter((_, index) => index % step === 0);
}

export const spread = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

const MARGIN = { top: 10, right: 14, bottom: 40, left: 52 };
const text = (classes, x, y, content) => s(`text.${classes}`, { x, y }, content);

// Lines and words of two axes: { at, ticks: [[value, word]], name }.
export function axes(width, height, x, y) {
  const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
  return [
    x.ticks.map(([value, word]) => [s("line.grid", { x1: x.at(value), x2: x.at(value), y1: MARGIN.top, y2: bottom }), text("middle", x.at(value), bottom + 15, word)]),
    y.ticks.map(([value, word]) => [s("line.grid", { x1: MARGIN.left, x2: right, y1: y.at(value), y2: y.at(value) }), text("end", MARGIN.left - 6, y.at(value) + 4, word)]),
    text("middle.name", (MARGIN.left + right) / 2, height - 6, x.name),
  ];
}

export const inner = (width, height) => ({ left: MARGIN.left + 6, right: width - MARGIN.right - 6, top: MARGIN.top + 6, bottom: height - MARGIN.bottom - 6 });

// Points that one goes through with the arrow keys and opens with Enter. A point: { x, y, r, kind, text, href }.
export class Points {
  constructor(label, height, words = "Point at a size, or go through them with the arrow keys; Enter opens one.") {
    this.height = height;
    this.points = [];
    this.readout = h("p.told", { "aria-live": "polite" }, words);
    this.place = h("div.picture.points", {
      tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": label,
      onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.near(event),
      onclick: () => this.open(),
    });
    this.element = h("figure.scatter", {}, this.place, h("figcaption", {}, this.readout));
    redrawn(this.place, () => this.draw());
  }

  // `lay` returns { points, back } for a width and a height.
  show(lay) {
    this.lay = lay;
    this.at = undefined;
    this.draw();
  }

  draw() {
    const width = this.place.clientWidth;
    if (!width || !this.lay) return;
    const { points, back } = this.lay(width, this.height);
    this.points = points;
    this.ring = s("circle.ring", { r: 0 });
    const dots = points.map((p) => s(`circle.dot.${p.kind}`, { cx: p.x, cy: p.y, r: p.r }));
    fill(this.place, s("svg", { width, height: this.height, "aria-hidden": "true" }, back, dots, this.ring));
  }

  choose(index) {
    const point = this.points[index];
    if (!point) return;
    this.at = index;
    for (const [name, value] of [["cx", point.x], ["cy", point.y], ["r", point.r + 3]]) this.ring.setAttribute(name, value);
    this.readout.textContent = point.text;
  }

  near(event) {
    const { left, top } = this.place.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const far = (p) => (p.x - x) ** 2 + (p.y - y) ** 2;
    const [nearest] = this.points.map((p, index) => [far(p), index]).sort((a, b) => a[0] - b[0]);
    const isNear = nearest && nearest[0] < 400;
    this.place.classList.toggle("near", Boolean(isNear));
    if (isNear) this.choose(nearest[1]);
    else this.at = undefined;
  }

  key(event) {
    if (event.key === "Enter") this.open();
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!by) return;
    event.preventDefault();
    this.choose(Math.min(this.points.length - 1, Math.max(0, (this.at ?? -1) + by)));
  }

  open() {
    const href = this.points[this.at]?.href;
    if (href) location.hash = href;
  }
}
