// What is wrong with how a page looks; test_looks.py calls each function in each page.

// Texts that are shown, each with its node, the element around it and its boxes.
function listTexts() {
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const over = node.parentElement;
    if (!node.data.trim() || over.closest("script, style, svg, noscript, .hidden-text, .skip, option")) continue;
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()];
    if (boxes.length && over.checkVisibility({ visibilityProperty: true }))
      texts.push({ node, over, boxes, text: node.data.trim().slice(0, 40) });
  }
  return texts;
}

const readColour = (colour) => {
  const [red, green, blue, alpha = 1] = colour.match(/[\d.]+/g).map(Number);
  return [red, green, blue, alpha];
};
const luminance = (colour) => {
  const [red, green, blue] = colour.map((each) => ((each /= 255) <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const mix = (over, under) => [0, 1, 2].map((each) => over[each] * over[3] + under[each] * (1 - over[3]));
const groundOf = (element) => {
  if (!element) return [255, 255, 255];
  const own = readColour(getComputedStyle(element).backgroundColor);
  return own[3] === 1 ? own : mix(own, groundOf(element.parentElement));
};

// Texts that the ground hides. Source: WCAG 2.1, success criterion 1.4.3.
function findPale() {
  return listTexts().flatMap(({ over, text }) => {
    const style = getComputedStyle(over);
    const ground = groundOf(over);
    const size = parseFloat(style.fontSize);
    const [low, high] = [mix(readColour(style.color), ground), ground].map(luminance).sort((one, other) => one - other);
    const ratio = (high + 0.05) / (low + 0.05);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    return ratio < least ? [`${text}: contrast ${ratio.toFixed(2)}`] : [];
  });
}

// Short words that a cell of a table breaks: of at most twelve letters, on a phone of eight.
function findBroken() {
  const most = innerWidth < 600 ? 8 : 12;
  const range = document.createRange();
  return listTexts().flatMap(({ node, over }) => {
    if (!over.closest("td, th")) return [];
    const words = [...node.data.matchAll(/(?<![\w./-])\w+(?![\w./-])/g)].filter(([word]) => word.length <= most);
    return words.flatMap(({ 0: word, index }) => {
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      return new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size > 1 ? [`${word} is broken`] : [];
    });
  });
}

// Words of two elements on a line without a space between.
function findRunTogether() {
  const texts = listTexts();
  return texts.flatMap(({ node, boxes: [box], text }, place) => {
    const before = texts[place - 1];
    if (!before || !/\w$/.test(before.node.data) || !/^\w/.test(node.data)) return [];
    const end = before.boxes.at(-1);
    return Math.abs(box.top - end.top) < 4 && Math.abs(box.left - end.right) < 1 ? [`${before.text}|${text} run together`] : [];
  });
}

// What has no name for a screen reader, ids that stand twice, neighbouring headings that say the same.
function findUnnamed() {
  const nameOf = (each) => each.textContent.trim() || each.ariaLabel || each.title || each.labels?.[0]?.textContent.trim();
  const actions = document.querySelectorAll("button, a[href], summary, select, textarea, input:not([type=hidden])");
  const unnamed = [...actions].filter((each) => !each.closest("[hidden]") && !nameOf(each));
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  const headings = [...document.querySelectorAll("h1, h2, h3, caption:not(.hidden-text)")].map((each) => each.innerText.trim());
  return [
    ...unnamed.map((each) => `no name: ${each.outerHTML.slice(0, 90)}`),
    ...ids.filter((each, place) => ids.indexOf(each) < place).map((each) => `twice: #${each}`),
    ...headings.filter((each, place) => each && each === headings[place - 1]).map((each) => `heading twice: ${each}`),
  ];
}

// Axes whose labels say the same, or touch.
function findBadAxes() {
  if (typeof drawn === "undefined") return [];
  return [...drawn].flatMap(([figure, plots]) =>
    plots.flatMap((plot) => {
      const name = figure.querySelector("figcaption").innerText;
      const [times, values] = plot.axes.map((axis) => axis._values.filter((each) => each));
      const { min, max } = plot.scales.x;
      const places = plot.axes[0]._splits.filter((each) => each >= min && each <= max).map((each) => plot.valToPos(each, "x"));
      return [
        ...(new Set(values).size < values.length ? [`${name}: the axis has ${values}`] : []),
        ...(places.some((each, place) => each - places[place - 1] < 40) ? [`${name}: ${times} touch`] : []),
      ];
    }),
  );
}

// What is wider than its place on a phone: the page, a table in its frame, and a cell; also in what is folded.
function findBeyond() {
  const wrong = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) wrong.push(`the page is ${wide} wide`);
  const folded = document.querySelectorAll("details:not([open])");
  for (const details of folded) details.open = true;
  for (const frame of document.querySelectorAll(".table")) {
    const name = frame.innerText.slice(0, 60).replaceAll("\n", " ");
    if (frame.scrollWidth > frame.clientWidth) wrong.push(`table ${name}: ${frame.scrollWidth} wide`);
    for (const cell of frame.querySelectorAll("tbody :is(th, td):not(.wide-only)")) {
      const box = cell.getBoundingClientRect();
      const text = cell.textContent.trim();
      if ((text && !box.width) || box.right > innerWidth) wrong.push(`table ${name}: hidden ${text}`);
      if (cell.scrollWidth > cell.clientWidth + 1) wrong.push(`table ${name}: cut ${text}`);
    }
  }
  for (const details of folded) details.open = false;
  return wrong;
}

// Tables that scroll sideways.
function findSideways() {
  return [...document.querySelectorAll(".table")]
    .filter((frame) => frame.scrollWidth > frame.clientWidth)
    .map((frame) => `${frame.innerText.slice(0, 60)}: ${frame.scrollWidth} of ${frame.clientWidth}`);
}
