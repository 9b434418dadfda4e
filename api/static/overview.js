// The overview: two lists from the API, kept current by the event stream.

const ENDED = new Set(["succeeded", "failed", "cancelled", "expired", "dead_letter"]);
const COLOURS = {
  succeeded: "good", failed: "bad", expired: "bad", dead_letter: "bad", cancelled: "quiet",
  running: "busy", still_installing: "busy", waiting: "quiet", queued: "quiet", cancelling: "busy",
  healthy: "good", unhealthy: "bad", offline: "bad", draining: "busy", pending: "busy",
};
const SHOWN_AFTER_THE_END_MS = 30_000;

const operations = new Map();
let temporalUi = ""; // under the host name of this page: the browser is signed in there and nowhere else
const byId = (id) => document.getElementById(id);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let step = 0;
  while (count >= 1000 && step < units.length - 1) { count /= 1000; step += 1; }
  return `${count < 10 && step ? count.toFixed(1) : Math.round(count)} ${units[step]}`;
}

function ago(moment) {
  if (!moment) return "never";
  const seconds = Math.max(0, (Date.now() - Date.parse(moment)) / 1000);
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
}

function stateCell(word) {
  const cell = element("td", undefined, "tight");
  cell.append(element("span", word.replaceAll("_", " "), `state ${COLOURS[word] ?? "quiet"}`));
  return cell;
}

function progressCell(operation) {
  const cell = element("td");
  const gauge = operation.progress;
  const ended = ENDED.has(operation.state);
  if (ended ? operation.state !== "succeeded" : !gauge.phase) return cell;
  const bar = element("progress");
  bar.max = 100;
  bar.value = gauge.percentage;
  bar.setAttribute("aria-label", `${Math.round(gauge.percentage)} per cent`);
  const parts = [`${Math.round(gauge.percentage)} %`];
  if (gauge.bytes_total) parts.push(`${bytes(gauge.bytes_done)} of ${bytes(gauge.bytes_total)}`);
  if (gauge.rate && !ended) parts.push(`${bytes(gauge.rate)}/s`);
  cell.append(bar, element("div", parts.join("  \u00B7  "), "quiet mono"));
  return cell;
}

function whatCell(operation) {
  const cell = element("td", undefined, "wide");
  cell.append(element("div", operation.message));
  if (operation.stalled) cell.append(element("div", "Stalled: no byte for a minute.", "bad"));
  if (operation.remedy && operation.state !== "running") cell.append(element("div", operation.remedy, "quiet"));
  return cell;
}

function runCell(operation) {
  const cell = element("td", undefined, "tight");
  if (operation.temporal_url) {
    const link = element("a", "history");
    const { pathname, search } = new URL(operation.temporal_url);
    link.href = temporalUi ? new URL(pathname + search, temporalUi) : operation.temporal_url;
    link.rel = "noreferrer";
    cell.append(link);
  }
  return cell;
}

function operationRow(operation) {
  const row = element("tr");
  row.title = operation.op_id;
  row.append(
    element("td", operation.node_name, "tight"),
    element("td", `${operation.backend} ${operation.version}`, "tight"),
    stateCell(operation.state),
    progressCell(operation),
    whatCell(operation),
    runCell(operation),
  );
  return row;
}

function showOperations() {
  const newestFirst = [...operations.values()].sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
  byId("operations").replaceChildren(...newestFirst.map(operationRow));
  byId("no-operations").hidden = newestFirst.length > 0;
}

function nodeRow(node) {
  const row = element("tr");
  const disk = node.available_disk == null ? "" : bytes(node.available_disk);
  row.append(
    element("td", node.name, "tight"),
    stateCell(node.status),
    element("td", ago(node.last_heartbeat), "tight"),
    element("td", disk, "tight"),
    element("td", String(node.open_operations)),
    element("td", node.id, "mono quiet tight"),
  );
  return row;
}

async function ask(path) {
  const response = await fetch(path, { headers: { Accept: "application/json" } });
  if (response.status === 401) location.reload();
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

async function askAll(path) {
  const items = [];
  for (let cursor = ""; cursor !== null;) {
    const page = await ask(`${path}?limit=1000&cursor=${encodeURIComponent(cursor)}`);
    items.push(...page.items);
    cursor = page.next_cursor;
  }
  return items;
}

async function readNodes() {
  const nodes = await askAll("/api/v1/nodes");
  byId("nodes").replaceChildren(...nodes.map(nodeRow));
  byId("no-nodes").hidden = nodes.length > 0;
}

async function readOperations() {
  const listed = await askAll("/api/v1/operations");
  const live = new Set(listed.map((operation) => operation.op_id));
  for (const [id, operation] of operations) {
    if (!live.has(id) && !ENDED.has(operation.state)) operations.delete(id);
  }
  for (const operation of listed) operations.set(operation.op_id, operation);
  showOperations();
}

async function readOperation(id) {
  const detail = await ask(`/api/v1/operations/${encodeURIComponent(id)}`);
  operations.set(id, detail);
  showOperations();
  if (detail.state === "succeeded" || detail.state === "cancelled") {
    setTimeout(() => { operations.delete(id); showOperations(); }, SHOWN_AFTER_THE_END_MS);
  }
}

function tell(words, colour) {
  byId("link").textContent = words;
  byId("link").className = `state ${colour}`;
}

function quietly(promise) {
  promise.catch((error) => tell(`no answer (${error.message})`, "bad"));
}

function follow() {
  const events = new EventSource("/api/v1/events");
  events.onopen = () => {
    tell("live", "good");
    quietly(Promise.all([readOperations(), readNodes()]));
  };
  events.onerror = () => tell("connection lost, trying again", "bad");
  events.addEventListener("operation", (event) => {
    quietly(readOperation(JSON.parse(event.data).op_id));
    quietly(readNodes());
  });
  events.addEventListener("reset", () => { // the database was restored to an older copy
    operations.clear();
    quietly(Promise.all([readOperations(), readNodes()]));
  });
  events.addEventListener("progress", (event) => {
    const tick = JSON.parse(event.data);
    const operation = operations.get(tick.op_id);
    if (!operation || ENDED.has(operation.state)) return;
    operation.progress = tick;
    showOperations();
  });
}

async function showLinks() {
  const links = await ask("/links.json");
  if (!links.temporal_ui) return;
  temporalUi = links.temporal_ui;
  byId("temporal").href = temporalUi;
  byId("temporal").hidden = false;
  showOperations();
}

async function signOut() {
  const response = await fetch("/api/v1/sign-out", { method: "POST" });
  if (!response.ok && response.status !== 401) throw new Error(`sign-out: ${response.status}`);
  location.reload();
}

byId("sign-out").addEventListener("click", () => quietly(signOut()));
follow();
quietly(showLinks());
setInterval(() => quietly(readNodes()), 5000);
