// The table of tasks: to filter, to sort, page by page.

import { h, interval, many, percent, points, put } from "./dom.js";

const PAGE = 25;
const COLUMNS = [
  ["task", (row) => row[0], 1],
  ["group", (row) => row[1], 1],
  ["success", (row) => (row[4] ? row[4][0] : null), 1],
  ["attempts", (row) => row[2], -1],
  ["largest drop", (row) => row[5], 1],
  ["tokens", (row) => row[7], -1],
  ["found", (row) => row[8], -1],
];
const OUTCOMES = {
  all: () => true,
  mixed: (row) => row[3] > 0 && row[3] < row[2],
  failed: (row) => row[3] === 0,
  succeeded: (row) => row[2] > 0 && row[3] === row[2],
  "nobody said": (row) => row[3] === null,
};

export class Tasks {
  constructor(box, rows, link) {
    this.box = box;
    this.link = link;
    this.by = -1;
    this.turn = 1;
    this.page = 0;
    this.rows = rows;
    const again = () => {
      this.page = 0;
      this.draw();
    };
    this.find = h("input", { type: "search", placeholder: "filter tasks", "aria-label": "filter tasks", oninput: again });
    this.outcome = h("select", { "aria-label": "outcome", onchange: again }, Object.keys(OUTCOMES).map((name) => h("option", { value: name }, name)));
    this.body = h("div");
    put(box, h("div", { class: "picks" }, this.find, h("label", null, "outcome ", this.outcome)), this.body);
    this.draw();
  }

  draw() {
    const words = this.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = this.rows.filter((row) => OUTCOMES[this.outcome.value](row) && words.every((word) => `${row[0]} ${row[1]} ${row[6]}`.toLowerCase().includes(word)));
    if (this.by >= 0) {
      const value = COLUMNS[this.by][1];
      kept.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        return this.turn * (x < y ? -1 : x > y ? 1 : 0);
      });
    }
    const pages = Math.max(1, Math.ceil(kept.length / PAGE));
    this.page = Math.min(this.page, pages - 1);
    const grouped = this.rows.some((row) => row[1] && !row[0].startsWith(`${row[1]}/`)), found = this.rows.some((row) => row[8]);
    const columns = COLUMNS.map((column, at) => [column, at]).filter(([[name]]) => (name !== "group" || grouped) && (name !== "found" || found));
    const cells = {
      task: (row) => {
        const href = this.link(row);
        return h("td", null, href ? h("a", { href }, row[0]) : row[0]);
      },
      group: (row) => h("td", null, row[1]),
      success: (row) => h("td", { class: "n" }, row[4] ? [h("i", { class: "share", style: `--p:${100 * row[4][0]}%` }), interval(row[4])] : "-"),
      attempts: (row) => h("td", { class: "n" }, row[2], row[9] ? ` + ${many(row[9], "fork")}` : ""),
      "largest drop": (row) => h("td", null, row[5] === null ? "-" : [h("span", { class: row[5] < 0 ? "down n" : "up n" }, points(row[5])), row[6] ? [" at ", h("code", null, row[6].length > 40 ? `${row[6].slice(0, 39)}\u2026` : row[6])] : ""]),
      tokens: (row) => h("td", { class: "n" }, row[7] === null ? "-" : row[7]),
      found: (row) => h("td", { class: "n" }, row[8] || "-"),
    };
    const turn = (at) => {
      this.turn = this.by === at ? -this.turn : COLUMNS[at][2];
      this.by = at;
      this.draw();
    };
    put(this.body,
      h("div", { class: "table" }, h("table", { class: "tasks" },
        h("thead", null, h("tr", null, columns.map(([[name], at]) => h("th", { scope: "col", "aria-sort": this.by === at ? (this.turn > 0 ? "ascending" : "descending") : null },
          h("button", { class: "link", type: "button", onclick: () => turn(at) }, name, this.by === at ? (this.turn > 0 ? " \u2191" : " \u2193") : ""))))),
        h("tbody", null, kept.slice(this.page * PAGE, (this.page + 1) * PAGE).map((row) => h("tr", null, columns.map(([[name]]) => cells[name](row))))))),
      h("div", { class: "picks" },
        h("span", { class: "soft" }, kept.length === this.rows.length ? many(kept.length, "task") : `${kept.length} of ${many(this.rows.length, "task")}`),
        pages > 1 ? [
          h("button", { type: "button", disabled: this.page === 0, onclick: () => this.go(-1) }, "before"),
          h("span", null, `page ${this.page + 1} of ${pages}`),
          h("button", { type: "button", disabled: this.page === pages - 1, onclick: () => this.go(1) }, "next")] : ""));
  }

  go(by) {
    this.page += by;
    this.draw();
  }

  update(rows) {
    this.rows = rows;
    this.draw();
  }
}
