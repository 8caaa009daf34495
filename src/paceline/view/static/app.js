// Shared by all pages: light and dark themes, tooltips, tables, charts. Uses no framework, and loads nothing from other hosts.
"use strict";

// -- light and dark ---------------------------------------------------------------------------------------------------

const root = document.documentElement;
const isDark = () =>
  root.dataset.theme === "dark" || (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);

document.getElementById("theme")?.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("paceline-theme", root.dataset.theme); } catch { /* no storage: the choice lasts until the page is closed */ }
  document.dispatchEvent(new Event("themechange"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));

const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim() || name;

// On a phone the pages of a record are one line to scroll: the current one must be visible.
document.querySelector(".side [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });

// -- how a number was measured ----------------------------------------------------------------------------------------

const tip = document.createElement("div");
tip.className = "tip";
tip.id = "tip";
tip.setAttribute("role", "tooltip");
tip.hidden = true;
document.body.append(tip);
let tipped = null;

function explained(target) {
  const direct = target.closest?.("[data-how]");
  if (direct) return direct;
  const cell = target.closest?.("td");
  return cell?.closest("table")?.querySelectorAll("thead th")[cell.cellIndex]?.closest("[data-how]") ?? null;
}

function showTip(target) {
  const about = explained(target);
  if (!about) return hideTip();
  const at = (target.closest("td") ?? about).getBoundingClientRect();
  tip.textContent = about.dataset.how;
  tip.hidden = false;
  const own = tip.getBoundingClientRect();
  const above = at.top - own.height - 8;
  tip.style.left = Math.max(8, Math.min(at.left, innerWidth - own.width - 8)) + "px";
  tip.style.top = (above > 8 ? above : at.bottom + 8) + "px";
  tipped?.removeAttribute("aria-describedby");
  tipped = about;
  about.setAttribute("aria-describedby", "tip");
}

// Words beside the mouse, about what a chart has there.
function tipAt(words, x, y) {
  tip.textContent = words;
  tip.hidden = false;
  const own = tip.getBoundingClientRect();
  tip.style.left = (x + own.width + 24 < innerWidth ? x + 14 : Math.max(8, x - own.width - 14)) + "px";
  tip.style.top = Math.min(Math.max(8, y - own.height - 10), innerHeight - own.height - 8) + "px";
}

function hideTip() {
  tip.hidden = true;
  tipped?.removeAttribute("aria-describedby");
  tipped = null;
}

let waiting = 0;
document.addEventListener("mouseover", (event) => {
  clearTimeout(waiting);
  waiting = setTimeout(() => showTip(event.target), 250);
});
document.addEventListener("focusin", (event) => showTip(event.target));
document.addEventListener("focusout", hideTip);
document.addEventListener("click", (event) => { if (event.target.closest(".how")) showTip(event.target); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
document.addEventListener("scroll", hideTip, { passive: true, capture: true });

// -- one tab stop for a group: arrow keys lead on ----------------------------------------------------------------------

const ROVING = "[data-rove] [data-how], thead .sort, tbody a[href], tbody input, tbody button";
const groupOf = (item) => item.closest("[data-rove], thead, tbody");

function startRoving(within = document) {
  const groups = new Map();
  for (const item of within.querySelectorAll(ROVING)) {
    item.tabIndex = -1;
    if (item.offsetParent === null) continue; // a row that the filter hides
    if (!groups.has(groupOf(item))) groups.set(groupOf(item), item);
  }
  for (const first of groups.values()) first.tabIndex = 0;
}

document.addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], item = event.target.closest?.(ROVING);
  if (!by || !item) return;
  const items = [...groupOf(item).querySelectorAll(ROVING)].filter((each) => each === item || each.offsetParent !== null);
  const next = items[items.indexOf(item) + by];
  event.preventDefault();
  if (!next) return;
  item.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

// -- tables -----------------------------------------------------------------------------------------------------------

function valueOf(row, index) {
  const cell = row.cells[index];
  if (cell.dataset.v !== undefined) return cell.dataset.v === "" ? null : Number(cell.dataset.v);
  const text = cell.textContent.trim();
  return text === "–" ? null : text.toLowerCase();
}

function sortRows(table, index, descending) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [valueOf(row, index), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // rows without a value come last in both directions
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    return descending ? -order : order;
  });
  body.append(...rows.map(([, row]) => row));
  for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[index].setAttribute("aria-sort", descending ? "descending" : "ascending");
}

function filterRows(grid, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean), table = grid.querySelector("table");
  const places = Object.fromEntries([...table.tHead.rows[0].cells].map((cell) => [cell.dataset.key, cell.cellIndex]));
  const only = [...grid.querySelectorAll("select[data-key]")].filter((each) => each.value).map((each) => [places[each.dataset.key], each.value]);
  let count = 0;
  for (const row of grid.querySelectorAll("tbody tr")) {
    const content = (row.textContent + " " + [...row.querySelectorAll("[title]")].map((cell) => cell.title).join(" ")).toLowerCase();
    row.hidden = !words.every((word) => content.includes(word)) || !only.every(([place, value]) => row.cells[place].dataset.is === value);
    count += !row.hidden;
  }
  grid.querySelector(".count").textContent = `${count.toLocaleString("en")} row${count === 1 ? "" : "s"}`;
  startRoving(grid);
}

// The server sorts and filters rows that are not on the page: fetch the page again, and replace this table.
async function fetchGrid(grid, address) {
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(grid.id);
  if (!fresh) return;
  const typing = grid.contains(document.activeElement) && document.activeElement.name === "q";
  const typed = grid.querySelector("[name=q]")?.value;
  grid.replaceWith(document.adoptNode(fresh));
  startGrid(fresh);
  if (typing) {
    const input = fresh.querySelector("[name=q]");
    input.value = typed;
    input.focus();
  }
}

function startGrid(grid) {
  const table = grid.querySelector("table");
  const complete = Boolean(grid.dataset.complete);
  const form = grid.querySelector("form[role=search]");
  const input = form.querySelector("[name=q]");
  grid.querySelectorAll("th .sort").forEach((link) => {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      if (!complete) return fetchGrid(grid, link.href);
      const head = link.closest("th");
      const was = head.getAttribute("aria-sort");
      sortRows(table, head.cellIndex, was ? was === "ascending" : head.classList.contains("n"));
    });
  });
  let later = 0;
  const filter = () => {
    if (complete) return table && filterRows(grid, input.value);
    const address = new URL(form.action || location.href, location.href);
    address.search = new URLSearchParams(new FormData(form)).toString();
    fetchGrid(grid, address.href);
  };
  input.addEventListener("input", () => { clearTimeout(later); later = setTimeout(filter, complete ? 60 : 300); });
  form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
  form.querySelectorAll("select").forEach((each) => each.addEventListener("change", filter));
  const compare = grid.querySelector(".compare");
  if (compare) {
    const boxes = () => [...grid.querySelectorAll("input[name=run]:checked")];
    const count = () => {
      const number = boxes().length;
      compare.disabled = number < 2;
      compare.textContent = number < 2 ? "Compare" : `Compare ${number} runs`;
    };
    grid.addEventListener("change", count);
    count();
  }
  startRoving(grid);
  grid.querySelector("button.csv")?.addEventListener("click", () => downloadCsv(grid));
}

// Only for a report, which has no server to download from.
function downloadCsv(grid) {
  const cells = (row) => [...row.cells].map((cell) => {
    let text = cell.dataset.v ?? cell.dataset.key ?? cell.textContent.trim();
    if (cell.dataset.v === undefined && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
    return '"' + text.replaceAll('"', '""') + '"';
  }).join(",");
  const text = [...grid.querySelectorAll("tr")].filter((row) => !row.hidden).map(cells).join("\r\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = grid.dataset.name + ".csv";
  link.click();
  URL.revokeObjectURL(link.href);
}

document.querySelectorAll(".grid").forEach(startGrid);
startRoving();

// -- the name and the tags of a record, in place ------------------------------------------------------------------------

function startLabels(form) {
  const button = document.querySelector("button.edit"), problem = form.querySelector(".problem");
  const show = (open) => {
    form.hidden = !open;
    button.hidden = open;
    button.setAttribute("aria-expanded", String(open));
    (open ? form.elements.name : button).focus();
  };
  button.addEventListener("click", () => show(true));
  form.addEventListener("reset", () => { problem.textContent = ""; show(false); });
  form.addEventListener("keydown", (event) => { if (event.key === "Escape") form.reset(); });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const told = JSON.stringify(Object.fromEntries(new FormData(form)));
    // Another site cannot send this header without asking first, which the server refuses.
    const answer = await fetch(form.dataset.to, { method: "POST", headers: { "X-Paceline": "labels" }, body: told });
    if (answer.ok) return location.reload();
    problem.textContent = await answer.text();
  });
}

document.querySelectorAll("form#labels").forEach(startLabels);
document.querySelector(".others select")?.addEventListener("change", (event) => { if (event.target.value) event.target.form.submit(); });

// -- commands to copy -------------------------------------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.(".copy");
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch { // a page without encryption from another machine may not write to the clipboard
    getSelection().selectAllChildren(code);
    button.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2500);
});

// -- charts -----------------------------------------------------------------------------------------------------------

const PHASES = document.documentElement.dataset.phases.split(" "); // each phase is also the name of a colour
const PALETTE = [...PHASES, ...[1, 2, 3, 4, 5, 6, 7, 8].map((n) => `series${n}`), "accent", "bad", "good", "warn", "ink", "quiet", "shade", "idle", "op", "kernel", "copy", "call", "python"];

const figureOf = (card) => JSON.parse(card.querySelector("script").textContent);

let adaptFigure = (figure, card) => figure; // compare.js replaces it

function drawChart(card, figure = figureOf(card)) {
  card.dataset.begun = "1";
  figure = adaptFigure(figure, card);
  const place = card.querySelector(".figure"), table = card.querySelector("details.data");
  place.view ??= new ChartView(place);
  place.view.draw(figure);
  if (table && !table.filled) {
    table.filled = true;
    table.addEventListener("toggle", () => { if (table.open) fillTable(card, place.view.figure); });
  }
  if (table?.open) fillTable(card, figure);
  card.dataset.drawn = "1";
}

function startCharts() {
  const cards = [...document.querySelectorAll(".chart")];
  if (!cards.length) return;
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      drawChart(entry.target);
    }
  }, { rootMargin: "400px" });
  cards.forEach((card) => near.observe(card));
  // Draw the other charts when the browser is idle, so that printing and searching cover the whole page.
  const idle = window.requestIdleCallback ?? ((act) => setTimeout(act, 400));
  const rest = () => {
    const card = cards.find((each) => !each.dataset.drawn && !each.dataset.begun);
    if (!card) return;
    near.unobserve(card);
    drawChart(card);
    idle(rest);
  };
  if (document.readyState === "complete") idle(rest);
  else addEventListener("load", () => idle(rest));
}

startCharts();
