// Cells of tables that are cards on narrow screens have the titles of their columns.
"use strict";

function labelCells() {
  for (const table of document.querySelectorAll(".cards > table")) {
    const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.replace(/ [▴▾]$/, ""));
    for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, place) => (cell.dataset.label = titles[place] ?? ""));
  }
}

labelCells();
document.addEventListener("htmx:afterSettle", labelCells);
