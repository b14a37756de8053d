// Draws each <figure data-chart> from the JSON that it carries; the numbers stand below it as a table, too.
"use strict";

const drawn = new Map();
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const grouped = (value) => (value == null ? "–" : Number(value).toLocaleString("en").replaceAll(",", "\u202f"));

// Each line on top of those before it; the raw numbers stay for the legend.
function stacked(lines) {
  const sum = lines[0].values.map(() => 0);
  return lines.map((line) => line.values.map((value, place) => (sum[place] += value ?? 0)));
}

function axis(extra) {
  return {
    stroke: style("--muted"),
    grid: { stroke: style("--line"), width: 1 },
    ticks: { stroke: style("--line"), width: 1 },
    font: `12px ${getComputedStyle(document.body).fontFamily}`,
    ...extra,
  };
}

function series(line, chart, paths) {
  const colour = style(`--series-${line.tone}`);
  const isFilled = chart.kind !== "line";
  return {
    label: line.label,
    stroke: colour,
    width: isFilled ? 1 : 2,
    fill: isFilled ? colour + (chart.kind === "bars" ? "" : "b0") : undefined,
    points: { show: chart.times.length === 1 },
    paths,
    value: (_, __, ___, index) => grouped(index == null ? line.values.at(-1) : line.values[index]),
  };
}

function draw(figure) {
  const chart = JSON.parse(figure.querySelector("script").textContent);
  const paths = chart.kind === "bars" ? uPlot.paths.bars({ size: [0.8, 60] }) : undefined;
  const values = chart.kind === "line" ? chart.lines.map((line) => line.values) : stacked(chart.lines);
  // What is drawn last lies on top: of a stack the lowest.
  const order = chart.lines.map((_, place) => place).reverse();
  drawn.get(figure)?.destroy();
  const place = figure.querySelector("[data-plot]");
  const options = {
    width: place.clientWidth,
    height: 220,
    series: [
      { value: (_, seconds) => (seconds == null ? "" : new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")) },
      ...order.map((number) => series(chart.lines[number], chart, paths)),
    ],
    axes: [
      axis({ values: (_, ticks, __, ___, step) => ticks.map((each) => label(each, step)) }),
      axis({ size: 64, values: (_, ticks) => ticks.map(grouped) }),
    ],
    scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    cursor: { drag: { x: false, y: false }, points: { show: chart.kind === "line" } },
    legend: { live: true },
  };
  drawn.set(figure, new uPlot(options, [chart.times, ...order.map((number) => values[number])], place));
}

function label(seconds, step) {
  const text = new Date(seconds * 1000).toISOString();
  return step >= 86400 || text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
}

function drawAll() {
  for (const figure of drawn.keys()) if (!figure.isConnected) drawn.delete(figure);
  document.querySelectorAll("figure[data-chart]").forEach(draw);
}

drawAll();
document.addEventListener("htmx:afterSettle", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
addEventListener("resize", () => drawn.forEach((plot, figure) => plot.setSize({ width: figure.querySelector("[data-plot]").clientWidth, height: 220 })));
