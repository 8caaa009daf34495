// Follows a run in progress. Text of a run is inserted as text, never as HTML.
"use strict";

const MOST_POINTS = 4000, RECENT = 20;

function median(values) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known.length ? known[known.length >> 1] : null;
}

function formatSeconds(seconds) {
  if (seconds === null) return "–";
  if (seconds >= 100) return Math.round(seconds).toLocaleString("en") + " s";
  if (seconds >= 1) return seconds.toPrecision(3) + " s";
  return seconds >= 1e-3 ? (seconds * 1e3).toPrecision(3) + " ms" : (seconds * 1e6).toPrecision(3) + " µs";
}

function formatNumber(value) { return value === null ? "–" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toPrecision(4).replace(/\.?0+$/, ""); }

function formatElapsed(seconds) {
  const whole = Math.max(0, Math.floor(seconds)), pad = (value) => String(value).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
}

function startLive(place) {
  const put = (name, text) => { place.querySelector(`[data-is=${name}]`).textContent = text; };
  const steps = [], ranks = new Map();
  const columns = { time: 1, speed: 2, loss: 3 };

  function draw() {
    for (const card of place.querySelectorAll("[data-chart]")) {
      const told = figureOf(card), name = card.dataset.chart;
      told.data[0].x = steps.map((s) => s[0]);
      told.data[0].y = steps.map((s) => s[columns[name]]);
      const usual = median(told.data[0].y);
      if (name === "time" && usual) told.layout.yaxis.range = [0, 3 * usual];
      drawChart(card, told);
    }
  }

  function table(slowest) {
    const body = place.querySelector(".ranks tbody");
    const rows = [...ranks.values()].sort((a, b) => a[0] - b[0]);
    body.replaceChildren(...rows.map((row) => {
      const line = document.createElement("tr");
      line.className = row[0] === slowest ? "marked" : "";
      for (const text of [row[0], row[1].toLocaleString("en"), formatSeconds(row[2]), formatSeconds(row[3])]) {
        const cell = document.createElement("td");
        cell.className = "n";
        cell.textContent = text;
        line.append(cell);
      }
      return line;
    }));
  }

  function devices(told) {
    if (!told.length) return;
    place.querySelector(".busy").replaceChildren(...told.map(([name, share]) => {
      const line = document.createElement("label"), meter = document.createElement("meter");
      meter.max = 1;
      meter.value = share;
      line.append(`${name} ${Math.round(100 * share)} %`, meter);
      return line;
    }));
  }

  let started = 0, clock = 0;
  const source = new EventSource(place.dataset.source);
  source.addEventListener("steps", (event) => {
    const told = JSON.parse(event.data);
    started = told.started;
    for (const step of told.steps) {
      if (steps.length && step[0] <= steps[steps.length - 1][0]) continue; // a reconnect repeats some steps
      steps.push(step);
    }
    if (steps.length > MOST_POINTS) steps.splice(0, steps.length - MOST_POINTS);
    told.ranks.forEach((row) => ranks.set(row[0], row));
    const recent = steps.slice(-RECENT), last = steps[steps.length - 1];
    put("state", told.state);
    if (last) {
      put("step", last[0].toLocaleString("en"));
      put("speed", told.figures.samples_per_s);
      put("time", told.figures.step_time);
      put("loss", formatNumber([...recent].reverse().find((s) => s[3] !== null)?.[3] ?? null));
    }
    if (told.log.length) put("log", told.log.join("\n"));
    devices(told.devices);
    if (told.steps.length) { draw(); table(told.figures.slowest); }
    place.dataset.steps = last ? last[0] : 0;
  });
  source.addEventListener("end", (event) => {
    source.close();
    clearInterval(clock);
    const state = JSON.parse(event.data).state, tile = place.querySelector(".tile.live");
    tile.classList.remove("live");
    tile.classList.add(state === "succeeded" ? "good" : "bad");
    const link = document.createElement("a");
    link.href = place.dataset.run;
    link.textContent = "Open the dashboard →";
    tile.append(link);
    place.dataset.ended = "1";
  });
  source.addEventListener("trouble", (event) => { source.close(); put("state", JSON.parse(event.data).message); });
  source.onerror = () => { if (source.readyState !== EventSource.CLOSED) put("state", "connection lost"); };
  clock = setInterval(() => { if (started) put("since", formatElapsed(Date.now() / 1000 - started)); }, 1000);
  document.addEventListener("themechange", draw);
}

document.querySelectorAll("section.live").forEach(startLive);
