// Questions to the service: the token, refusals, events that come as they happen, files.

const KEY = "autotune token";
export const token = () => sessionStorage.getItem(KEY) ?? "";

let asked = null;

export class Refusal extends Error {
  constructor(status, message, hint) {
    super(hint ? `${message} (${hint})` : message);
    this.status = status;
  }
}

// One dialog for all questions that were refused meanwhile. Resolves when a token has been typed.
function askForToken() {
  asked ??= new Promise((resolve) => {
    const dialog = document.getElementById("token");
    const field = document.getElementById("token-field");
    const reason = document.getElementById("token-reason");
    if (token()) reason.textContent = "The service does not know this token. Try another.";
    sessionStorage.removeItem(KEY);
    field.value = "";
    dialog.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, field.value.trim());
      document.getElementById("forget").hidden = false;
      asked = null;
      dialog.close();
      resolve();
    };
    dialog.oncancel = (event) => event.preventDefault();
    dialog.showModal();
  });
  return asked;
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
  location.reload();
}

async function request(path, options = {}) {
  for (;;) {
    const sent = token();
    const headers = { ...options.headers };
    if (sent) headers.Authorization = `Bearer ${sent}`;
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
    if (response.status === 401) {
      // Another question may have brought a new token meanwhile.
      if (sent === token()) await askForToken();
      options.signal?.throwIfAborted();
      continue;
    }
    if (response.ok) return response;
    const told = await response.json().catch(() => ({}));
    throw new Refusal(response.status, told.error?.message ?? `the service answers ${response.status}`, told.error?.hint);
  }
}

export function at(path, query = {}) {
  const filled = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  return filled.length ? `${path}?${new URLSearchParams(filled)}` : path;
}

export const sizeAddress = (device, family, shape) => at(`#/size/${device}`, { family, shape });

export const told = (error) => (error instanceof TypeError ? "The service does not answer." : error.message);

export const get = async (path, signal) => (await request(path, { signal })).json();

// All trials of a size, which come in parts.
export async function trialsOf(device, shape, family, signal) {
  const path = `api/devices/${encodeURIComponent(device)}/trials`;
  const found = [];
  for (let offset = 0; offset !== null; ) {
    const part = await get(at(path, { shape, family, offset }), signal);
    found.push(...part.trials);
    offset = part.next;
  }
  return found;
}

export async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return (await request(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

// Through a request, as a link could not carry the token.
export async function download(path) {
  const response = await request(path);
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "")?.[1] ?? "autotune";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// Server-sent events until `end`, read again after a loss.
export async function follow(path, signal, onEvent, onLoss) {
  for (let wait = 1; !signal.aborted; wait = Math.min(wait * 2, 15)) {
    try {
      const response = await request(path, { signal });
      for await (const [name, data] of events(response.body)) {
        wait = 1;
        onLoss(false);
        onEvent(name, data);
        if (name === "end") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refusal && error.status === 404) throw error;
    }
    onLoss(true);
    await pause(wait * 1000, signal);
  }
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const name = /^event: (.*)$/m.exec(block)?.[1];
      const data = /^data: (.*)$/m.exec(block)?.[1];
      if (name && data) yield [name, JSON.parse(data)];
    }
  }
}

export const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

// Again and again while the view is shown and the tab is visible. The first failure is the caller's.
export async function every(ms, signal, work, onLoss) {
  await work();
  (async () => {
    while (!signal.aborted) {
      await pause(ms, signal);
      if (signal.aborted || document.hidden) continue;
      try {
        await work();
        onLoss(false);
      } catch (error) {
        if (!signal.aborted) onLoss(true, error);
      }
    }
  })();
}
