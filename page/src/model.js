// A tree of the page's data: its choices with their children, and the ways through it. Numbers and labels come from the server.

export class Tree {
  constructor(data) {
    const { run = "", messages, rivals = [], findings = [], lost = -1, drop = -1, forks = 0, credit_scale = 0, by = "success", able = [], who = "" } = data;
    Object.assign(this, { name: data.name, task: data.task, run, messages, groups: rivals, lost, drop, forks, creditScale: credit_scale, coloursBy: by, able, who });
    const plain = { below: 0, size: 1, reach: 1, p: null, was: null, change: null, text: "", label: "", ids: [], lead: [], answers: [], rivals: -1 };
    this.choices = data.choices.map((row, at) => ({ ...plain, ...row, at, children: [] }));
    this.at = new Map();
    for (const choice of this.choices) {
      if (choice.at) this.choices[choice.up].children.push(choice);
      for (const id of choice.ids) this.at.set(id, choice.at);
    }
    this.findings = new Map();
    for (const found of findings) this.findings.set(found.at, [...(this.findings.get(found.at) || []), found]);
  }

  parent(choice) {
    return choice.at ? this.choices[choice.up] : null;
  }

  path(choice) {
    const found = [];
    for (let here = choice; here; here = this.parent(here)) found.unshift(here);
    return found;
  }

  // What the model was shown before a choice: [[role, text], ...].
  shown(choice) {
    if (choice.shown) return choice.shown.map((at) => this.messages[at]);
    const found = [];
    for (const step of this.path(choice).slice(1)) {
      for (const at of step.lead) found.push(this.messages[at]);
      if (step !== choice) found.push(["assistant", step.text]);
    }
    return found;
  }

  // What was chosen in the same state: [{n, p, first, here}], the most frequent first; `first` follows the same choice where one does.
  rivals(choice) {
    return (this.groups[choice.rivals] || []).map(({ n, p, choices }) => {
      const near = choices.find((at) => this.choices[at].up === choice.up);
      return { n, p, first: this.choices[near === undefined ? choices[0] : near], here: choices.includes(choice.at) };
    });
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

const ENDS = { success: "succeeded", failure: "failed", cut: "cut off", done: "ended" };
export function endings(ends) {
  return Object.entries(ends || {}).map(([name, count]) => `${count} ${ENDS[name] || name}`).join(", ");
}
