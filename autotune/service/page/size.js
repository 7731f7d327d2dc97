// One size on one device: what to use, against what, how it was found, and what mattered.

import { at, get, trialsOf } from "./api.js";
import { comparison } from "./comparison.js";
import { cell, facts, fill, h, hint, numeric, state, table } from "./dom.js";
import { configuration, count, gain, moment, rate, time } from "./format.js";
import { History } from "./history.js";
import { parameters } from "./parameters.js";

const SHOWN_TRIALS = 500;

export async function sizeView(place, slug, query, signal) {
  const shape = query.get("shape") ?? "";
  const family = query.get("family") ?? "gemm";
  const [size, trials, tuned] = await Promise.all([
    get(at(`api/devices/${encodeURIComponent(slug)}/size`, { shape, family }), signal),
    trialsOf(slug, shape, family, signal),
    get(at("api/lookup", { device: slug, shape, family }), signal).catch(() => null),
  ]);
  const again = at("#/new", { device: slug, family, shape: size.shape });
  fill(place,
    h("p.path", {}, h("a", { href: at(`#/device/${slug}`, { family }) }, slug), ` / ${family}`),
    h("div.heading", {}, h("h1", {}, size.shape), h("a.button", { href: again }, size.winner ? "Search further" : "Tune this size")),
    size.winner ? winning(size) : untuned(tuned),
    tuned && h("section", {}, h("h2", {}, "Configuration to use"), use(tuned)),
    size.winner && comparison(size),
    trials.length ? history(trials, signal) : h("section", {}, h("h2", {}, "Search"), hint(noTrials(size))),
    trials.length ? parameters(size) : null,
    trials.length ? list(size, trials) : null);
}

const noTrials = ({ winner }) =>
  winner ? "The trials of this search are not in this database: the winner came with a table." : "No trial was made here yet.";

const winning = (size) => {
  const { winner } = size;
  return facts([
    ["Time", time(winner.time_ns)],
    ["Rate", rate(size, winner.time_ns)],
    ["Over default (95%)", gain(winner)],
    ["Verdict", winner.verdict],
    ["Samples", `${winner.samples}`],
    ["Checked", count(winner.verifications, "run")],
    ["Measured", moment(winner.provenance.measured_at)],
    ["Driver", winner.provenance.driver],
  ]);
};

const untuned = (tuned) => hint(tuned ? "This size is not tuned; the lookup tells what to use meanwhile." : "This size is not tuned.");

function use(tuned) {
  const { algorithm, ...values } = tuned.configuration;
  return h("div.use", {},
    h("p", {}, h("strong", {}, algorithm), ` · ${tuned.match} match: ${tuned.because}`),
    facts(Object.entries(values).map(([name, value]) => [name, `${value}`]), "parameters"));
}

function history(trials, signal) {
  const chart = new History(signal);
  chart.begin(trials.filter((trial) => trial.purpose !== "final"));
  const finals = trials.filter((trial) => trial.purpose === "final").length;
  return h("section", {}, h("h2", {}, "Search"), chart.element,
    finals > 0 && hint(`${count(finals, "measurement")} of the finals and of the checks after them are not drawn.`));
}

function list(size, trials) {
  const found = table("Trials", [["Trial", "number"], "State", ["Time", "number"], "Purpose", "Configuration", "Measured", "Notes"]);
  const first = Math.max(0, trials.length - SHOWN_TRIALS);
  const rows = trials.slice(first).map((trial, index) => h("tr", {},
    h("td.number", {}, `${first + index + 1}`), cell(state(trial.state)), numeric(time(trial.time_ns)), cell(trial.purpose),
    cell(h("code", {}, configuration(trial.configuration))), cell(moment(trial.measured_at)), cell(trial.message.slice(0, 300))));
  fill(found.body, rows);
  const left = first ? `, the last ${SHOWN_TRIALS} shown` : "";
  return h("details", {}, h("summary", {}, `All ${count(trials.length, "trial")}${left}`), found.element);
}
