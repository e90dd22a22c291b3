"use strict";
for (const table of document.querySelectorAll("table[data-sort]")) {
  table.querySelectorAll("thead button").forEach((button) => { button.onclick = () => {
    const head = button.parentNode, down = head.getAttribute("aria-sort") === "descending";
    table.querySelectorAll("th[aria-sort]").forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "ascending" : "descending");
    const key = (row) => {
      const cell = row.cells[head.cellIndex];
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
    };
    const sign = down ? 1 : -1, body = table.tBodies[0];
    const order = (x, y) => (x > y ? 1 : x < y ? -1 : 0) * sign;
    [...body.rows].sort((a, b) => order(key(a), key(b))).forEach((row) => body.append(row));
  }; });
}
const words = document.getElementById("words"), which = document.getElementById("which");
if (words) words.oninput = which.onchange = () => {
  let shown = 0;
  for (const row of document.getElementById("list").tBodies[0].rows) {
    row.hidden = (which.value && row.dataset.f !== which.value) || !row.textContent.toLowerCase().includes(words.value.toLowerCase());
    shown += row.hidden ? 0 : 1;
  }
  document.getElementById("shown").textContent = shown + " rows";
};
