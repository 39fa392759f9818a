// One step: what it was shown, did and got back; its potential; what others chose there; the command that forks it.

import { clip, colour, command, h, interval, many, percent, points, put, sentence } from "./dom.js";
import { endings } from "./model.js";
import { reply } from "./words.js";

export function showStep(box, choice, tree, page) {
  box.scrollTop = 0;
  const before = tree.parent(choice);
  put(box, choice.at ? [
    h("div", { class: "head" }, h("span", { class: "soft" }, `step ${choice.depth}`), h("h4", null, clip(choice.label, 120) || "(nothing)")),
    chance(choice),
    choice.edit ? h("p", null, h("strong", null, "Changed by a fork: "), h("code", null, choice.edit), " What follows does not count for the steps before it.") : "",
    (tree.findings.get(choice.at) || []).map(finding),
    section("It did", true, choice.thought ? [h("div", { class: "soft" }, "reasoning"), h("pre", null, choice.thought)] : "", reply(choice, tree, page.select)),
    choice.answers.length ? section("It got back", true, choice.answers.map(([at, n]) => [
      h("div", { class: "soft" }, tree.messages[at][0], choice.answers.length > 1 || n > 1 ? ` \u00d7${n}` : ""), h("pre", null, tree.messages[at][1])])) : "",
    choice.ends ? h("p", null, `Here ${endings(choice.ends)}`, choice.reward !== undefined ? `, reward ${choice.reward}` : "", ".") : "",
    others(choice, tree, page),
    shown(choice, tree),
    choice.why ? section(`Why it is credited${choice.credit === undefined ? "" : `: ${choice.credit}`}`, false, numbers(choice.why)) : "",
    (choice.grades || []).map(([maker, rows]) => section(`Graded by ${maker}`, false, numbers(rows))),
    choice.scores ? section("Scores", false, table(["by", "value", "what", "judge's version"], choice.scores)) : "",
    section("Go on from here", true, commands(choice, before, page)),
  ] : [
    h("h4", null, "The task"),
    choice.p ? h("p", null, `Success of ${tree.forks ? `${choice.below} attempts and forks` : many(choice.below, "attempt")}: ${interval(choice.p)}.`) : "",
    (tree.findings.get(0) || []).map(finding),
    (tree.choices[1] ? tree.choices[1].lead : []).map((at) => [h("div", { class: "soft" }, tree.messages[at][0]), h("pre", null, tree.messages[at][1])]),
    section("The task as data", false, h("pre", null, tree.task)),
    h("p", { class: "soft" }, "Click a step, or use the arrow keys: right opens and goes on, left goes back, up and down go to the other steps, space opens and closes a branch, + \u2212 0 zoom, d goes to the largest drop."),
  ]);
}

function section(title, open, ...children) {
  return h("details", { class: "part", open }, h("summary", null, title), children);
}

function chance(choice) {
  if (!choice.p) return h("p", { class: "soft" }, `${many(choice.n, "sample")}; nobody said which attempts succeeded.`);
  const [p, low, high, n] = choice.p;
  const { was } = choice;
  return h("div", { class: "chance" },
    h("div", { class: "big" }, was ? `${percent(was[0])} \u2192 ` : "", percent(p),
      was ? h("span", { class: choice.change < 0 ? "down" : choice.change > 0 ? "up" : null }, ` ${points(p - was[0])}`) : ""),
    h("div", { class: "bar", style: `--low:${100 * low}%;--high:${100 * high}%;--p:${100 * p}%;--was:${was ? 100 * was[0] : -9}%;--heat:${colour(choice.change, 1, choice.sure)}` }),
    h("div", { class: "soft" }, `success after this step, 95 % interval ${Math.round(100 * low)} to ${Math.round(100 * high)}; `,
      choice.measured === "attempt" ? `${many(n, "attempt")} counted by ramify why` : choice.measured ? many(n, "fork") : `${many(choice.below, "attempt")} here${Math.abs(n - choice.below) > 0.5 ? `, worth ${n.toFixed(1)} independent ones` : ""}`,
      was && !choice.sure ? "; the change may be chance" : ""));
}

function others(choice, tree, page) {
  const rivals = tree.rivals(choice);
  if (!rivals.length) return "";
  const all = rivals.reduce((sum, group) => sum + group.n, 0);
  return section(`What others chose here (${many(all, "sample")})`, true,
    h("p", { class: "soft" }, "In the same state anywhere in this tree, as ramify why counts; a step's own bar counts what has its whole history."), h("div", { class: "table" }, h("table", null,
    h("thead", null, h("tr", null, ["action", "samples", "then succeeded", ""].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", null, rivals.slice(0, 20).map((group) => h("tr", { class: group.here ? "here" : null },
      h("td", null, h("button", { class: "link", type: "button", onclick: () => page.select(group.first) }, clip(group.first.label, 60) || "(nothing)")),
      h("td", { class: "n" }, group.n), h("td", { class: "n" }, group.p ? interval(group.p) : "-"),
      h("td", null, group.here ? "" : h("button", { type: "button", onclick: () => page.compare(tree.through(choice), tree.through(group.first)) }, "compare"))))))),
    rivals.length > 20 ? h("p", { class: "soft" }, `and ${rivals.length - 20} more`) : "");
}

function shown(choice, tree) {
  const messages = tree.shown(choice);
  const part = h("details", { class: "part" }, h("summary", null, `It was shown (${many(messages.length, "message")}${choice.shown ? ", not its whole history" : ""})`));
  part.addEventListener("toggle", () => {
    if (part.children.length > 1) return;
    for (const [role, text] of messages) part.append(h("div", { class: "soft" }, role), h("pre", null, text));
  });
  return part;
}

function finding(found) {
  return h("div", { class: "found" }, h("strong", null, found.name), ` (${found.maker})`, found.value ? `: ${found.value}. ` : ". ", sentence(found.why),
    found.evidence && found.evidence.length ? h("details", null, h("summary", null, "evidence"), table(null, found.evidence)) : "",
    found.action ? h("div", { class: "soft" }, sentence(found.action)) : "");
}

export function table(head, rows) {
  return h("div", { class: "table" }, h("table", null, head ? h("thead", null, h("tr", null, head.map((text) => h("th", { scope: "col" }, text)))) : "",
    h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) => h("td", null, cell)))))));
}

const numbers = (rows) => table(["number", "value", "what it is"], rows);

function commands(choice, before, page) {
  const id = choice.ids[0] || "", { able, who } = page.tree;
  const here = ([, , tail], at) => (choice.p || at < able.length - 1) && (choice.inside || !tail.startsWith(" --tokens"));
  return [
    able.filter(here).map(([does, head, tail]) => [h("div", { class: "soft" }, does), command(`${head}${id.slice(0, 12)}${tail}`)]),
    who ? h("p", { class: "soft" }, sentence(who)) : "",
    page.node ? h("p", null, h("a", { href: `${page.node}/node/${id}` }, "its whole path")) : "",
    h("p", { class: "soft" }, `node${choice.ids.length > 1 ? "s" : ""} ${choice.ids.slice(0, 6).map((one) => one.slice(0, 12)).join(", ")}${choice.ids.length > 6 ? ", \u2026" : ""}`),
  ];
}
