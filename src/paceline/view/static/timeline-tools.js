// What a person does with a time line: choosing events by mouse and keys, following arrows, measuring, the critical path.
"use strict";

const SHOWN_TOTALS = 15;
const LINK_WORDS = { [LAUNCH]: { true: "launches", false: "launched by" }, [COLLECTIVE]: { true: "kept waiting", false: "waited for" } };

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function tableOf(caption, heads, rows) {
  const table = element("table"), line = element("tr"), head = element("thead"), body = element("tbody");
  table.append(element("caption", caption, { class: "sr" }));
  line.append(...heads.map(([title, numeric]) => element("th", title, { scope: "col", class: numeric ? "n" : "" })));
  head.append(line);
  body.append(...rows.map((row) => {
    const made = element("tr");
    made.append(...row.map((value, n) => {
      const cell = element("td", "", { class: heads[n][1] ? "n" : "" });
      cell.append(value);
      return cell;
    }));
    return made;
  }));
  table.append(head, body);
  const place = element("div", "", { class: "scroll" });
  place.append(table);
  return place;
}

const percent = (share) => (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %";

class Tools {
  constructor(card, line) {
    this.card = card;
    this.line = line;
    this.waiting = new Map(); // what a person did before all events were here
    this.measuring = !matchMedia("(pointer: coarse)").matches; // a finger moves the page's content, a mouse measures
    this.at = -1;
    this.followed = -1;
    this.listen();
    this.legend();
    this.press("measure", this.measuring);
    this.showArrows();
  }

  get spans() { return this.line.spans; }
  showArrows() { this.card.querySelector("[data-toggle=arrows]").hidden = !this.spans.partial && !this.spans.link_from.length; }

  // All events, in place of an overview: does what had to wait for them.
  take(spans) {
    this.line.take(spans);
    this.legend();
    this.showArrows();
    if (this.line.chosen >= 0) this.choose(this.line.chosen);
    for (const act of this.waiting.values()) act();
    this.waiting.clear();
  }

  // Whether an act has to wait until all events are here. The last one of its kind is done then.
  waits(kind, act) {
    if (!this.spans.partial) return false;
    this.waiting.set(kind, act);
    return true;
  }

  say(name, text) { this.card.querySelector("." + name).textContent = text; }
  press(name, on) { this.card.querySelector(`[data-toggle=${name}]`)?.setAttribute("aria-pressed", String(on)); }

  // The kinds that occur, each with its colour, its texture and its name.
  legend() {
    const { line, spans } = this, listened = this.swatches, place = this.card.querySelector(".kinds"), seen = new Uint8Array(spans.kinds.length);
    for (let n = 0; n < spans.count; n++) seen[spans.kind[n]] = 1;
    const draw = () => {
      const inks = line.colours();
      const item = (words, ...fills) => {
        const made = element("span"), swatch = element("canvas", "", { width: 18, height: 12, "aria-hidden": "true" }), pen = swatch.getContext("2d");
        for (const fill of fills) if (fill) { pen.fillStyle = fill; pen.fillRect(0, 0, 18, 12); }
        made.append(swatch, words);
        return made;
      };
      const phases = PHASES.filter((phase) => spans.names.includes("paceline." + phase));
      const kinds = spans.kinds.map((kind, number) => [kind, number]).filter(([kind, number]) => seen[number] && !(phases.includes(kind)));
      place.replaceChildren(...phases.map((phase) => item(phase, inks[phase], inks.phases[phase])), ...kinds.map(([kind, number]) => item(KIND_WORDS[kind] ?? kind, inks.kinds[number], inks.textures[number])));
    };
    draw();
    this.swatches = draw;
    if (!listened) document.addEventListener("themechange", () => this.swatches());
  }

  // -- choosing -------------------------------------------------------------------------------------------------------

  choose(span, reveal = false) {
    const { line, spans } = this;
    line.chosen = span;
    this.followed = -1;
    const linked = this.card.querySelector(".linked");
    linked.replaceChildren();
    if (span >= 0) {
      this.say("detail", spans.describe(span));
      for (const [kind, other, away] of spans.linksOf(span).slice(0, 8)) {
        const track = spans.trackOf(other);
        const button = element("button", `${LINK_WORDS[kind][away]}: ${kind === COLLECTIVE ? `rank ${track.rank}` : spans.nameOf(other)}`, { type: "button" });
        button.addEventListener("click", () => { this.choose(other, true); line.window.focus(); });
        linked.append(button);
      }
      if (reveal) line.reveal(span);
    }
    line.paint();
  }

  // The next event of the row, or of another row near the same time.
  step(by) {
    const { line, spans } = this;
    if (this.waits("choose", () => this.step(by))) return;
    if (line.chosen < 0) return this.choose(this.firstInView(), true);
    const row = spans.rows[spans.rowOf(line.chosen)], next = line.chosen + by;
    if (next >= row.from && next < row.to) this.choose(next, true);
  }

  edge(last) {
    const { line, spans } = this;
    if (this.waits("choose", () => this.edge(last))) return;
    if (line.chosen < 0) return this.choose(this.firstInView(), true);
    const row = spans.rows[spans.rowOf(line.chosen)];
    this.choose(last ? row.to - 1 : row.from, true);
  }

  firstInView() {
    const { line, spans } = this;
    for (const row of spans.rows) {
      const n = spans.ending(row, line.view[0]);
      if (n < row.to && line.y(row) >= line.axis) return n;
    }
    return spans.count ? 0 : -1;
  }

  upOrDown(by, wholeTracks = false) {
    const { line, spans } = this;
    if (this.waits("choose", () => this.upOrDown(by, wholeTracks))) return;
    if (line.chosen < 0) return this.choose(this.firstInView(), true);
    const here = spans.rowOf(line.chosen), [from, until] = line.view;
    // Within the chosen event if possible: going down leads into it.
    const time = Math.max(spans.start[line.chosen], Math.min(from, spans.endOf(line.chosen)));
    let at = here + by;
    if (wholeTracks) {
      const track = spans.rows[here].track + by;
      if (!spans.tracks[track]) return;
      at = spans.tracks[track].first;
    }
    for (; at >= 0 && at < spans.rows.length; at += by) {
      const row = spans.rows[at];
      if (row.to === row.from) continue;
      const n = Math.min(spans.ending(row, time + 0.5), row.to - 1);
      const before = n > row.from && spans.start[n] > time && time - spans.endOf(n - 1) < spans.start[n] - time ? n - 1 : n;
      return this.choose(before, true);
    }
  }

  follow() {
    const { line, spans } = this;
    if (this.waits("choose", () => this.follow())) return;
    if (line.chosen < 0) return;
    const links = spans.linksOf(line.chosen);
    if (!links.length) return this.say("detail", `${spans.describe(line.chosen)} · no arrow begins or ends here`);
    this.choose(links[0][1], true);
  }

  find(text) {
    const { line, spans } = this;
    const wanted = text.trim().toLowerCase();
    if (this.waits("find", () => this.find(text))) return this.say("found", wanted ? "loading all events …" : "");
    if (!wanted) { line.hits = null; this.found = []; this.say("found", ""); return line.paint(); }
    line.hits = new Set();
    spans.names.forEach((name, number) => { if (name.toLowerCase().includes(wanted)) line.hits.add(number); });
    this.found = [];
    let total = 0;
    for (let span = 0; span < spans.count; span++) if (line.hits.has(spans.name[span])) { this.found.push(span); total += spans.length[span]; }
    this.found.sort((a, b) => spans.start[a] - spans.start[b]);
    this.at = -1;
    this.say("found", `${this.found.length.toLocaleString("en")} found, ${inWords(total)} in all`);
    line.paint();
  }

  // -- measuring ------------------------------------------------------------------------------------------------------

  measure(from, until, final = true) {
    const { line, spans } = this;
    line.measured = from === null ? null : [Math.min(from, until), Math.max(from, until)];
    const place = this.card.querySelector(".measured");
    if (!line.measured) { place.hidden = true; return line.paint(); }
    line.paint();
    if (!final || this.waits("measure", () => line.measured && this.measure(...line.measured))) return;
    const [start, end] = line.measured, length = Math.max(end - start, 1);
    const found = spans.measure(start, end).filter((one) => one.count);
    const count = found.reduce((sum, one) => sum + one.count, 0);
    const busiest = found.reduce((best, one) => (one.busy > (best?.busy ?? -1) ? one : best), null);
    const where = (track) => `rank ${track.rank}, ${track.label}`;
    const words = `${inWords(end - start)} from ${inWords(start)}: ${count.toLocaleString("en")} events${busiest ? `; busiest: ${where(busiest.track)}, ${percent(busiest.busy / length)}` : ""}`;
    const close = element("button", "Clear", { type: "button" }), zoom = element("button", "Zoom to it", { type: "button" });
    close.addEventListener("click", () => this.measure(null));
    zoom.addEventListener("click", () => line.show(start, end));
    const title = element("h3", "Measured"), about = element("p", words + " ");
    about.append(zoom, " ", close);
    place.replaceChildren(title, about, tableOf("Busy time of each track in the measured range",
      [["track"], ["events", true], ["busy", true], ["busy share", true]],
      found.map((one) => [where(one.track), one.count.toLocaleString("en"), inWords(one.busy), percent(one.busy / length)])));
    place.hidden = false;
  }

  measureChosen(which) {
    const { line, spans } = this;
    if (line.chosen < 0) return;
    const start = spans.start[line.chosen], end = spans.endOf(line.chosen);
    if (which === "[") this.measure(start, Math.max(line.measured?.[1] ?? end, start));
    else if (which === "]") this.measure(Math.min(line.measured?.[0] ?? start, end), end);
    else this.measure(start, end);
  }

  // -- the critical path ----------------------------------------------------------------------------------------------

  async togglePath() {
    const { line, card } = this, place = card.querySelector(".critical");
    if (this.waits("path", () => this.togglePath())) return;
    if (line.path) { line.path = null; place.hidden = true; this.press("path", false); return line.paint(); }
    this.press("path", true);
    if (!this.told) {
      const own = card.querySelector("script.path");
      if (own) this.told = JSON.parse(own.textContent);
      else {
        place.hidden = false;
        place.replaceChildren(element("p", "Finding the critical path …"));
        const answer = await fetch(card.dataset.path, { headers: { Accept: "application/json" } });
        if (!answer.ok) { place.replaceChildren(element("p", "The critical path cannot be found. Its page says why: " + card.dataset.path)); return this.press("path", false); }
        this.told = await answer.json();
      }
    }
    line.path = this.told;
    this.piece = -1;
    this.showPath(place);
    line.paint();
  }

  showPath(place) {
    const { spans, line } = this, { length, totals, pieces, note } = this.told;
    const kinds = new Map();
    for (const [kind, , seconds] of totals) kinds.set(kind, (kinds.get(kind) ?? 0) + seconds);
    const ranks = [...new Set(pieces.map((piece) => piece[1]))].sort((a, b) => a - b);
    const parts = [...kinds].sort((a, b) => b[1] - a[1]).map(([kind, seconds]) => `${KIND_WORDS[kind] ?? { queue: "launched, not begun", host: "host" }[kind] ?? kind} ${percent((seconds * 1e9) / Math.max(length, 1))}`);
    const words = `${inWords(length)} over rank${ranks.length > 1 ? "s" : ""} ${ranks.join(", ")}: ${parts.join(", ")}. ${note}`;
    place.replaceChildren(element("h3", "Critical path"), element("p", words), tableOf("The parts of the critical path, longest first",
      [["event"], ["kind"], ["pieces", true], ["on the path", true], ["share", true]],
      totals.slice(0, SHOWN_TOTALS).map(([kind, name, seconds, count, longest]) => {
        const span = pieces[longest][0], button = element("button", name, { type: "button", class: "link" });
        button.addEventListener("click", () => { this.piece = longest; this.choose(span); line.goTo(span); });
        return [span >= 0 ? button : name, KIND_WORDS[kind] ?? kind, count.toLocaleString("en"), inWords(seconds * 1e9), percent((seconds * 1e9) / Math.max(length, 1))];
      })));
    place.hidden = false;
    this.card.dataset.pieces = pieces.length;
  }

  alongPath(by) {
    const { line } = this;
    if (!line.path) return;
    const pieces = line.path.pieces;
    let at = this.piece;
    do at += by; while (at >= 0 && at < pieces.length && (pieces[at][0] < 0 || pieces[at][0] === line.chosen));
    if (at < 0 || at >= pieces.length) return;
    this.piece = at;
    this.choose(pieces[at][0], true);
  }

  // -- mouse, fingers and keys ----------------------------------------------------------------------------------------

  listen() {
    const { line, card } = this, { canvas, window: place } = line;
    this.listenToPointers(canvas);
    canvas.addEventListener("dblclick", (event) => { const span = line.spanAt(event); if (span >= 0) { line.goTo(span); this.choose(span); } });
    place.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (event.ctrlKey || event.metaKey || event.altKey) line.zoom(Math.exp(Math.sign(event.deltaY) * 0.2), event.clientX - canvas.getBoundingClientRect().left);
      else if (sideways) line.move((event.deltaX || event.deltaY) / (line.width - line.gutter));
      else return;
      event.preventDefault();
    }, { passive: false });
    place.addEventListener("scroll", () => line.paint(), { passive: true });
    const keys = {
      "+": () => line.zoom(0.7), "=": () => line.zoom(0.7), w: () => line.zoom(0.7), "-": () => line.zoom(1.4), s: () => line.zoom(1.4),
      a: () => line.move(-0.15), d: () => line.move(0.15), 0: () => line.show(...line.range),
      ArrowLeft: (shift) => (shift ? line.move(-0.15) : this.step(-1)), ArrowRight: (shift) => (shift ? line.move(0.15) : this.step(1)),
      ArrowUp: () => this.upOrDown(-1), ArrowDown: () => this.upOrDown(1), PageUp: () => this.upOrDown(-1, true), PageDown: () => this.upOrDown(1, true),
      Home: () => this.edge(false), End: () => this.edge(true),
      Enter: () => line.chosen >= 0 && line.goTo(line.chosen), Escape: () => { this.measure(null); this.choose(-1); this.say("detail", ""); },
      f: () => this.follow(), m: () => this.measureChosen("m"), "[": () => this.measureChosen("["), "]": () => this.measureChosen("]"),
      n: () => this.alongPath(1), p: () => this.alongPath(-1),
    };
    place.addEventListener("keydown", (event) => {
      const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (event.ctrlKey || event.metaKey || event.altKey || !act) return;
      act(event.shiftKey);
      event.preventDefault();
    });
    const acts = { in: () => line.zoom(0.6), out: () => line.zoom(1.6), all: () => line.show(...line.range) };
    card.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", acts[button.dataset.do]));
    const toggles = {
      arrows: () => { line.arrows = !line.arrows; this.press("arrows", line.arrows); line.paint(); },
      measure: () => { this.measuring = !this.measuring; this.press("measure", this.measuring); },
      path: () => this.togglePath(),
    };
    card.querySelectorAll("[data-toggle]").forEach((button) => button.addEventListener("click", toggles[button.dataset.toggle]));
    const input = card.querySelector(".find");
    input.addEventListener("input", () => this.find(input.value));
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !this.found?.length) return;
      event.preventDefault();
      this.at = (this.at + (event.shiftKey ? this.found.length - 1 : 1)) % this.found.length;
      line.goTo(this.found[this.at]);
      this.choose(this.found[this.at]);
    });
  }

  listenToPointers(canvas) {
    const { line } = this, pointers = new Map();
    let pinch = 0, moved = 0, begun = null;
    const time = (event) => line.time(Math.max(event.clientX - canvas.getBoundingClientRect().left, line.gutter));
    canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, event.clientX);
      canvas.setPointerCapture(event.pointerId);
      moved = 0;
      const onAxis = event.clientY - canvas.getBoundingClientRect().top < line.axis - 4;
      begun = this.measuring !== event.shiftKey && !onAxis && pointers.size === 1 && event.button === 0 ? time(event) : null;
    });
    canvas.addEventListener("pointermove", (event) => {
      const last = pointers.get(event.pointerId);
      if (last === undefined) {
        const span = line.spanAt(event);
        canvas.title = span >= 0 ? this.spans.describe(span) : "";
        return;
      }
      pointers.set(event.pointerId, event.clientX);
      if (pointers.size === 2) {
        const [a, b] = [...pointers.values()], apart = Math.abs(a - b);
        if (pinch > 10 && apart > 10) line.zoom(pinch / apart, (a + b) / 2 - canvas.getBoundingClientRect().left);
        pinch = apart;
        return;
      }
      moved += Math.abs(event.clientX - last);
      if (begun === null) line.move((last - event.clientX) / (line.width - line.gutter));
      else if (moved >= 4) this.measure(begun, time(event), false);
    });
    const up = (event) => {
      pointers.delete(event.pointerId);
      pinch = 0;
      if (event.type !== "pointerup") return;
      if (moved < 4) this.choose(line.spanAt(event));
      else if (begun !== null) this.measure(begun, time(event));
      begun = null;
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
  }
}

async function loadSpans(card, source) {
  if (!source) return Uint8Array.from(atob(card.querySelector("script.spans").textContent), (sign) => sign.charCodeAt(0)).buffer;
  const answer = await fetch(source);
  if (!answer.ok) throw new Error("the server answered " + answer.status);
  return answer.arrayBuffer();
}

document.querySelectorAll(".timeline").forEach(async (card) => {
  const { source, overview } = card.dataset;
  try {
    const line = new TimeLine(card, new Spans(await loadSpans(card, overview || source)));
    card.tools = new Tools(card, line);
    if (!overview) return;
    // Asked for after the first drawing, so that it does not compete with it.
    await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
    card.tools.take(new Spans(await loadSpans(card, source)));
    card.dataset.whole = performance.now().toFixed(0);
  } catch (error) {
    card.querySelector(".detail").textContent = `The time line cannot be shown: ${error.message}. Reload the page to try again.`;
  }
});
