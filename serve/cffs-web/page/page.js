// The page of a volume. It queries the interface below /api/v1 for everything, and inserts text only as
// text: names and contents in a volume are not trusted.

const get = (id) => document.getElementById(id);

// #TOKEN, or #TOKEN/PATH for the layout of a path. The token is kept in this tab, and removed from the
// address bar, so that it is not in the history.
let wanted = null;
if (location.hash.length > 1) {
  const [token, ...names] = location.hash.slice(1).split("/");
  sessionStorage.setItem("token", token);
  if (names.length > 0) wanted = `/${decodeURIComponent(names.join("/"))}`;
  history.replaceState(null, "", location.pathname);
}

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem("token")}`, ...options.headers };
  const answer = await fetch(path, { ...options, headers });
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, body.error ?? `the server answered ${answer.status}`);
  }
  return answer;
}

const askJson = async (path) => (await ask(path)).json();

// Formatting of figures.

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function size(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

const number = (count) => count.toLocaleString("en");
const counted = (count, noun, nouns = `${noun}s`) => `${number(count)} ${count === 1 ? noun : nouns}`;
const percent = (part) => (part === null || part === undefined ? "–" : `${part.toFixed(1)} %`);
const ratio = (value) => (value === null ? "–" : value >= 10 ? value.toFixed(0) : value.toPrecision(2));
const perSecond = (count, seconds) => (seconds > 0 ? count / seconds : 0);
const words = (name) => name.replaceAll("_", " ");

function show(id, text) {
  // A screen reader announces changes, so elements change only if needed.
  if (get(id).textContent !== text) get(id).textContent = text;
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// A command line. A word is broken only if it is wider than the page.
function showLine(at, line) {
  if (at.textContent === line) return;
  const words = line.split(" ").map((word) => element("span", word, { class: "word" }));
  at.replaceChildren(...words.flatMap((word, number) => (number === 0 ? [word] : [" ", word])));
}

// A box that scrolls horizontally if its table is wider than the page.
function scrolling(name, ...children) {
  const box = element("div", undefined, { class: "scroll", role: "group", "aria-label": name });
  box.append(...children);
  return box;
}

// Boxes that scroll can be focused by keyboard; others are skipped.
function reachScrolling() {
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

function table(heads, rows) {
  const made = element("table");
  const head = made.createTHead().insertRow();
  for (const text of heads) head.append(element("th", text, { scope: "col" }));
  const body = made.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    for (const text of cells) row.insertCell().textContent = text;
  }
  return made;
}

// The figures in every snapshot.

function showState({ state, volume, server }) {
  show("label", volume.label || "Volume without a label");
  document.title = `${volume.label || "C-FFS"}: ${state.word}`;
  const bad = ["latched", "error seen", "damaged"].includes(state.word);
  get("state").className = `badge ${bad ? "bad" : state.word === "read-only" ? "warn" : "good"}`;
  show("state", state.word);
  get("why").hidden = !state.why;
  show("why", state.why ?? "");
}

function showTiles({ volume, stats, now, hour }) {
  show("now-ratio", ratio(now.requests_per_operation));
  show("hour-ratio", ratio(hour.requests_per_operation));
  show("hour-name", hour.seconds >= 3590 ? "last hour" : `last ${counted(Math.ceil(hour.seconds / 60), "minute")}`);
  const rate = perSecond(now.operations, now.seconds);
  const requests = perSecond(now.device_requests, now.seconds);
  show("now-note", now.operations === 0
    ? "Idle."
    : `${counted(Math.round(rate), "operation")} and ${requests.toFixed(1)} requests per second`);
  const used = volume.size_bytes - volume.free_bytes;
  show("space", `${size(volume.free_bytes)} free`);
  get("space-bar").value = used / volume.size_bytes;
  const reserve = volume.reserve ? `, ${size(volume.reserve.bytes)} in reserve` : "";
  const whole = `${size(used)} of ${size(volume.size_bytes)} used`;
  show("space-note", `${whole}${reserve}, ${counted(volume.inodes, "inode")}`);
  show("hits", percent(hour.hit_percent));
  show("hits-note", `${percent(stats.cache.hit_percent)} since the volume was opened`);
  show("device", `${size(perSecond(now.read_bytes + now.written_bytes, now.seconds))}/s`);
  const device = stats.device;
  const [reads, writes] = [counted(device.reads, "read"), counted(device.writes, "write")];
  show("device-note", `${reads}, ${writes}, ${counted(device.syncs, "flush", "flushes")}`);
  show("epochs", number(stats.epochs.written));
  const { forced, checkpoints } = stats.epochs;
  show("epochs-note", `${number(forced)} forced, ${counted(checkpoints, "checkpoint")}`);
  show("journal", stats.journal ? stats.journal.state : "none");
  show("journal-note", stats.journal
    ? `${counted(stats.journal.records, "record")}, ${counted(stats.journal.flushes, "flush", "flushes")}`
    : "Add one with cffs tune --journal: an fsync then takes one write.");
  showCompression(stats.compression);
  show("memory", size(stats.memory.resident_bytes ?? 0));
  show("memory-note", `${size(stats.memory.dirty_bytes)} to be written`);
}

function showCompression(compression) {
  if (!compression) {
    show("compression", "none");
    show("compression-note", "Only for volumes made with cffs mkfs --compress.");
    return;
  }
  const { ratio: saved, clusters, clusters_written: written } = compression;
  const [before, after] = [compression.compressed_bytes, compression.compressed_to_bytes];
  show("compression", saved === null ? "–" : `${saved.toFixed(2)} to 1`);
  show("compression-note", `${size(before)} took ${size(after)}; ${counted(written, "cluster")} written, `
    + `${clusters === null ? "?" : number(clusters)} on the volume`);
}

function showTables({ volume, server, stats }) {
  const kinds = Object.entries(stats.memory).filter(([, kind]) => typeof kind === "object" && kind);
  get("t-memory").replaceChildren(table(["kind", "now", "limit"], kinds.map(([name, kind]) =>
    [words(name), size(kind.bytes), kind.limit_bytes ? size(kind.limit_bytes) : "–"])));
  const counts = (section) => Object.entries(section).map(([name, count]) => [words(name), number(count)]);
  get("t-calls").replaceChildren(table(["operation", "count"], counts(stats.calls)));
  const requests = counts(stats.requests);
  get("t-requests").replaceChildren(requests.length > 0
    ? table(["request", "count"], requests)
    : element("p", "None: the volume is not mounted, or was not used.", { class: "empty" }));
  const facts = [["uuid", volume.uuid], ["features", volume.features.join(", ")],
    ["placement", volume.policy], ["state on the device", volume.state],
    ["generation", number(volume.generation)]];
  if (server) {
    facts.push(["mount", server.mount_type], ["transport", server.transport],
      ["access times", server.fixed_options?.atime]);
  }
  get("t-volume").replaceChildren(table(["property", "value"], facts));
}

// The chart of the last hour.

let points = [];

function showChart() {
  const seen = points.filter((point) => point.requests_per_operation !== null);
  const chart = get("chart");
  if (seen.length < 2) return;
  const most = Math.max(...seen.map((point) => point.requests_per_operation)) || 1;
  const end = seen.at(-1).at;
  const start = Math.min(seen[0].at, end - 60);
  const x = (point) => (((point.at - start) / (end - start)) * 720).toFixed(1);
  const y = (point) => (116 - (point.requests_per_operation / most) * 110).toFixed(1);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", seen.map((point, at) => `${at === 0 ? "M" : "L"}${x(point)} ${y(point)}`).join(""));
  chart.replaceChildren(path);
  chart.removeAttribute("hidden");
  const last = seen.at(-1).requests_per_operation;
  chart.setAttribute("aria-label", `At most ${ratio(most)}, lately ${ratio(last)} requests per operation`);
  show("chart-note", `From 0 to ${ratio(most)}; lately ${ratio(last)}. Lower is better.`);
}

// Actions, each with its command line and its progress.

let mayRun = false;
const path = () => get("path").value;
const isPlain = (word) => /^[\w./+,:@%][\w./+,:@%-]*$/.test(word);
const quoted = (word) => (isPlain(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
// The arguments of commands for the volume and its image: paths with the token for full control, else words.
let isMounted = true;
let word = "DIR";
let image = "IMAGE";
// For a served image, commands other than sync and scrub require that the server is stopped.
const alone = (command) => (isMounted ? command : `${command}  # after cffs serve --stop ${word}`);

// The effects of actions. Those that move or discard data need confirmation.
const groups = { none: "Change nothing", data: "Move or discard data", settings: "Change settings of the volume" };

const actions = [
  { name: "sync", group: "none", title: "Sync", what: "Makes everything durable.", command: () => `cffs sync ${word}` },
  { name: "fsck", group: "none", title: "Check",
    what: "Reads all metadata while the volume is used, and repairs nothing.",
    command: () => alone(`cffs fsck ${isMounted ? "--online" : "-n"} ${word}`) },
  { name: "scrub", group: "none", title: "Scrub", what: "Verifies all checksums, at 50 MiB per second.",
    command: () => `cffs scrub ${word}`, stop: "scrub-stop" },
  { name: "regroup", group: "data", title: "Regroup", what: "Moves scattered files of the whole volume together.",
    ask: ["Regroup the whole volume?", "It reads and rewrites scattered files, and keeps the device busy meanwhile. "
      + "It can be stopped.", "Regroup"],
    command: () => alone(`cffs regroup ${word}`), stop: "regroup-stop" },
  { name: "trim", group: "data", title: "Trim", what: "Tells the device which space is free.",
    ask: ["Trim the free space?", "The device discards what deleted files have left in it: no program can recover "
      + "that afterwards.", "Trim"],
    command: () => alone(`cffs trim ${word}`) },
  { name: "label", group: "settings", title: "Set label", what: "Names the volume.", input: "Label",
    now: (volume) => volume.label,
    command: (value) => alone(`cffs tune --label ${quoted(value)} ${word}`),
    body: (value) => ({ label: value }) },
  { name: "errors", group: "settings", title: "Set policy", what: "Decides what a mount does on corruption.",
    input: "On corruption", now: (volume) => volume.errors, choices: { continue: "continue",
      "remount-ro": "remount read-only", default: "default (continue)" },
    command: (value) => alone(`cffs tune --errors ${value || "continue"} ${word}`),
    body: (value) => ({ errors: value }) },
  { name: "reserve", group: "settings", title: "Set reserve", what: "Keeps the last part of the space for root.",
    input: "Reserve in MiB", kind: "number", now: (volume) => (volume.reserve?.bytes ?? 0) / 2 ** 20,
    command: (value) => alone(`cffs tune --reserve ${reserveBytes(value)} ${word}`),
    body: (value) => ({ reserve_bytes: reserveBytes(value) }) },
];

function reserveBytes(value) {
  return Math.round(Math.max(0, Number(value) || 0) * 2 ** 20);
}

// Begins an action; on failure returns the reason, which its caller shows.
async function act(name, body = {}) {
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", headers, body: JSON.stringify(body) };
  try {
    const { command } = await (await ask(`/api/v1/actions/${name}`, options)).json();
    show("said", `Begun, as by: ${command}`);
    return null;
  } catch (error) {
    show("said", "");
    return error.message;
  }
}

// The same for an action with a button in the list of actions.
async function press(action) {
  if (action.ask) {
    const [title, what, yes] = action.ask;
    if (!(await confirmed(title, what, yes, action.command()))) return;
  }
  await actAndSay(action.name, action.body?.(action.field.value), action);
}

async function actAndSay(name, body, action) {
  const refused = await act(name, body);
  if (refused !== null) show("said", `Not done: ${refused}`);
  else if (action) action.edited = false;
}

function makeActions() {
  const item = (action) => {
    const item = element("li", undefined, { class: "action", id: `action-${action.name}` });
    const button = element("button", action.title, { type: "button" });
    if (action.group !== "none") button.classList.add("grave");
    const text = element("div", undefined, { class: "what" });
    text.append(element("span", action.what));
    const code = element("code");
    let input = null;
    if (action.input) {
      const id = `in-${action.name}`;
      input = action.choices ? element("select", undefined, { id })
        : element("input", undefined, { id, type: action.kind ?? "text", maxlength: 64, autocomplete: "off" });
      if (action.kind === "number") Object.assign(input, { min: 0, step: "any", value: 0 });
      for (const [value, name] of Object.entries(action.choices ?? {})) {
        input.append(element("option", name, { value }));
      }
      input.addEventListener("input", () => {
        action.edited = true;
        showLine(code, action.command(input.value));
      });
      const row = element("div", undefined, { class: "row" });
      row.append(element("label", action.input, { for: input.id }), input);
      text.append(row);
    }
    button.addEventListener("click", () => press(action));
    const how = element("div", undefined, { class: "how" });
    const bar = element("progress", undefined, { "aria-label": `${action.title}: progress` });
    bar.hidden = true;
    const state = element("span", "", { class: "note" });
    how.append(code, element("br"), state, bar);
    showLine(code, action.command(input?.value ?? ""));
    Object.assign(action, { button, bar, state, code, field: input });
    if (action.stop) {
      action.stopButton = element("button", "Stop", { type: "button", class: "quiet" });
      action.stopButton.hidden = true;
      action.stopButton.addEventListener("click", () => actAndSay(action.stop));
      how.append(" ", action.stopButton);
    }
    item.append(button, text, how);
    return item;
  };
  get("actions").replaceChildren(...Object.entries(groups).flatMap(([group, title]) => {
    const list = element("ul", undefined, { "aria-label": title });
    list.append(...actions.filter((action) => action.group === group).map(item));
    return [element("h3", title), list];
  }));
}

// NFS exports and clients. The list is rebuilt only if it has changed, so that it keeps the focus.

const exportCommand = (option, value) => `cffs serve --export-${option} ${quoted(value)} ${word}`;

function confirmed(title, what, yes, command, no = "Cancel") {
  const dialog = get("confirm");
  show("confirm-no", no);
  show("confirm-title", title);
  show("confirm-what", what);
  show("confirm-yes", yes);
  showLine(get("confirm-command"), command);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
  });
}

async function removeExport(path) {
  const what = "Clients lose the files that they have open through it; answered changes stay durable.";
  const command = exportCommand("remove", path);
  if (!(await confirmed(`Remove the export ${path}?`, what, "Remove it", command, "Keep it"))) return;
  show("export-error", (await act("export-remove", { path })) ?? "");
  get("export").focus();
}

let shownExports = "";

function showNfs(nfs) {
  get("nfs-none").hidden = nfs !== null;
  get("nfs").hidden = nfs === null;
  if (nfs === null) return;
  const exports = JSON.stringify([nfs.exports, mayRun]);
  if (exports !== shownExports) {
    shownExports = exports;
    get("exports-none").hidden = nfs.exports.length > 0;
    get("exports").replaceChildren(...nfs.exports.map((one) => {
      const item = element("li");
      const what = element("div", undefined, { class: "what" });
      const rights = one.read_only ? "read-only" : "read-write";
      what.append(element("code", one.export), element("br"),
        element("span", `for ${one.clients.join(", ")}, ${rights}`, { class: "note" }));
      const button = element("button", "Remove", { type: "button", class: "quiet",
        "aria-label": `Remove the export ${one.path}` });
      button.disabled = !mayRun;
      button.addEventListener("click", () => removeExport(one.path));
      item.append(what, button);
      return item;
    }));
  }
  showLine(get("export-options"), nfs.exports.length === 0 ? "none, and no --nfs"
    : nfs.exports.map((one) => `--export ${quoted(one.export)}`).join(" "));
  get("export-form").querySelector("button").disabled = !mayRun;
  get("clients-none").hidden = nfs.clients.length > 0;
  const rows = nfs.clients.map((client) => [client.address, number(client.connections)]);
  get("clients").replaceChildren(...(rows.length > 0 ? [table(["address", "connections"], rows)] : []));
  showExportCommand();
}

function showExportCommand() {
  showLine(get("export-command"), get("export").value === ""
    ? `cffs serve --export-add PATH[:OPTIONS] ${word}` : exportCommand("add", get("export").value));
}

// Snapshots. They are queried when the page is opened and after each change: the device may be remote.

async function showSnapshots() {
  const { snapshots } = await askJson("/api/v1/snapshots");
  get("snapshots-none").hidden = snapshots.length > 0;
  get("snapshot-list").replaceChildren(...snapshots.map((one) => {
    const item = element("li");
    const what = element("div", undefined, { class: "what" });
    const made = new Date(one.made * 1000).toLocaleString("en-GB");
    what.append(element("code", one.name), element("br"),
      element("span", one.for_clone ? `${made}, for a clone` : made, { class: "note" }));
    item.append(what);
    // Snapshots kept for a clone are removed with it.
    if (!one.for_clone) {
      const button = element("button", "Remove", { type: "button", class: "quiet",
        "aria-label": `Remove the snapshot ${one.name}` });
      button.addEventListener("click", () => removeSnapshot(one.name));
      item.append(button);
    }
    return item;
  }));
}

async function changeSnapshots(action, name) {
  const refused = await act(action, { name });
  show("snapshot-error", refused === null ? "" : `Not done: ${refused}`);
  await showSnapshots().catch((error) => show("snapshot-error", error.message));
  return refused === null;
}

async function removeSnapshot(name) {
  const what = "Data that only this version has is deleted from the store.";
  const command = `cffs snapshot rm ${version(name)}`;
  if (!(await confirmed(`Remove the snapshot ${name}?`, what, "Remove it", command, "Keep it"))) return;
  await changeSnapshots("snapshot-remove", name);
  get("snapshot").focus();
}

function showSnapshotCommand() {
  const name = version(get("snapshot").value || "NAME");
  showLine(get("snapshot-command"), `cffs sync ${word} && cffs snapshot create ${name}`);
}

const version = (name) => quoted(`${image}@${name}`);

// The progress of a job, as [done, total, words].
const progress = {
  sync: () => [0, 0, "making changes durable"],
  trim: (job) => [job.done_bytes, job.total_bytes, `${size(job.trimmed_bytes)} discarded`],
  scrub: (job) => [job.inodes, job.inodes_total,
    `${number(job.inodes)} of ${counted(job.inodes_total, "inode")}, ${counted(job.problem_count, "problem")}`],
  fsck: (job) => [job.done, job.total,
    `${job.pass}: ${number(job.done)} of ${number(job.total)} ${job.unit}`],
  regroup: (job) => [0, 0, `${counted(job.files, "file")} examined, ${number(job.moved_files)} moved`],
};

const inDirectories = (count) => counted(count, "directory", "directories");
const inFull = (problem) => `${problem.code} ${problem.message}`;

const results = {
  sync: () => "Everything is durable.",
  trim: (job) => `${size(job.trimmed_bytes)} discarded.`,
  scrub: (job) => job.problem_count === 0 ? `${counted(job.inodes, "inode")}, no problem.`
    : `${counted(job.problem_count, "problem")}: ${job.problems.slice(0, 3).join("; ")}`,
  fsck: ({ report }) => !report ? "" : report.problem_count === 0
    ? `${counted(report.inodes, "inode")} in ${inDirectories(report.directories)}, no problem.`
    : `${counted(report.problem_count, "problem")}: ${report.problems.slice(0, 3).map(inFull).join("; ")}`,
  regroup: (job) => job.moved_files === 0 ? `${counted(job.files, "file")}, none scattered.`
    : `${counted(job.moved_files, "file")} moved: `
      + `${counted(job.accesses_before, "access", "accesses")} became ${number(job.accesses_after)}.`,
};

let jobs = {};

function showJobs(latest) {
  jobs = latest;
  for (const action of actions) {
    const job = jobs[action.name];
    action.button.disabled = !mayRun || job?.stage === "running";
    if (!job) continue;
    const running = job.stage === "running";
    action.bar.hidden = !running;
    if (action.stopButton) action.stopButton.hidden = !running || !mayRun;
    let text = "";
    if (running) {
      const [done, total, detail] = progress[action.name](job);
      text = detail;
      if (total > 0) {
        action.bar.max = total;
        action.bar.value = done;
      } else {
        action.bar.removeAttribute("value");
      }
    } else if (job.failure) {
      text = `Failed: ${job.failure}`;
    } else if (job.stage !== "never") {
      text = `${job.stage === "stopped" ? "Stopped. " : ""}${results[action.name](job)}`;
    }
    if (action.state.textContent !== text) action.state.textContent = text;
  }
}

// The layout as a picture, once, or before and after a regrouping.

async function lookAt(where) {
  const query = `path=${encodeURIComponent(where)}`;
  const found = await askJson(`/api/v1/layout?${query}`);
  if (found.file) return { file: found.file };
  const picture = await (await ask(`/api/v1/layout.svg?${query}`)).blob();
  return { tree: found.tree, url: URL.createObjectURL(picture) };
}

function describe({ totals }) {
  const [places, alone] = [counted(totals.places, "place"), number(totals.scattered_files)];
  return `${counted(totals.files, "file")} in ${places}, ${alone} alone: `
    + `a cold scan takes ${counted(totals.requests, "request")} and reads ${size(totals.read_bytes)}`;
}

// A sentence about the clusters of a tree; null without clusters.
function describeClusters({ clusters }) {
  if (clusters.clusters === 0) return null;
  const { bytes, stored_bytes: stored, dead_bytes: dead, shared_bytes: shared } = clusters;
  const unknown = clusters.incomplete === 0 ? ""
    : `, not counting ${counted(clusters.incomplete, "cluster")} that other files also use`;
  return `${size(bytes)} of contents are in ${counted(clusters.clusters, "cluster")} of ${size(stored)}: `
    + `${(bytes / stored).toFixed(2)} to 1. In these, ${size(shared)} are shared, and ${size(dead)} are dead${unknown}.`;
}

function drawn(heading, found) {
  const box = element("div");
  box.append(element("h3", heading));
  if (found.file) {
    const file = found.file;
    const where = file.contents_in_inode ? "contents in the inode"
      : `${counted(file.pieces, "piece")} in ${counted(file.segment_count, "segment")}`;
    box.append(element("p", `Inode ${file.inode}, ${where}; `
      + `segments shared with ${counted(file.files_in_the_same_segments, "other file")}. `
      + (file.clusters ? `Compressed ${file.clusters.ratio?.toFixed(2) ?? "?"} to 1, together with `
        + `${counted(file.clusters.parts_of_other_files, "part")} of other files. ` : "")
      + `A cold read takes ${counted(file.cold_requests, "request")}.`));
    const rows = file.contents.map((piece) =>
      [piece.offset_bytes, piece.fragment, piece.fragments].map(number));
    if (rows.length > 0) {
      box.append(scrolling("Pieces of the file", table(["offset", "fragment", "fragments"], rows)));
    }
    return box;
  }
  box.append(element("p", describe(found.tree)));
  const compressed = describeClusters(found.tree);
  if (compressed !== null) box.append(element("p", compressed));
  const alt = `Layout on the device. ${describe(found.tree)}`;
  box.append(scrolling(`Picture: ${heading}`, element("img", undefined, { src: found.url, alt })));
  const more = element("details");
  more.append(element("summary", "As a table"));
  const rows = found.tree.directories.map((dir) => [dir.path || ".", number(dir.files), size(dir.bytes),
    number(dir.places), number(dir.scattered_files), number(dir.requests)]);
  const heads = ["directory", "files", "size", "places", "alone", "requests"];
  more.append(scrolling(`Directories: ${heading}`, table(heads, rows)));
  more.addEventListener("toggle", reachScrolling);
  box.append(more);
  return box;
}

function showLayout(...boxes) {
  for (const image of get("layout").querySelectorAll("img")) URL.revokeObjectURL(image.src);
  const pictures = element("div", undefined, { class: "pictures" });
  pictures.append(...boxes);
  get("layout").replaceChildren(pictures);
  reachScrolling();
}

async function layoutOnce() {
  showLayout(element("p", "Analysing…", { class: "empty" }));
  try {
    showLayout(drawn(path(), await lookAt(path())));
  } catch (error) {
    showLayout(element("p", `It cannot be shown: ${error.message}`, { class: "error" }));
  }
}

async function layoutAroundRegroup() {
  const where = path();
  const what = "It reads and rewrites scattered files below this directory, and keeps the device busy meanwhile.";
  if (!(await confirmed(`Regroup ${where}?`, what, "Regroup", regroupCommand(where)))) return;
  showLayout(element("p", "Analysing, regrouping, and analysing again…", { class: "empty" }));
  try {
    const before = await lookAt(where);
    if (before.file) throw new Error("regroup takes a directory");
    const refused = await act("regroup", { path: where });
    if (refused !== null) throw new Error(refused);
    // Longer than the interval between snapshots.
    do await new Promise((done) => setTimeout(done, 1500));
    while ((await askJson("/api/v1/status")).jobs.regroup.stage === "running");
    showLayout(drawn(`${where} before`, before), drawn(`${where} after`, await lookAt(where)));
  } catch (error) {
    showLayout(element("p", `It cannot be compared: ${error.message}`, { class: "error" }));
  }
}

// The log.

let logNewest = -1;

async function showLog() {
  const query = new URLSearchParams({ level: get("level").value, text: get("log-text").value, count: 200 });
  const { messages } = await askJson(`/api/v1/log?${query}`);
  const items = messages.reverse().map((message) => {
    const item = element("li", undefined, { class: message.level });
    const at = new Date(message.at * 1000);
    item.append(element("time", at.toLocaleTimeString("en-GB"), { datetime: at.toISOString() }), " ",
      element("span", message.level, { class: "level" }), " ", message.text);
    return item;
  });
  get("log").replaceChildren(...items);
  get("log-empty").hidden = items.length > 0;
}

// Signing in, and the stream of snapshots.

function showSnapshot(snapshot) {
  isMounted = snapshot.target === "DIR";
  if (!mayRun) word = snapshot.target;
  for (const action of actions) {
    // The current state, until the user enters another value: submitting without a change has no effect.
    const field = action.field;
    if (field && !action.edited) {
      const now = String(action.now(snapshot.volume));
      if (field.value !== now) field.value = now;
    }
    showLine(action.code, action.command(action.field?.value ?? ""));
  }
  showState(snapshot);
  showTiles(snapshot);
  showTables(snapshot);
  showJobs(snapshot.jobs);
  showNfs(snapshot.nfs);
  showLayoutCommand();
  reachScrolling();
  if (snapshot.log_newest !== logNewest) {
    logNewest = snapshot.log_newest;
    showLog().catch(() => { logNewest = -1; });
  }
}

async function refreshHistory() {
  points = await askJson("/api/v1/history");
  showChart();
}

async function readEvents() {
  const answer = await ask("/api/v1/events");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "));
      if (data) showSnapshot(JSON.parse(data.slice(6)));
    }
    get("lost").hidden = true;
  }
}

function signIn(why) {
  get("main").hidden = true;
  get("sign-out").hidden = true;
  get("sign-in").hidden = false;
  show("state", "locked");
  show("sign-in-error", why ?? "");
  get("token").focus();
}

async function follow() {
  get("sign-in").hidden = true;
  for (;;) {
    try {
      const first = await askJson("/api/v1/status");
      const mine = await askJson("/api/v1/role");
      mayRun = mine.role === "run";
      if (mayRun) {
        word = quoted(mine.target);
        image = mine.image;
      }
      showSnapshot(first);
      get("look-only").hidden = mayRun;
      for (const button of get("layout-form").querySelectorAll("button")) button.disabled = !mayRun;
      showJobs(jobs);
      showNfs(first.nfs);
      get("main").hidden = false;
      get("sign-out").hidden = false;
      get("snapshots").hidden = !first.has_snapshots || !mayRun;
      if (first.has_snapshots && mayRun) {
        showSnapshotCommand();
        showSnapshots().catch((error) => show("snapshot-error", error.message));
      }
      await refreshHistory();
      if (wanted !== null && mayRun) {
        get("path").value = wanted;
        wanted = null;
        showLayoutCommand();
        layoutOnce();
      }
      await readEvents();
    } catch (error) {
      if (error.status === 401) return signIn("Wrong token for this volume.");
      show("state", "not reached");
      get("state").className = "badge bad";
      show("lost", "The server does not answer: it was unmounted or stopped, or the network is down. Trying again.");
      get("lost").hidden = false;
    }
    await new Promise((done) => setTimeout(done, 2000));
  }
}

makeActions();
get("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", get("token").value.trim());
  get("token").value = "";
  follow();
});
get("sign-out").addEventListener("click", () => {
  sessionStorage.removeItem("token");
  location.reload();
});
get("export-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const refused = await act("export-add", { export: get("export").value.trim() });
  show("export-error", refused === null ? "" : `Not exported: ${refused}`);
  if (refused === null) get("export").value = "";
  showExportCommand();
});
get("snapshot-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (await changeSnapshots("snapshot-create", get("snapshot").value)) get("snapshot").value = "";
  showSnapshotCommand();
});
get("snapshot").addEventListener("input", showSnapshotCommand);
get("export").addEventListener("input", showExportCommand);
get("layout-form").addEventListener("submit", (event) => { event.preventDefault(); layoutOnce(); });
get("regroup-here").addEventListener("click", layoutAroundRegroup);

function showLayoutCommand() {
  showLine(get("layout-command"), `cffs layout ${tree(path())} --svg FILE`);
}

// A directory of the volume, as an argument of commands.
function tree(where) {
  const at = where.replace(/^\/+|\/+$/g, "");
  if (at === "") return word;
  return isMounted ? `${word.replace(/\/$/, "")}/${quoted(at)}` : `${word} ${quoted(`/${at}`)}`;
}

const regroupCommand = (where) => alone(`cffs regroup ${tree(where)}`);

get("path").addEventListener("input", showLayoutCommand);
addEventListener("resize", reachScrolling);
for (const more of document.querySelectorAll("details")) more.addEventListener("toggle", reachScrolling);
get("log-form").addEventListener("submit", (event) => event.preventDefault());
get("log-form").addEventListener("input", () => showLog().catch(() => {}));
setInterval(() => { if (!get("main").hidden) refreshHistory().catch(() => {}); }, 10000);
if (sessionStorage.getItem("token")) follow(); else signIn();
