// The script of ramify's pages. It draws over what the page holds without it, from the data in its JSON block; it sets text, never markup,
// and asks nobody but the server that sent the page whether the run has grown.

import { command, h, put } from "./dom.js";
import { Tree } from "./model.js";
import { listed } from "./runs.js";
import { TreeView } from "./tree.js";
import { showStep } from "./panel.js";
import { sideBySide } from "./compare.js";
import { Tasks } from "./table.js";
import { follow } from "./live.js";

class Explorer {
  constructor(box, data) {
    this.box = box;
    this.page = data;
    this.select = (choice) => this.view.select(choice);
    this.compare = (left, right) => {
      this.pair.hidden = false;
      sideBySide(this.pair, left, right, this.tree, this.select, () => (this.pair.hidden = true));
      this.pair.scrollIntoView({ block: "nearest" });
    };
  }

  // Draw a tree. What was open, chosen and in view in an earlier state of the same tree stays so.
  show(data) {
    const before = this.view;
    this.run = data.run || this.page.run;
    this.node = data.run ? "" : this.page.base;
    this.tree = new Tree(data);
    this.panel = h("div", { class: "panel", tabindex: "0", role: "region", "aria-label": "the chosen step" });
    this.pair = h("div", { class: "sides", hidden: true });
    this.view = new TreeView(this.tree, (choice) => {
      showStep(this.panel, choice, this.tree, this);
      if (choice.ids[0] && location.protocol !== "about:") history.replaceState(null, "", `#step-${choice.ids[0]}`); // a frame has no address
    });
    put(this.box, this.bar(), h("div", { class: "explore", style: `--tall:${Math.round(this.view.tall)}px` }, this.view.element, this.panel), this.pair);
    if (before) {
      this.view.adopt(before);
      return showStep(this.panel, this.view.selected, this.tree, this);
    }
    const first = this.tree.at.get(location.hash.replace(/^#step-/, ""));
    this.view.selected = this.tree.choices[first || (this.tree.lost > 0 ? this.tree.lost : this.tree.drop > 0 ? this.tree.drop : 0)];
    this.view.reveal(this.view.selected);
    this.view.arrange();
    showStep(this.panel, this.view.selected, this.tree, this);
  }

  bar() {
    const { tree } = this;
    const find = h("input", { type: "search", placeholder: "find a step", "aria-label": "find a step" });
    find.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const wanted = find.value.toLowerCase();
      const from = this.view.selected.at;
      const order = [...tree.choices.slice(from + 1), ...tree.choices.slice(1, from + 1)];
      const found = wanted && order.find((choice) => choice.text && choice.text.toLowerCase().includes(wanted));
      find.setAttribute("aria-invalid", String(!found));
      if (found) this.select(found);
    });
    const by = h("select", { "aria-label": "colours show", onchange: () => {
      tree.coloursBy = by.value;
      this.view.recolour();
    } }, h("option", { value: "success" }, "change of success"), tree.creditScale ? h("option", { value: "credit" }, "credit") : "");
    by.value = tree.coloursBy;
    return h("div", { class: "picks" }, find,
      h("label", null, "colours show ", by),
      h("span", { class: "key" }, h("i", { class: "scale" }), "lower \u2013 higher, pale: may be chance"),
      h("span", { class: "key" }, h("i", { class: "branch" }), "branch point"),
      h("span", { class: "key" }, h("i", { class: "edit" }), "edit"));
  }
}

// The data of the page, its table of tasks, and an explorer for each tree in it, made when it first comes into view.
function start() {
  for (const code of document.querySelectorAll("code[data-copy]")) code.replaceWith(command(code.textContent));
  const runs = document.querySelector("[data-runs]");
  if (runs) listed(runs);
  const block = document.getElementById("data");
  if (!block) return;
  let data = JSON.parse(block.textContent);
  document.documentElement.classList.add("scripted");
  const explorers = new Map();
  const make = (box) => {
    const at = Number(box.getAttribute("data-tree"));
    if (!explorers.has(at) && data.trees[at]) {
      explorers.set(at, new Explorer(box, data));
      explorers.get(at).show(data.trees[at]);
    }
    return explorers.get(at);
  };
  const boxes = [...document.querySelectorAll("[data-tree]")];
  const watch = new IntersectionObserver((seen) => seen.forEach((one) => one.isIntersecting && make(one.target)), { rootMargin: "400px" });
  for (const box of boxes) watch.observe(box);

  const table = document.querySelector("[data-tasks]");
  const link = (row) => {
    const at = data.trees.findIndex((tree) => tree.name === row.name);
    return at >= 0 && boxes.length ? `#tree-${at}` : data.base ? `${data.base}/tree/${encodeURIComponent(row.name)}` : "";
  };
  const tasks = table && data.tasks ? new Tasks(table, data.tasks, link) : null;

  const go = () => {
    const wanted = location.hash.replace(/^#step-/, "");
    const box = wanted && boxes.find((one) => data.trees[Number(one.getAttribute("data-tree"))].choices.some((row) => (row.ids || []).includes(wanted)));
    if (!box) return;
    const explorer = make(box);
    box.scrollIntoView();
    explorer.select(explorer.tree.choices[explorer.tree.at.get(wanted)]);
  };
  addEventListener("hashchange", go);
  go();

  if (data.source && location.protocol.startsWith("http")) {
    const status = h("span", { class: "soft", role: "status" });
    document.querySelector("nav:last-of-type").append(status);
    follow(data.base, data.source, (text) => put(status, text), (fresh) => {
      for (const [at, explorer] of explorers) {
        const now = fresh.trees.find((tree) => tree.name === data.trees[at].name);
        if (now && JSON.stringify(now) !== JSON.stringify(data.trees[at])) {
          explorer.show(now);
          data.trees[at] = now;
        }
      }
      if (tasks) tasks.update(fresh.tasks);
    });
  }
}

start();
