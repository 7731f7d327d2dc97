// Which parameters mattered: a bar for each, with its best and worst value.

import { h, hint, scroll } from "./dom.js";
import { percent, time } from "./format.js";

const LEAST = 0.01;

export function parameters(size) {
  const title = h("h2", {}, "Which parameters mattered");
  if (!size.parameters.length) return h("section", {}, title, hint("Too few trials to tell."));
  const told = size.parameters.filter(({ share }, index) => index === 0 || share >= LEAST);
  const others = size.parameters.filter((share) => !told.includes(share)).map(({ parameter }) => parameter);
  const head = h("tr", {}, h("th", { scope: "col" }, "Parameter"), h("th", { scope: "col" }, "Share of the spread"),
    h("th", { scope: "col" }, "Best value"), h("th", { scope: "col" }, "Worst value"), h("th.number", { scope: "col" }, "Trials"));
  const table = h("table.shares", {}, h("caption.hidden", {}, "Parameters by their share of the spread of times"),
    h("thead", {}, head), h("tbody", {}, told.map((share) => row(share, size.searched))));
  return h("section", {}, title, scroll("Parameters", table),
    others.length > 0 && h("p", {}, `Under 1%: ${others.join(", ")}.`),
    hint("Share of the variance of the rank of time that goes along with the parameter alone (adjusted correlation ratio; ranks, " +
      "so that one slow trial does not decide), " +
      "over the trials of this size that ran right. A search does not draw evenly and parameters act together: the shares " +
      "describe these trials and do not add up to 100%. Values are ordered by their median time."));
}

function row({ parameter, share, trials, levels }, searched) {
  const bar = h("span.bar", { "aria-hidden": "true" });
  bar.style.setProperty("width", `${(100 * share).toFixed(1)}%`);
  const of = parameter === "algorithm" ? "all trials" : `of ${searched}`;
  return h("tr", {}, h("th", { scope: "row" }, parameter, h("small", {}, of)),
    h("td", {}, h("div.share", {}, h("span.room", {}, bar), h("span", {}, percent(share)))),
    value(levels[0]), value(levels.at(-1)), h("td.number", {}, `${trials}`));
}

const value = (level) => h("td", {}, `${level.value}`, h("small", {}, `median ${time(level.median_ns)}, best ${time(level.best_ns)}`));
