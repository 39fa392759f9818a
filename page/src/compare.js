// Two branches beside each other: what they share once, then step by step, differences marked.

import { h, many, percent, put } from "./dom.js";
import { endings } from "./model.js";

export function sideBySide(box, left, right, tree, onselect, close) {
  const [a, b] = [tree.path(left).slice(1), tree.path(right).slice(1)];
  let shared = 0;
  while (shared < a.length && shared < b.length && a[shared] === b[shared]) shared++;
  // What each step of the two paths got back: what stands before the next one, or at the end what answered it.
  const got = new Map([a, b].flatMap((path) => path.map((one, i) => [one, (path[i + 1] ? path[i + 1].lead : one.answers.map(([at]) => at)).map((at) => tree.messages[at][1]).join("\n")])));
  const rows = align(a.slice(shared), b.slice(shared), (one) => `${one.lead.map((at) => tree.messages[at][1]).join("\n")}\u0000${one.text}`, (one) => one.text);
  put(box,
    h("div", { class: "head" }, h("h4", null, "Side by side"), h("button", { type: "button", onclick: close }, "close")),
    h("p", { class: "soft" }, shared ? `${many(shared, "equal step")} first, the last one \u201c${a[shared - 1].text}\u201d.` : "They part at the first step."),
    h("div", { class: "table" }, h("table", { class: "pair" },
      h("thead", null, h("tr", null, [[left, a], [right, b]].map(([end, path]) => h("th", { scope: "col" }, `${many(path.length, "step")}: ${endings(end.ends) || "goes on"}`)))),
      h("tbody", null, rows.map(([one, other, same]) => h("tr", { class: same ? "same" : "differs" }, cell(one, other, same), cell(other, one, same)))))));
  function cell(one, other, same) {
    if (!one) return h("td", { class: "none" });
    const answer = got.get(one), theirs = other ? got.get(other) : null;
    return h("td", null,
      h("button", { class: "link", type: "button", onclick: () => onselect(one) }, same || !other ? one.text || "(nothing)" : marked(one.text, other.text)),
      one.p ? h("span", { class: "soft" }, ` ${percent(one.p[0])}`) : "",
      answer ? h("div", { class: "answer" }, theirs === null || theirs === answer ? answer : marked(answer, theirs)) : "");
  }
}

// Pairs of two sequences: equal entries beside each other (the longest common subsequence), the rest in order.
export function align(a, b, key, near) {
  const cut = 400; // steps compared exactly; beyond them in order
  const n = Math.min(a.length, cut), m = Math.min(b.length, cut);
  const [ka, kb] = [a.slice(0, n).map(near), b.slice(0, m).map(near)];
  const best = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--) best[i][j] = ka[i] === kb[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const rows = [];
  let i = 0, j = 0;
  while (i < n && j < m) {
    if (ka[i] === kb[j]) rows.push([a[i], b[j], key(a[i++]) === key(b[j++])]);
    else if (best[i + 1][j + 1] === best[i][j]) rows.push([a[i++], b[j++], false]);
    else if (best[i + 1][j] >= best[i][j + 1]) rows.push([a[i++], null, false]);
    else rows.push([null, b[j++], false]);
  }
  while (i < a.length || j < b.length) rows.push([a[i++] || null, b[j++] || null, false]);
  return rows;
}

// A text with the words marked that the other one does not have in this order.
function marked(text, other) {
  const [words, theirs] = [text.split(/(\s+)/), other.split(/(\s+)/)];
  if (words.length > 800 || theirs.length > 800) return text;
  return align(words, theirs, (word) => word, (word) => word).map(([mine, , same]) => (mine === null ? "" : same || /^\s*$/.test(mine) ? mine : h("mark", null, mine)));
}
