// The history of a search: the time of each trial, the best so far, failures marked. Drawn by uPlot, which is loaded
// as a script of its own and global.

import { steps } from "./comparison.js";
import { fill, h } from "./dom.js";
import { configuration, count, failures, tick, time } from "./format.js";

const HEIGHT = 280;

export class History {
  constructor(signal) {
    this.trials = [];
    this.waiting = [];
    this.canvas = h("div.chart", {
      tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": "Time of each trial; arrow keys go from trial to trial",
      onkeydown: (event) => this.step(event),
    });
    this.legend = h("p.legend");
    this.readout = h("p.readout", { "aria-live": "polite" }, "Times as measured; the search compares them corrected for the device's speed. Point at a trial, or go through them with the arrow keys, to read it.");
    this.element = h("figure.history", {}, this.legend, this.canvas, h("figcaption", {}, this.readout));
    const redraw = () => this.draw(true);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal });
    addEventListener("painted", redraw, { signal });
    const seen = new ResizeObserver(() => this.resize());
    seen.observe(this.canvas);
    signal.addEventListener("abort", () => {
      seen.disconnect();
      this.plot?.destroy();
    });
    this.signal = signal;
    this.isBegun = false;
  }

  // What the ledger has; trials that ended meanwhile come after it, once.
  begin(trials) {
    const known = new Set(trials.slice(-20).map(same));
    this.trials = [...trials, ...this.waiting.filter((trial) => !known.has(same(trial)))];
    this.isBegun = true;
    this.draw();
  }

  add(trial) {
    if (!this.isBegun) {
      this.waiting.push(trial);
      return;
    }
    this.trials.push(trial);
    this.isLate ??= requestAnimationFrame(() => {
      this.isLate = undefined;
      this.draw();
    });
  }

  draw(isAnew = false) {
    if (this.signal.aborted) return;
    const failed = this.trials.filter((trial) => trial.time_ns === null);
    const states = {};
    for (const { state } of failed) states[state] = (states[state] ?? 0) + 1;
    const best = Math.min(...this.trials.map((trial) => (trial.purpose === "search" && trial.time_ns) || Infinity));
    fill(this.legend,
      key("trial", `${count(this.trials.length, "trial")}, in their order`), key("best", `best so far${Number.isFinite(best) ? ` ${time(best)}` : ""}`),
      this.trials.some((t) => t.purpose !== "search") && key("again", "the best, measured again"),
      failed.length > 0 && key("failed", `failed: ${failures(states)}`));
    if (isAnew || !this.plot) this.make();
    else this.plot.setData(columns(this.trials));
  }

  make() {
    this.plot?.destroy();
    const width = this.canvas.clientWidth;
    if (!width || !this.trials.length) return;
    const color = (name) => {
      this.legend.style.setProperty("outline-color", `var(--${name})`); // a place where the browser chooses of light and dark
      return getComputedStyle(this.legend).outlineColor;
    };
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const lines = { stroke: color("quiet"), font, grid: { stroke: color("line"), width: 1 }, ticks: { show: false } };
    const dots = (name, size) => ({ stroke: color(name), paths: () => null, points: { show: true, size, width: 1.2, fill: color("ground") } });
    this.failedColor = color("bad");
    this.plot = new uPlot({
      width, height: HEIGHT,
      legend: { show: false },
      padding: [14, 8, 0, 0],
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: {
        x: { time: false, range: (_, low, high) => [0.5, Math.max(high ?? 1, 10) + 0.5] },
        y: { distr: 3, range: (_, low, high) => (low ? padded(low, Math.max(high, low * 1.3)) : [1, 10]) },
      },
      axes: [
        { ...lines, size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
        { ...lines, size: 62, splits: (_, __, low, high) => steps(low, high, HEIGHT / 40), filter: (_, splits) => splits, values: (_, splits) => splits.map(tick) },
      ],
      series: [{},
        { ...dots("mark", 5) },
        { ...dots("warn", 5) },
        { stroke: color("accent"), width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
      hooks: { draw: [(plot) => this.failures(plot)], setCursor: [(plot) => this.read(plot.cursor.idx)] },
    }, columns(this.trials), this.canvas);
  }

  // Crosses along the upper edge: a failed trial has no time.
  failures(plot) {
    const { ctx } = plot;
    const size = 2.5 * devicePixelRatio;
    const y = plot.bbox.top - 5 * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = this.failedColor;
    ctx.lineWidth = 1.4 * devicePixelRatio;
    ctx.beginPath();
    this.trials.forEach((trial, index) => {
      if (trial.time_ns !== null) return;
      const x = plot.valToPos(index + 1, "x", true);
      ctx.moveTo(x - size, y - size);
      ctx.lineTo(x + size, y + size);
      ctx.moveTo(x - size, y + size);
      ctx.lineTo(x + size, y - size);
    });
    ctx.stroke();
    ctx.restore();
  }

  read(index) {
    const trial = this.trials[index];
    if (!trial) return;
    this.at = index;
    const result = trial.time_ns === null ? trial.state : time(trial.time_ns);
    const purpose = trial.purpose === "search" ? "" : `, ${trial.purpose}`;
    this.readout.textContent = `Trial ${index + 1}: ${result}${purpose}, ${configuration(trial.configuration)}`;
  }

  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!by || !this.plot) return;
    event.preventDefault();
    const index = Math.min(this.trials.length - 1, Math.max(0, (this.at ?? -1) + by));
    this.plot.setCursor({ left: this.plot.valToPos(index + 1, "x"), top: 10 });
  }

  resize() {
    const width = this.canvas.clientWidth;
    if (!this.plot) this.draw();
    else if (width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }
}

// On a logarithmic axis.
const padded = (low, high) => [low / (high / low) ** 0.05, high * (high / low) ** 0.05];

const same = (trial) => JSON.stringify([Object.entries(trial.configuration).sort(), trial.state, trial.time_ns]);

const key = (name, text) => h(`span.key.${name}`, {}, text);

// Trial number, time in the search, time of a repetition, best so far.
function columns(trials) {
  let best = Infinity;
  return [
    trials.map((_, index) => index + 1),
    trials.map((trial) => (trial.purpose === "search" ? trial.time_ns : null)),
    trials.map((trial) => (trial.purpose === "search" ? null : trial.time_ns)),
    trials.map((trial) => {
      if (trial.purpose === "search" && trial.time_ns !== null) best = Math.min(best, trial.time_ns);
      return Number.isFinite(best) ? best : null;
    }),
  ];
}
