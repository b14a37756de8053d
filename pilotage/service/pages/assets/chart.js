// Draws each <figure data-chart> from the JSON that it carries; the numbers stand below it as a table, too.
"use strict";

const drawn = new Map();
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Small numbers keep their digits: rounded to thousandths they would all be 0.
const digits = (value) =>
  !value || Math.abs(value) >= 1 ? {} : { maximumSignificantDigits: 3, notation: Math.abs(value) < 0.001 ? "scientific" : "standard" };
const grouped = (value) => (value == null ? "–" : Number(value).toLocaleString("en", digits(value)).replaceAll(",", "\u202f"));

// A value between two gaps is no line.
const isAlone = (values, place) => values[place] != null && values[place - 1] == null && values[place + 1] == null;

// Each line on top of those before it; the raw numbers stay for the legend.
function stacked(lines) {
  const sum = lines[0].values.map(() => 0);
  return lines.map((line) => line.values.map((value, place) => (value == null ? null : (sum[place] += value))));
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

// Colours are not the only difference: every second bar is hatched, and lines are dashed.
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];

function hatched(colour) {
  const tile = Object.assign(document.createElement("canvas"), { width: 8, height: 8 });
  const pen = tile.getContext("2d");
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = style("--surface");
  pen.lineWidth = 2;
  for (const x of [-8, 0, 8]) {
    pen.moveTo(x, 8);
    pen.lineTo(x + 8, 0);
  }
  pen.globalAlpha = 0.5;
  pen.stroke();
  return pen.createPattern(tile, "repeat");
}

const FILLS = {
  line: () => undefined,
  area: (colour) => colour + "b0",
  bars: (colour, tone) => (tone && tone % 2 === 0 ? hatched(colour) : colour),
};

function series(line, chart, paths, place) {
  const colour = style(`--series-${line.tone}`);
  return {
    label: line.label,
    stroke: colour,
    width: { line: 2, area: 1, bars: 0 }[chart.kind],
    dash: chart.kind === "line" ? DASHES[place % DASHES.length] : undefined,
    fill: FILLS[chart.kind](colour, line.tone),
    points: { show: chart.kind !== "bars", filter: () => line.values.map((_, each) => each).filter((each) => isAlone(line.values, each)) },
    paths,
    value: (_, __, ___, index) => grouped(index == null ? line.values.at(-1) : line.values[index]),
  };
}

function draw(figure) {
  const chart = JSON.parse(figure.querySelector("script").textContent);
  const place = figure.querySelector("[data-plot]");
  drawn.get(figure)?.forEach((plot) => plot.destroy());
  drawn.set(figure, chart.kind === "multiples" ? drawMultiples(chart, place) : [drawOne(chart, place, 220)]);
}

// A plot for each line with a scale of its own: a large one hides no small one.
function drawMultiples(chart, place) {
  const boxes = chart.lines.map((line) => {
    const box = Object.assign(document.createElement("div"), { className: "multiple" });
    const [head, number] = ["p", "b"].map((name) => document.createElement(name));
    head.append(line.label, number);
    box.append(head);
    return [box, line, number];
  });
  place.replaceChildren(...boxes.map(([box]) => box)); // all, so that each has its width
  return boxes.map(([box, line, number]) => {
    const show = (plot) => (number.textContent = grouped(line.values[plot.cursor.idx ?? line.values.length - 1]));
    return drawOne({ ...chart, kind: "area", lines: [line] }, box, 96, show);
  });
}

function drawOne(chart, place, height, show) {
  const paths = chart.kind === "bars" ? uPlot.paths.bars({ size: [0.86, 200] }) : undefined;
  const values = chart.kind === "line" ? chart.lines.map((line) => line.values) : stacked(chart.lines);
  // What is drawn last lies on top: of a stack the lowest.
  const order = chart.lines.map((_, place) => place).reverse();
  // Bars stand around their times: the first and the last need room, and only their times are labelled.
  const isBars = chart.kind === "bars";
  const length = chart.times.length > 1 ? chart.times[1] - chart.times[0] : 3600;
  const margin = isBars ? length / 2 : 0;
  const tones = order.map((number) => style(`--series-${chart.lines[number].tone}`));
  const options = {
    width: place.clientWidth,
    height,
    series: [
      { label: "UTC", value: (_, seconds) => new Date((seconds ?? chart.times.at(-1)) * 1000).toISOString().slice(0, 16).replace("T", " ") },
      ...order.map((number) => series(chart.lines[number], chart, paths, number)),
    ],
    axes: [
      axis({
        ...(show && { size: 26 }),
        splits: isBars ? ({ width }) => chart.times.filter((_, number) => number % Math.ceil((chart.times.length * 60) / width) === 0) : undefined,
        values: (_, ticks, __, ___, step) => ticks.map((each) => label(each, isBars ? length : step)),
      }),
      axis({ size: show ? 52 : 64, ...(show && { space: 22 }), values: (_, ticks) => ticks.map((each) => (show && !Number.isInteger(each) ? "" : grouped(each))) }),
    ],
    scales: {
      x: { range: (_, first, last) => [first - margin, last + margin] },
      y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] },
    },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    cursor: { drag: { x: false, y: false }, points: { show: chart.kind === "line" }, sync: show ? { key: "multiples" } : undefined },
    hooks: show ? { ready: [show], setCursor: [show] } : {},
    legend: { show: !show, live: true, markers: { fill: (_, number) => tones[number - 1], stroke: (_, number) => tones[number - 1] } },
  };
  return new uPlot(options, [chart.times, ...order.map((number) => values[number])], place);
}

function label(seconds, step) {
  const text = new Date(seconds * 1000).toISOString();
  if (step >= 28 * 86400) return text.slice(0, 7);
  return step >= 86400 || text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
}

function drawAll() {
  for (const figure of drawn.keys()) if (!figure.isConnected) drawn.delete(figure);
  document.querySelectorAll("figure[data-chart]").forEach(draw);
}

drawAll();
document.addEventListener("htmx:afterSettle", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
addEventListener("resize", () => drawn.forEach((plots) => plots.forEach((plot) => plot.setSize({ width: plot.root.parentElement.clientWidth, height: plot.height }))));
