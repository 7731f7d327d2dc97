// Speed over two sizes: a table with colored cells, each a link to its size.

import { sizeAddress } from "./api.js";
import { h, fill, scroll, select } from "./dom.js";
import { rate } from "./format.js";

const kindOf = ({ problem: p }) =>
  p.mode
    ? [p.mode, `${p.trans_a ? "t" : "n"}${p.trans_b ? "t" : "n"}`, p.batch > 1 ? "batched" : "", p.constant ? `constant ${p.constant}` : ""].filter(Boolean).join(" ")
    : Object.values(p).filter((value) => typeof value === "string").join(" ");

export class HeatMap {
  // Rows, columns, and the size that is left to choose.
  constructor(slug, family, [down, across, third]) {
    Object.assign(this, { slug, family, down, across, third });
    this.kind = this.depth = "";
    this.place = h("div");
    this.legend = h("p.hint");
    this.choices = h("div.filters");
    this.element = h("section", {}, h("h2", {}, `Speed over ${this.down} and ${this.across}`), this.choices, this.place, this.legend);
  }

  update(entries) {
    this.entries = entries;
    const kinds = commonest(entries.map(kindOf));
    if (!kinds.includes(this.kind)) this.kind = kinds[0];
    this.kindChoice = kinds.length > 1 && h("label", {}, "Kind ", select("kind", kinds.map((k) => [k, k]), this.kind, (kind) => this.choose({ kind, depth: "" })));
    this.show();
  }

  choose(change) {
    Object.assign(this, change);
    this.show();
  }

  show() {
    const ofKind = this.entries.filter((entry) => kindOf(entry) === this.kind);
    fill(this.choices, this.kindChoice, this.third && this.depthChoice(ofKind));
    const kept = ofKind.filter(({ problem }) => !this.depth || String(problem[this.third]) === this.depth);
    fill(this.place, scroll(`Speed over ${this.down} and ${this.across}`, this.grid(kept)));
  }

  depthChoice(entries) {
    const depths = numbers(entries, this.third);
    const options = [["", `all (the fastest)`], ...depths.map((k) => [String(k), `${k}`])];
    return h("label", {}, `${this.third} `, select("depth", options, this.depth, (depth) => this.choose({ depth })));
  }

  grid(entries) {
    const rows = numbers(entries, this.down);
    const columns = numbers(entries, this.across);
    const isMemory = entries.every((entry) => entry.flops < entry.bytes_moved);
    const speed = (entry) => (isMemory ? entry.bytes_moved : entry.flops) / entry.time_ns;
    const best = new Map();
    for (const entry of entries) {
      const place = `${entry.problem[this.down]} ${entry.problem[this.across]}`;
      if (!best.has(place) || speed(best.get(place)) < speed(entry)) best.set(place, entry);
    }
    const fastest = Math.max(...entries.map(speed));
    const unit = unitOf(fastest, isMemory);
    this.legend.textContent = `${unit.name}. Full color is the fastest, ${unit.text(fastest)}.` +
      (this.third && !this.depth ? ` Where several ${this.third} share a cell, the fastest is shown.` : "");
    const head = h("tr", {}, h("th.corner", { scope: "col" }, `${this.down} \\ ${this.across}`), columns.map((n) => h("th.number", { scope: "col" }, `${n}`)));
    const body = rows.map((m) => h("tr", {}, h("th.number", { scope: "row" }, `${m}`),
      columns.map((n) => this.cell(best.get(`${m} ${n}`), speed, fastest, unit))));
    return h("table.heat", {}, h("caption.hidden", {}, `Speed in ${unit.name} by ${this.down} (rows) and ${this.across} (columns)`), h("thead", {}, head), h("tbody", {}, body));
  }

  cell(entry, speed, fastest, unit) {
    if (!entry) return h("td");
    const share = speed(entry) / fastest;
    const title = `${entry.shape}: ${rate(entry, entry.time_ns)}, ${entry.configuration.algorithm}`;
    const link = h("a", { href: sizeAddress(this.slug, this.family, entry.shape), title, "aria-label": title }, unit.text(speed(entry)));
    const cell = h(`td.number${share > 0.6 ? ".high" : ""}${share > 0.72 ? ".full" : ""}`, {}, link);
    cell.style.setProperty("--share", `${Math.round(8 + 92 * share)}%`);
    return cell;
  }
}

function unitOf(fastest, isMemory) {
  const [operations, bytes] = fastest >= 1000 ? ["TFLOP/s", "TB/s"] : ["GFLOP/s", "GB/s"];
  const scale = fastest >= 1000 ? 1000 : 1;
  return { name: isMemory ? bytes : operations, text: (value) => (value / scale).toPrecision(3).replace(/e\+?\d+$/, "") };
}

const numbers = (entries, name) => [...new Set(entries.map((entry) => entry.problem[name]))].sort((a, b) => a - b);

function commonest(words) {
  const counts = new Map();
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
}
