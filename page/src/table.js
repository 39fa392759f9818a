// The table of tasks: to filter, to sort, page by page.

import { h, interval, many, percent, points, put } from "./dom.js";

const PAGE = 25;
const COLUMNS = [
  ["task", (row) => row.name, 1],
  ["group", (row) => row.group, 1],
  ["success", (row) => (row.success ? row.success[0] : null), 1],
  ["attempts", (row) => row.attempts, -1],
  ["largest drop", (row) => row.drop, 1],
  ["tokens", (row) => row.tokens, -1],
  ["found", (row) => row.found, -1],
];
const OUTCOMES = {
  all: () => true,
  mixed: (row) => row.successes > 0 && row.successes < row.attempts,
  failed: (row) => row.successes === 0,
  succeeded: (row) => row.attempts > 0 && row.successes === row.attempts,
  "nobody said": (row) => row.successes === null,
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
    const kept = this.rows.filter((row) => OUTCOMES[this.outcome.value](row) && words.every((word) => `${row.name} ${row.group} ${row.at}`.toLowerCase().includes(word)));
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
    const grouped = this.rows.some((row) => row.group && !row.name.startsWith(`${row.group}/`)), found = this.rows.some((row) => row.found);
    const columns = COLUMNS.map((column, at) => [column, at]).filter(([[name]]) => (name !== "group" || grouped) && (name !== "found" || found));
    const cells = {
      task: (row) => {
        const href = this.link(row);
        return h("td", null, href ? h("a", { href }, row.name) : row.name);
      },
      group: (row) => h("td", null, row.group),
      success: (row) => h("td", { class: "n" }, row.success ? [h("i", { class: "share", style: `--p:${100 * row.success[0]}%` }), interval(row.success)] : "-"),
      attempts: (row) => h("td", { class: "n" }, row.attempts, row.forks ? ` + ${many(row.forks, "fork")}` : ""),
      "largest drop": (row) => h("td", null, row.drop === null ? "-" : [h("span", { class: row.drop < 0 ? "down n" : "up n" }, points(row.drop)), row.at ? [" at ", h("code", null, row.at.length > 40 ? `${row.at.slice(0, 39)}\u2026` : row.at)] : ""]),
      tokens: (row) => h("td", { class: "n" }, row.tokens === null ? "-" : row.tokens),
      found: (row) => h("td", { class: "n" }, row.found || "-"),
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
