// Overlaid curves: smoothing and logarithmic axes. The choice is kept in the address, so that a link repeats it.
"use strict";

const curves = document.querySelector(".curves");
const controls = Object.fromEntries([...(curves?.querySelectorAll("[name]") ?? [])].map((each) => [each.name, each]));

// An exponential moving average, corrected for its start: the first values would count too much otherwise.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

adaptFigure = (figure, card) => {
  if (!curves?.contains(card)) return figure;
  const weight = Number(controls.smooth.value);
  const made = structuredClone(figure);
  if (weight > 0) {
    const faint = made.data.map((trace) => ({ ...trace, opacity: 0.22, showlegend: false, hoverinfo: "skip" }));
    made.data = [...faint, ...made.data.map((trace) => ({ ...trace, y: smoothed(trace.y, weight) }))];
  }
  for (const [axis, name] of [["xaxis", "logx"], ["yaxis", "logy"]]) {
    if (!controls[name].checked) continue;
    made.layout[axis].type = "log";
    delete made.layout[axis].range;
    delete made.layout[axis].rangemode;
  }
  return made;
};

function redraw() {
  const said = { smooth: controls.smooth.value, logx: Number(controls.logx.checked), logy: Number(controls.logy.checked) };
  curves.querySelector("output").textContent = Number(said.smooth) ? Number(said.smooth).toFixed(2) : "off";
  history.replaceState(null, "", location.pathname + location.search + "#" + new URLSearchParams(said));
  for (const link of curves.querySelectorAll(".over a")) link.hash = location.hash;
  curves.querySelectorAll(".chart").forEach((card) => drawChart(card));
}

if (curves) {
  const asked = new URLSearchParams(location.hash.slice(1));
  controls.smooth.value = asked.get("smooth") ?? 0;
  for (const name of ["logx", "logy"]) controls[name].checked = asked.get(name) === "1";
  curves.querySelector("output").textContent = Number(controls.smooth.value) ? Number(controls.smooth.value).toFixed(2) : "off";
  curves.querySelector(".controls").addEventListener("input", redraw);
  curves.querySelectorAll(".chart[data-drawn]").forEach((card) => drawChart(card)); // before this file had come
}
