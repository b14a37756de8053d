// On narrow screens each row of a table with many columns is a card, whose cells have the titles of their columns;
// a table with few columns is slim: its cells wrap.
"use strict";

const FEW = 3; // columns that a narrow screen has room for

const titleOf = (head) => (head.querySelector(".hidden-text") ? "" : head.textContent.replace(/ [▴▾]$/, ""));

function labelCells() {
  for (const table of document.querySelectorAll(".table > table")) {
    const titles = [...table.tHead.rows[0].cells].map(titleOf);
    table.parentElement.classList.add(titles.length > FEW ? "cards" : "slim");
    for (const { cells } of table.tBodies[0].rows)
      [...cells].forEach((cell, place) => (cell.dataset.label = cell.colSpan > 1 ? "" : titles[place] ?? ""));
  }
}

labelCells();
for (const event of ["htmx:afterSwap", "htmx:afterSettle"]) document.addEventListener(event, labelCells);
