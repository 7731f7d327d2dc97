// Which view is shown: `#/device/nvidia-h200?family=gemm` is view, argument, query. A view is a function of
// (place, argument, query, signal); the signal ends what it has begun when another one is shown.

import { forgetToken, get, Refusal, token, told } from "./api.js";
import { deviceView } from "./device.js";
import { compareView } from "./compare.js";
import { devicesView } from "./devices.js";
import { connected, fill, h, hint } from "./dom.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";
import { sizeView } from "./size.js";
import { submitView } from "./submit.js";

const VIEWS = {
  devices: devicesView,
  device: deviceView,
  size: sizeView,
  jobs: jobsView,
  job: jobView,
  new: submitView,
  compare: compareView,
};
const SECTION = { "": "devices", device: "devices", size: "devices", compare: "devices", job: "jobs" };

let shown = new AbortController();

async function show() {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const view = name || "devices";
  const main = document.getElementById("main");
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.getAttribute("href") === `#/${SECTION[view] ?? view}`;
    isHere ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  const place = h("div.view", { "aria-busy": "true" }, h("p.hint.loading", {}, "Loading"));
  fill(main, place);
  window.scrollTo(0, 0);
  try {
    if (!Object.hasOwn(VIEWS, view)) throw new Refusal(404, "There is no such page.");
    await VIEWS[view](place, decodeURIComponent(rest.join("/")), new URLSearchParams(query ?? ""), signal);
    connected(false);
  } catch (error) {
    if (signal.aborted) return;
    const isMissing = error instanceof Refusal && error.status === 404;
    fill(place, h("h1", {}, isMissing ? "Not found" : "This cannot be shown"), h("p.error", { role: "alert" }, told(error)),
      h("p", {}, h("a", { href: "#/devices" }, "All devices"), " · ", h("a", { href: "#/jobs" }, "All jobs")),
      !isMissing && hint("Reload to try again."));
  }
  place.removeAttribute("aria-busy");
  document.title = [main.querySelector("h1")?.textContent, "autotune"].filter(Boolean).join(" · ");
}

addEventListener("hashchange", async () => {
  if (!location.hash.startsWith("#/")) return; // a place on this page
  const { name } = document.activeElement; // of a control that has changed the address, and keeps the focus
  await show();
  const again = name && document.querySelector(`main [name="${CSS.escape(name)}"]`);
  (again || document.getElementById("main")).focus({ preventScroll: true });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
document.getElementById("forget").hidden = !token();
document.getElementById("forget").addEventListener("click", forgetToken);
get("api/health").then(
  (health) => (document.getElementById("version").textContent = `autotune ${health.tool_version}`),
  () => connected(true),
);
show();
