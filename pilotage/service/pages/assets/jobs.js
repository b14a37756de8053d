// Ticked jobs stay ticked when the list is loaded anew, and one box ticks all.
"use strict";

const boxes = () => document.querySelectorAll('#jobs input[name="ids"]');

const show = () => {
  const count = [...boxes()].filter((box) => box.checked).length;
  const shown = document.querySelector("[data-ticked]");
  if (shown) shown.textContent = count ? `${count} ticked.` : "";
  const all = document.querySelector("[data-pick-all]");
  if (!all) return;
  const every = [...boxes()];
  all.hidden = false;
  all.checked = every.length > 0 && every.every((box) => box.checked);
};

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-pick-all]")) boxes().forEach((box) => (box.checked = event.target.checked));
  show();
});

let ticked = new Set();
document.addEventListener("htmx:beforeSwap", () => {
  ticked = new Set([...boxes()].filter((box) => box.checked).map((box) => box.id));
});
document.addEventListener("htmx:afterSwap", () => {
  boxes().forEach((box) => (box.checked = ticked.has(box.id)));
  show();
});
show();

// Named filters, kept in this browser.
const views = document.querySelector("[data-views]");
const STORED = "pilotage-views";
const readViews = () => JSON.parse(localStorage.getItem(STORED) ?? "{}");
const storeViews = (all) => {
  localStorage.setItem(STORED, JSON.stringify(all));
  showViews();
};

function showViews() {
  const all = readViews();
  const list = views.querySelector("span");
  list.replaceChildren();
  for (const [name, address] of Object.entries(all)) {
    const link = Object.assign(document.createElement("a"), { textContent: name, href: `/jobs${address}` });
    const drop = Object.assign(document.createElement("button"), { textContent: "×", type: "button", className: "quiet", ariaLabel: `Forget ${name}` });
    drop.addEventListener("click", () => {
      delete all[name];
      storeViews(all);
    });
    list.append(link, drop);
  }
}

if (views) {
  views.hidden = false;
  document.querySelector("[data-views] > button").addEventListener("click", () => {
    const name = prompt("Name of this view");
    if (name) storeViews({ ...readViews(), [name]: location.search });
  });
  showViews();
}
