// One size on one device: what to use, against what, how it was found, and what mattered.

import { at, get, trialsOf } from "./api.js";
import { comparison } from "./comparison.js";
import { bar, facts, fill, h, hint, paged, snippet, state, table } from "./dom.js";
import { configuration, count, gain, moment, percent, rate, time } from "./format.js";
import { parallel } from "./parallel.js";
import { History } from "./history.js";

const LEAST_SHARE = 0.01;
const COLUMNS = [
  { name: "Trial", kind: "head", isTold: true, cell: ({ number }) => `${number}` },
  { name: "State", cell: (trial) => state(trial.state) },
  { name: "Time", kind: "number", cell: (trial) => time(trial.time_ns) },
  { name: "Purpose", cell: ({ purpose }) => purpose },
  { name: "Configuration", cell: (trial) => h("code.long", {}, configuration(trial.configuration)) },
  { name: "Measured", cell: (trial) => moment(trial.measured_at) },
  { name: "Notes", cell: ({ message }) => message.slice(0, 300) },
];

export async function sizeView(place, slug, query, signal) {
  const shape = query.get("shape") ?? "";
  const family = query.get("family") ?? "gemm";
  const [size, trials, tuned, kernel] = await Promise.all([
    get(at(`api/devices/${encodeURIComponent(slug)}/size`, { shape, family }), signal),
    trialsOf(slug, shape, family, signal),
    get(at("api/lookup", { device: slug, shape, family }), signal).catch(() => null),
    get(at(`api/devices/${encodeURIComponent(slug)}/kernel`, { shape, family }), signal).catch(() => null),
  ]);
  const again = at("#/new", { device: slug, family, shape: size.shape });
  fill(place,
    h("p.path", {}, h("a", { href: at(`#/device/${slug}`, { family }) }, slug), ` / ${family}`),
    h("div.heading", {}, h("h1", {}, size.shape),
      size.winner && h("a.button", { href: at("#/compare", { what: "sizes", device: slug, family, a: size.shape }) }, "Compare"),
      h("a.button", { href: again }, size.winner ? "Search further" : "Tune this size")),
    size.winner ? winning(size) : untuned(tuned),
    tuned && h("section", {}, h("h2", {}, "Configuration to use"), use(tuned), tuned && kernel && source(size, tuned, kernel)),
    size.winner && comparison(size),
    trials.length ? history(trials, signal) : h("section", {}, h("h2", {}, "Search"), hint(noTrials(size))),
    trials.length ? parameters(size) : null,
    trials.length ? parallel(trials, size.searched, size.parameters.map(({ parameter }) => parameter)) : null,
    trials.length ? list(trials) : null);
}

const noTrials = ({ winner }) =>
  winner ? "The trials of this search are not in this database: the winner came with a table." : "No trial was made here yet.";

const winning = (size) => {
  const { winner, is_imported: isImported } = size;
  return facts([
    ["Time", time(winner.time_ns)],
    ["Rate", rate(size, winner.time_ns)],
    ["Over default (95%)", gain(winner)],
    ["Verdict", winner.verdict],
    ["Samples", `${winner.samples}`],
    ["Checked", count(winner.verifications, "run")],
    ["Measured", [moment(winner.provenance.measured_at), isImported && h("small", {}, "elsewhere: it came with a table")].filter(Boolean)],
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

// What a program needs of it, to copy.
function source({ device, family, shape }, tuned, kernel) {
  const of = family === "gemm" ? "" : ` --family ${family}`;
  const python = [
    "from autotune.kernels import find_family", "from autotune.lookup import TuningTable", "",
    `problem = find_family("${family}").problem_type.parse("${shape}")`,
    `print(TuningTable.open().find("${device}", problem).configuration)`,
  ];
  const sizes = kernel.launches.map((l) => `${l.kernel}: global ${l.global_size.join(" × ")}, local ${l.local_size.join(" × ") || "as the driver chooses"}`);
  return h("details", {}, h("summary", {}, "Use it: configuration, Python, C, command line, kernel source"),
    snippet("Configuration", JSON.stringify(tuned.configuration, null, 2)),
    snippet("Python", python.join("\n")),
    snippet("C: a header with the whole table, and the kernels with host code", `autotune export --device ${device}${of} --format c --kernels autotune_c`),
    snippet("Command line", `autotune show --device ${device}${of} ${shape}`),
    snippet("Build options", kernel.build_options.join(" ") || "none"),
    hint(sizes.join("; ")),
    snippet("Kernel source", kernel.source));
}

function history(trials, signal) {
  const chart = new History(signal);
  chart.begin(trials.filter((trial) => trial.purpose !== "final"));
  const finals = trials.filter((trial) => trial.purpose === "final").length;
  return h("section", {}, h("h2", {}, "Search"), chart.element,
    finals > 0 && hint(`${count(finals, "measurement")} of the finals and of the checks after them are not drawn.`));
}

function list(trials) {
  const found = table("Trials", COLUMNS);
  found.element.classList.add("tall");
  const rows = paged(found, ({ number }) => number);
  rows.show(trials.map((trial, index) => ({ ...trial, number: index + 1 })));
  return h("details", {}, h("summary", {}, `All ${count(trials.length, "trial")}`), found.element, rows.more);
}

// Which parameters mattered: a bar for each, with its best and worst value.
function parameters(size) {
  const title = h("h2", {}, "Which parameters mattered");
  if (!size.parameters.length) return h("section", {}, title, hint("Too few trials to tell."));
  const told = size.parameters.filter(({ share }, index) => index === 0 || share >= LEAST_SHARE);
  const others = size.parameters.filter((share) => !told.includes(share)).map(({ parameter }) => parameter);
  const list = table("Parameters by their share of the spread of times", parameterColumns(size.searched), { class: "shares" });
  list.show(told, ({ parameter }) => parameter);
  return h("section", {}, title, list.element,
    others.length > 0 && h("p", {}, `Under 1%: ${others.join(", ")}.`),
    hint("Share of the variance of the rank of time that goes along with the parameter alone (adjusted correlation ratio; ranks, " +
      "so that one slow trial does not decide), " +
      "over the trials of this size that gave correct results. A search does not draw evenly and parameters act together: the shares " +
      "describe these trials and do not add up to 100%. Values are ordered by their median time."));
}

const parameterColumns = (searched) => [
  { name: "Parameter", kind: "head", cell: ({ parameter }) => [parameter, h("small", {}, parameter === "algorithm" ? "all trials" : `of ${searched}`)] },
  { name: "Share of the spread", cell: ({ share }) => bar(share, percent(share)) },
  { name: "Best value", cell: ({ levels }) => value(levels[0]) },
  { name: "Worst value", cell: ({ levels }) => value(levels.at(-1)) },
  { name: "Trials", kind: "number", cell: ({ trials }) => `${trials}` },
];

const value = (level) => [`${level.value}`, h("small", {}, `median ${time(level.median_ns)}, best ${time(level.best_ns)}`)];
