// A chart as a table, for those who cannot see it, and for exact numbers. Filled when it is opened.
"use strict";

function tableOfFigure({ data, layout }) {
  const across = data.some((trace) => trace.orientation === "h"), heat = data.find((trace) => trace.type === "heatmap");
  const axis = (name, otherwise) => layout[name].title?.text || otherwise;
  if (heat) return { heads: [axis("yaxis", "row"), ...heat.x.map((x) => `${axis("xaxis", "")} ${shown(x)}`.trim())], rows: heat.z.map((row, r) => [shown(heat.y[r]), ...row.map((value) => shown(value))]) };
  const series = data.filter((trace) => trace.fill !== "toself" && trace.showlegend !== false), places = [];
  const columns = series.map((trace) => {
    const [at, values] = across ? [trace.y, trace.x] : [trace.x, trace.y], found = new Map();
    at.forEach((place, n) => {
      const spread = trace.error_y ? ` (${shown(values[n] - trace.error_y.arrayminus[n], layout.yaxis)} to ${shown(values[n] + trace.error_y.array[n], layout.yaxis)})` : "";
      found.set(place, shown(values[n], across ? layout.xaxis : layout.yaxis) + spread + (trace.text?.[n] ? ` – ${trace.text[n]}` : ""));
      places.push(place);
    });
    return found;
  });
  const all = [...new Set(places)];
  if (all.every((place) => typeof place === "number")) all.sort((a, b) => a - b);
  const unit = across ? layout.xaxis.title?.text : layout.yaxis.title?.text;
  return { heads: [across ? axis("yaxis", "name") : axis("xaxis", "place"), ...series.map((trace) => trace.name + (unit && unit !== trace.name ? `, ${unit}` : ""))], rows: all.map((place) => [shown(place), ...columns.map((found) => found.get(place) ?? "–")]) };
}

function fillTable(card, figure) {
  const place = card.querySelector("details.data .scroll");
  if (!place) return;
  const { heads, rows } = tableOfFigure(figure), table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  for (const words of heads) { const cell = document.createElement("th"); cell.scope = "col"; cell.textContent = words; head.append(cell); }
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((words, n) => {
      const cell = document.createElement(n ? "td" : "th");
      if (!n) cell.scope = "row";
      cell.textContent = words;
      line.append(cell);
    });
  }
  place.replaceChildren(table);
}
