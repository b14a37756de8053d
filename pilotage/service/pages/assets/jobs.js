// Ticked jobs stay ticked when the list is loaded anew, and one box ticks all.
"use strict";

const boxes = () => document.querySelectorAll('#jobs input[name="ids"]');

const show = () => {
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
