// The tree: time runs to the right, every choice with its text. Only what is in view is in the document; from far away, dots.

import { hierarchy, tree as layout } from "d3-hierarchy";
import { select } from "d3-selection";
import { zoom as makeZoom, zoomIdentity } from "d3-zoom";
import { clip, colour, h, many, percent, s } from "./dom.js";
import { endings } from "./model.js";

const ROW = 40, FEW = 64, DETAIL = 700;
const MARKS = { success: "M-4 0l3 3.5l5.5 -7", failure: "M-3.5 -3.5l7 7m0 -7l-7 7", cut: "M-4 0h8" };

export class TreeView {
  constructor(tree, onselect) {
    this.tree = tree;
    this.onselect = onselect;
    this.open = new Set();
    this.selected = null;
    this.frame = 0;
    this.edges = s("path", { class: "edge" });
    this.dots = s("g");
    this.nodes = s("g");
    this.group = s("g", null, this.edges, this.dots, this.nodes);
    this.svg = s("svg", { class: "map", tabindex: "0", role: "tree", "aria-label": `Attempts of ${tree.name}`, onkeydown: (event) => this.key(event) }, this.group);
    this.element = h("div", { class: "mapbox" }, this.svg, this.buttons());
    this.zoom = makeZoom().scaleExtent([0.02, 3]).on("zoom", ({ transform }) => {
      this.transform = transform;
      this.group.setAttribute("transform", transform.toString());
      if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
    });
    this.transform = zoomIdentity;
    select(this.svg).call(this.zoom).on("dblclick.zoom", null);
    // Columns as wide as most texts need: short actions stand closer together.
    const widths = tree.choices.slice(1).map((choice) => Math.min(26, choice.label.length)).sort((a, b) => a - b);
    this.column = 52 + 6.6 * Math.max(8, widths[Math.floor(widths.length * 0.95)] || 0);
    this.expandFirst();
    new ResizeObserver(() => this.sized()).observe(this.svg);
  }

  buttons() {
    const button = (text, title, act) => h("button", { type: "button", title, "aria-label": title, onclick: act }, text);
    return h("div", { class: "tools" },
      button("+", "zoom in (+)", () => this.scale(1.4)),
      button("\u2212", "zoom out (\u2212)", () => this.scale(1 / 1.4)),
      button("fit", "show the whole tree (0)", () => this.fit()),
      button("all", "open every branch", () => this.openAll()),
      button("less", "close rare branches", () => this.closeRare()));
  }

  // Open the most travelled branches first, until there is enough to read; and the ways to what was found.
  expandFirst() {
    const { choices, lost, drop, findings } = this.tree;
    const most = innerWidth < 700 ? FEW / 2 : FEW;
    const queue = [choices[0]];
    let shown = 1;
    while (queue.length && shown < most) {
      let best = 0;
      for (let i = 1; i < queue.length; i++) if (queue[i].reach > queue[best].reach) best = i;
      const [next] = queue.splice(best, 1);
      if (!next.children.length) continue;
      this.open.add(next.at);
      shown += next.children.length;
      queue.push(...next.children);
    }
    for (const at of [lost, drop, ...[...findings.keys()].slice(0, 20)]) if (at > 0) this.reveal(choices[at]);
    this.arrange();
  }

  // Take over what was open, chosen and in view in the view of an earlier state of the same tree.
  adopt(before) {
    const now = (at) => (at ? this.tree.at.get(before.tree.choices[at].ids[0]) : 0);
    this.open = new Set([...before.open].map(now).filter((at) => at !== undefined));
    this.selected = this.tree.choices[now(before.selected ? before.selected.at : 0) || 0];
    this.placed = true;
    this.arrange();
    this.move(before.transform);
  }

  reveal(choice) {
    for (const step of this.tree.path(choice).slice(0, -1)) this.open.add(step.at);
  }

  arrange() {
    const root = hierarchy(this.tree.choices[0], (choice) => (this.open.has(choice.at) ? choice.children : null));
    layout().nodeSize([ROW, this.column]).separation(() => 1)(root);
    this.places = root.descendants();
    this.place = new Map(this.places.map((node) => [node.data.at, node]));
    this.edges.setAttribute("d", this.places.slice(1).map((node) => line(node.parent, node, this.column)).join(""));
    this.drawDots();
    this.draw();
  }

  // All places as one path a colour: ten thousand of them are a handful of elements.
  drawDots() {
    const paths = new Map();
    for (const node of this.places) {
      const fill = colour(...this.tree.colourOf(node.data));
      paths.set(fill, (paths.get(fill) || "") + `M${node.y} ${node.x}h.01`);
    }
    this.dots.replaceChildren(...[...paths].map(([stroke, d]) => s("path", { d, class: "dots", stroke: stroke === "var(--paper)" ? "var(--line)" : stroke })));
  }

  visible() {
    const { k, x, y } = this.transform, { clientWidth, clientHeight } = this.svg;
    const left = (-x - 260) / k, right = (clientWidth - x + 40) / k, top = (-y - 60) / k, bottom = (clientHeight - y + 60) / k;
    return this.places.filter((node) => node.y > left && node.y < right && node.x > top && node.x < bottom);
  }

  draw() {
    this.frame = 0;
    const seen = this.visible();
    const near = seen.length <= DETAIL && this.transform.k > 0.3;
    this.dots.style.display = near ? "none" : "";
    this.edges.style.strokeWidth = near ? "" : String(1 / this.transform.k);
    this.nodes.setAttribute("class", this.transform.k > 0.62 ? "" : "far");
    select(this.nodes).selectAll("g.choice").data(near ? seen : seen.filter((node) => node.data === this.selected), (node) => node.data.at)
      .join((enter) => enter.append((node) => this.node(node.data)))
      .attr("transform", (node) => `translate(${node.y},${node.x})`)
      .attr("aria-selected", (node) => String(node.data === this.selected))
      .attr("aria-expanded", (node) => (node.data.children.length ? String(this.open.has(node.data.at)) : null))
      .select(".more").text((node) => (this.open.has(node.data.at) || !node.data.children.length ? "" : ` +${node.data.size - 1}`));
  }

  node(choice) {
    const { tree } = this;
    const [change, scale, sure] = tree.colourOf(choice);
    const fill = colour(change, scale, sure);
    const shape = !choice.at ? s("rect", { x: -7, y: -7, width: 14, height: 14, rx: 2, class: "rim", fill })
      : choice.edit ? s("path", { d: "M0 -9L9 0L0 9L-9 0Z", class: "rim", fill })
        : s("circle", { r: 7, class: "rim", fill });
    const ring = choice.children.length > 1 ? s("circle", { r: 10.5, class: "ring" }) : null;
    const lost = choice.at && choice.at === tree.lost ? s("circle", { r: 15, class: "lost" }) : null;
    const flag = tree.findings.has(choice.at) ? s("path", { d: "M-12 -9v-11h11l-3 3.5l3 3.5h-11", class: "flag" }) : null;
    const ends = Object.keys(choice.ends || {});
    const mark = ends.length && MARKS[ends[0]] ? s("path", { d: MARKS[ends[0]], class: "mark", transform: "translate(20 0)" }) : null;
    const name = choice.at ? clip(choice.label, Math.max(10, (this.column - (choice.ends ? 62 : 46)) / 6.6)) || "(nothing)" : "task";
    const facts = [choice.n > 1 ? `\u00d7${choice.n}` : "", choice.p ? percent(choice.p[0]) : "", choice.edit ? "edit" : ""].filter(Boolean).join(" \u00b7 ");
    const shift = ends.length && MARKS[ends[0]] ? 30 : 13;
    const label = choice.at ? `${clip(choice.text, 200)}, ${many(choice.n, "sample")}${choice.p ? `, success after it ${percent(choice.p[0])}` : ""}${choice.ends ? `, ${endings(choice.ends)}` : ""}` : "task";
    return s("g", { class: "choice", role: "treeitem", id: `choice-${choice.at}`, "aria-label": label, onclick: (event) => this.click(event, choice) },
      s("title", null, label), s("rect", { class: "hit", x: -12, y: -19, width: this.column - 16, height: 37 }),
      lost, ring, shape, flag, mark,
      s("text", { x: choice.at ? shift : 13, y: choice.children.length ? -6 : -1, class: "name" }, name),
      s("text", { x: shift, y: choice.children.length ? 15 : 13, class: "facts" }, facts, s("tspan", { class: "more" })));
  }

  click(event, choice) {
    if (choice === this.selected || event.target.classList.contains("more")) this.toggle(choice);
    this.select(choice, false);
  }

  toggle(choice) {
    if (!choice.children.length) return;
    if (!this.open.delete(choice.at)) this.open.add(choice.at);
    const before = this.place.get(choice.at);
    const [x, y] = [before.x, before.y];
    this.arrange();
    const after = this.place.get(choice.at);
    this.move(this.transform.translate(y - after.y, x - after.x)); // what was clicked stays where it is
  }

  select(choice, follow = true) {
    this.selected = choice;
    if (!this.place.has(choice.at)) {
      this.reveal(choice);
      this.arrange();
    } else this.draw();
    this.svg.setAttribute("aria-activedescendant", `choice-${choice.at}`);
    if (follow) this.follow(choice);
    this.onselect(choice);
  }

  // Bring a choice into view, moving no further than needed.
  follow(choice) {
    const { x, y } = this.place.get(choice.at), { k } = this.transform, { clientWidth: w, clientHeight: t } = this.svg;
    if (!w) return;
    const [px, py] = this.transform.apply([y, x]);
    const dx = px < 60 ? w / 4 - px : px > w - 180 ? Math.max(60, w - 260) - px : 0;
    const dy = py < 40 || py > t - 40 ? t / 2 - py : 0;
    if (dx || dy || k < 0.62) this.move(k < 0.62 ? zoomIdentity.translate(w / 3 - y * 0.9, t / 2 - x * 0.9).scale(0.9) : this.transform.translate(dx / k, dy / k));
  }

  move(transform) {
    select(this.svg).call(this.zoom.transform, transform);
  }

  scale(factor) {
    select(this.svg).call(this.zoom.scaleBy, factor);
  }

  box() {
    let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y } of this.places) {
      left = Math.min(left, y);
      right = Math.max(right, y);
      top = Math.min(top, x);
      bottom = Math.max(bottom, x);
    }
    return { left: left - 30, right: right + this.column, top: top - 40, bottom: bottom + 40 };
  }

  fit(least = 0.02) {
    const { left, right, top, bottom } = this.box(), { clientWidth: w, clientHeight: t } = this.svg;
    if (!w) return;
    const k = Math.max(least, Math.min(1, w / (right - left), t / (bottom - top)));
    const fits = (bottom - top) * k <= t;
    this.move(zoomIdentity.translate(10 - left * k, fits ? t / 2 - (k * (top + bottom)) / 2 : t / 2 - k * this.places[0].x).scale(k));
  }

  sized() {
    if (!this.svg.clientWidth) return;
    if (!this.placed) {
      this.placed = true;
      this.fit(0.9);
      if (this.selected && this.selected.at) this.follow(this.selected);
    }
    this.draw();
  }

  openAll() {
    for (const choice of this.tree.choices) if (choice.children.length) this.open.add(choice.at);
    this.arrange();
    this.fit();
  }

  closeRare() {
    this.open.clear();
    this.expandFirst();
    this.fit(0.9);
  }

  // As tall as its rows need, within what a screen shows.
  get tall() {
    const { top, bottom } = this.box();
    return Math.max(300, Math.min(0.8 * innerHeight, 720, bottom - top + 40));
  }

  recolour() {
    this.nodes.replaceChildren();
    this.drawDots();
    this.draw();
  }

  key(event) {
    const here = this.selected || this.tree.choices[0];
    const column = () => this.places.filter((node) => node.depth === this.place.get(here.at).depth).sort((a, b) => a.x - b.x).map((node) => node.data);
    const acts = {
      ArrowLeft: () => this.tree.parent(here),
      ArrowRight: () => {
        if (here.children.length && !this.open.has(here.at)) this.toggle(here);
        return here.children[0];
      },
      ArrowUp: () => column()[column().indexOf(here) - 1],
      ArrowDown: () => column()[column().indexOf(here) + 1],
      Home: () => this.tree.choices[0],
      End: () => this.tree.through(here),
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in acts) {
      const next = acts[event.key]();
      if (next) this.select(next);
    } else if (event.key === " " || event.key === "Enter") this.toggle(here);
    else if (event.key === "+" || event.key === "=") this.scale(1.4);
    else if (event.key === "-") this.scale(1 / 1.4);
    else if (event.key === "0") this.fit();
    else if (event.key === "l" && this.tree.lost > 0) this.select(this.tree.choices[this.tree.lost]);
    else if (event.key === "d" && this.tree.drop > 0) this.select(this.tree.choices[this.tree.drop]);
    else return;
    event.preventDefault();
  }
}

function line(from, to, column) {
  const bend = from.y + column * 0.25;
  return from.x === to.x ? `M${from.y} ${from.x}H${to.y}` : `M${from.y} ${from.x}C${bend} ${from.x} ${from.y + 20} ${to.x} ${from.y + column * 0.5} ${to.x}H${to.y}`;
}
