// A tree of the page's data: choices with their parents and children, and the questions that the views ask of them.

import { many } from "./dom.js";

export class Tree {
  constructor(data) {
    this.data = data;
    this.name = data.name;
    this.messages = data.messages;
    this.choices = data.choices.map((row, at) => ({ ...row, at, children: [], ids: row.ids || [] }));
    this.at = new Map();
    for (const choice of this.choices) {
      if (choice.at) this.choices[choice.up].children.push(choice);
      for (const id of choice.ids) this.at.set(id, choice.at);
    }
    const lost = (data.why || []).find((one) => one.lost && one.at > 0);
    for (let i = this.choices.length - 1; i >= 0; i--) {
      const choice = this.choices[i];
      choice.below = total(choice.ends) + choice.children.reduce((sum, child) => sum + child.below, 0);
      choice.size = choice.children.reduce((sum, child) => sum + child.size, 1);
      // Of a call the call; of a reply that was forked out of another what is different.
      choice.label = choice.act || (choice.from && choice.from[1] ? `\u2026${choice.text.slice(choice.from[1])}` : choice.text || "");
      const counted = lost && lost.at === i && lost.before && lost.after ? lost : null; // what `ramify why` counted there, comes first
      if (counted) [choice.p, choice.was, choice.measured] = [counted.after, counted.before, 1];
      const before = i && (choice.was || this.choices[choice.up].p);
      choice.change = before && choice.p && !choice.edit ? choice.p[0] - before[0] : null;
      choice.sure = choice.change !== null && (choice.p[2] < before[0] || choice.p[1] > before[0]);
    }
    // How often an attempt comes here: forks of one step count as one.
    for (const choice of this.choices) {
      if (!choice.at) choice.reach = 1;
      const all = choice.children.reduce((sum, child) => sum + (child.edit ? 0 : child.n), 0) || 1;
      for (const child of choice.children) child.reach = (choice.reach * (child.edit ? 0.1 : child.n)) / all;
    }
    this.creditScale = Math.max(0, ...this.choices.map((c) => Math.abs(c.credit || 0)));
    this.coloursBy = this.choices.some((c) => c.change) || !this.creditScale ? "success" : "credit";
    this.lost = lost ? lost.at : -1;
    this.drop = data.drop === undefined ? -1 : data.drop;
    this.findings = new Map();
    for (const found of data.findings || []) {
      if (!this.findings.has(found.at)) this.findings.set(found.at, []);
      this.findings.get(found.at).push(found);
    }
  }

  parent(choice) {
    return choice.at ? this.choices[choice.up] : null;
  }

  path(choice) {
    const found = [];
    for (let here = choice; here; here = this.parent(here)) found.unshift(here);
    return found;
  }

  // What the model was shown before a choice: [[role, text], ...]. `exact` is false where the page holds only a part of it.
  shown(choice) {
    if (choice.shown) return choice.shown.map((at) => this.messages[at]);
    const found = [];
    for (const step of this.path(choice).slice(1)) {
      for (const at of step.lead || []) found.push(this.messages[at]);
      if (step !== choice) found.push(["assistant", step.text]);
    }
    return found;
  }

  // What was chosen in the same state, elsewhere in the tree too: [{text, n, p, choices, here}], the most frequent first.
  rivals(choice) {
    const groups = new Map();
    for (const other of this.choices) {
      if (!other.at || other.state !== choice.state || other.edit !== choice.edit) continue;
      const group = groups.get(other.text) || { text: other.text, n: 0, weight: 0, wins: 0, choices: [], here: false };
      group.n += other.n;
      if (other.p) {
        group.weight += other.p[3];
        group.wins += other.p[0] * other.p[3];
      }
      group.choices.push(other);
      group.here = group.here || other === choice;
      groups.set(other.text, group);
    }
    const found = [...groups.values()];
    for (const group of found) {
      group.p = group.weight ? [group.wins / group.weight, ...wilson(group.wins / group.weight, group.weight), group.weight] : null;
      group.choices.sort((a, b) => (a.up === choice.up ? -1 : 0) - (b.up === choice.up ? -1 : 0));
    }
    return found.sort((a, b) => b.n - a.n);
  }

  // The most travelled way on from a choice, to its end.
  through(choice) {
    let here = choice;
    while (here.children.length) here = here.children.reduce((best, child) => (child.below > best.below ? child : best));
    return here;
  }

  colourOf(choice, by = this.coloursBy) {
    if (!choice.at) return [null, 1, true];
    if (by === "credit") return [choice.credit === undefined ? null : choice.credit, this.creditScale, true];
    return [choice.change, 1, choice.sure];
  }
}

export function total(ends) {
  return Object.values(ends || {}).reduce((sum, count) => sum + count, 0);
}

const ENDS = { success: "succeeded", failure: "failed", cut: "cut off", done: "ended" };
export function endings(ends) {
  return Object.entries(ends || {}).map(([name, count]) => `${count} ${ENDS[name] || name}`).join(", ");
}

export function verdict(choice) {
  return choice.p ? `${many(choice.below, "attempt")} from here` : `${many(choice.below, "attempt")}`;
}

export function wilson(p, n) {
  if (!n) return [0, 1];
  const z2 = 3.8414588, centre = (p + z2 / (2 * n)) / (1 + z2 / n);
  const half = Math.sqrt(z2 * ((p * (1 - p)) / n + z2 / (4 * n * n))) / (1 + z2 / n);
  return [Math.max(0, centre - half), Math.min(1, centre + half)];
}
