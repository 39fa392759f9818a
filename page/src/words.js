// The text of a reply, coloured by what was measured inside it: per token or per sentence, with the alternatives at a position.

import { clip, command, h, heat, interval, many, percent, points, put } from "./dom.js";

export function reply(choice, tree, onselect) {
  const inside = choice.inside;
  if (!inside) return h("pre", null, choice.text);
  const kinds = [];
  if (inside.potential) kinds.push(["potential", "change of success"]);
  if (inside.logprobs) kinds.push(["logprobs", "probability of each token"]);
  for (const name of Object.keys(inside.values || {})) kinds.push([name, name]);
  const box = h("pre", { class: "tokens" });
  const panel = h("div", { class: "at", "aria-live": "polite" });
  const units = h("select", { "aria-label": "by", onchange: draw }, h("option", { value: "tokens" }, "tokens"), h("option", { value: "sentences" }, "sentences"));
  const shown = h("select", { "aria-label": "coloured by", onchange: draw }, h("option", { value: "" }, "no colours"), kinds.map(([value, text]) => h("option", { value }, text)));
  shown.value = inside.potential ? "potential" : "";
  function draw() {
    const pieces = units.value === "tokens" ? tokens(choice) : sentences(choice);
    put(box, pieces.map((piece) => {
      const [value, scale] = valueOf(inside, shown.value, piece);
      const forks = alternatives(choice, tree, piece);
      const cliff = (inside.cliffs || []).some(([t]) => t > piece.from && t <= piece.to) || odds(inside, piece).some((row) => row[5]);
      return h("span", {
        class: `token${forks.length ? " forked" : ""}${cliff ? " cliff" : ""}`, tabindex: "0", role: "button",
        style: value === null ? null : `--heat:${heat(value, scale)}`, title: titleOf(inside, shown.value, piece, value),
        onclick: () => at(piece), onkeydown: (event) => (event.key === "Enter" ? at(piece) : 0),
      }, piece.text);
    }));
  }
  function at(piece) {
    const forks = alternatives(choice, tree, piece);
    const before = measured(inside, piece.from), after = next(inside, piece.to);
    const cliffs = (inside.cliffs || []).filter(([t]) => t > piece.from && t <= piece.to);
    put(panel,
      h("p", null, h("strong", null, `\u201c${clip(piece.text, 80)}\u201d`), ` token ${piece.from}${piece.to - piece.from > 1 ? ` to ${piece.to - 1}` : ""}`,
        before && after ? `: success ${interval(before)} \u2192 ${interval(after)}` : "",
        inside.logprobs ? `; probability ${percent(Math.exp(sum(inside.logprobs, piece)))}` : ""),
      oddsTable(odds(inside, piece)),
      cliffs.map(([, kind, note]) => h("p", null, h("strong", null, kind), note ? `: ${note}` : "")),
      forks.length ? h("table", null, h("thead", null, h("tr", null, ["instead", "samples", "success"].map((t) => h("th", { scope: "col" }, t)))),
        h("tbody", null, forks.map((other) => h("tr", null,
          h("td", null, h("button", { class: "link", type: "button", onclick: () => onselect(other) }, clip(other.text.slice(other.fork_of[1]), 60) || "(end)")),
          h("td", null, other.n), h("td", null, other.p ? interval(other.p) : "-"))))) : odds(inside, piece).length ? "" : h("p", { class: "soft" }, "Nothing else was sampled here."),
      tree.able.filter(([, , tail]) => tail.startsWith(":0")).map(([, head, tail]) => choice.ids.length ? command(`${head}${choice.ids[0].slice(0, 12)}:${piece.from}${tail.slice(2)}`) : ""));
  }
  draw();
  return h("div", null, h("div", { class: "picks soft" }, h("label", null, "coloured by ", shown), h("label", null, "by ", units)), box, panel);
}

function tokens(choice) {
  let start = 0;
  return choice.inside.ends.map((end, at) => {
    const piece = { text: choice.text.slice(start, end), from: at, to: at + 1, start, end };
    start = end;
    return piece;
  });
}

function sentences(choice) {
  const made = [];
  for (const piece of tokens(choice)) {
    const last = made[made.length - 1];
    if (!last || /(?:[.!?]\s+|\n)$/.test(last.text)) made.push({ ...piece });
    else {
      last.text += piece.text;
      last.to = piece.to;
      last.end = piece.end;
    }
  }
  return made;
}

// [p, low, high, n] at the last measured position up to token t, and at the first one from it on.
function measured(inside, t) {
  let found = null;
  for (const [at, ...rest] of inside.potential || []) if (at <= t) found = rest;
  return found;
}

function next(inside, t) {
  const found = (inside.potential || []).find(([at]) => at >= t);
  return found ? found.slice(1) : null;
}

function valueOf(inside, kind, piece) {
  if (kind === "potential") {
    const before = measured(inside, piece.from), after = next(inside, piece.to);
    return before && after ? [after[0] - before[0], 1] : [null, 1];
  }
  if (kind === "logprobs") return [Math.max(-1, sum(inside.logprobs, piece) / (piece.to - piece.from) / 5), 1];
  const values = (inside.values || {})[kind];
  if (!values) return [null, 1];
  return [sum(values, piece) / (piece.to - piece.from), Math.max(1e-9, ...values.map(Math.abs))];
}

function titleOf(inside, kind, piece, value) {
  const after = next(inside, piece.to);
  if (kind === "potential") return value === null ? "" : `${points(value)} points, then ${interval(after)} of ${many(after[3], "fork")}`;
  if (kind === "logprobs") return `probability ${percent(Math.exp(sum(inside.logprobs, piece)))}`;
  return value === null ? "" : `${kind}: ${value.toPrecision(3)}`;
}

const sum = (values, piece) => values.slice(piece.from, piece.to).reduce((a, b) => a + b, 0);

// Other tokens that `ramify why --tokens` forced at a position.
const odds = (inside, piece) => (inside.odds || []).filter(([t]) => t >= piece.from && t < piece.to);

function oddsTable(rows) {
  if (!rows.length) return "";
  return h("div", { class: "table" }, h("table", null,
    h("thead", null, h("tr", null, ["instead", "odds", "as recorded", "with its own", "elsewhere"].map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", null, rows.map(([, text, p, kept, changed, named]) => h("tr", null,
      h("td", null, h("code", null, text)), h("td", { class: "n" }, percent(p)), h("td", { class: "n" }, changed), h("td", { class: "n" }, kept),
      h("td", null, named ? h("strong", null, "yes") : ""))))));
}

// Replies that continue differently from a position of this one.
function alternatives(choice, tree, piece) {
  return tree.choices.filter((other) => other.fork_of && other.fork_of[0] === choice.at && other.fork_of[1] >= piece.start && other.fork_of[1] < piece.end);
}
