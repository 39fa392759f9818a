// The list of all runs: a filter of what is listed, and arrow keys between its rows. The server sorts, and makes the rows.

import { h, many } from "./dom.js";

export function listed(box) {
  const rows = [...box.querySelectorAll("tbody tr")];
  const said = h("span", { class: "soft", role: "status" });
  const find = h("input", { type: "search", placeholder: "filter runs", "aria-label": "filter runs", oninput: () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    said.textContent = words.length ? `${many(rows.filter((row) => !row.hidden).length, "run")} on this page` : "";
  } });
  box.before(h("div", { class: "picks" }, find, said));
  box.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const here = event.target.closest("tbody tr");
    if (!by || !here) return;
    const open = rows.filter((row) => !row.hidden);
    const next = open[open.indexOf(here) + by];
    if (!next) return;
    event.preventDefault();
    next.querySelector("a").focus();
  });
}
