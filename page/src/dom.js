// Elements are made here and nowhere else: texts become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (name, given, ...children) => fill(document.createElement(name), given, children);
export const s = (name, given, ...children) => fill(document.createElementNS(SVG, name), given, children);

export function put(parent, ...children) {
  parent.replaceChildren();
  return fill(parent, null, children);
}

export const percent = (share) => `${Math.round(100 * share)} %`;
export const points = (share) => `${share >= 0 ? "+" : "\u2212"}${Math.round(Math.abs(100 * share))}`;
export const clip = (text, most) => {
  const flat = text.replace(/\s+/g, " ").trim();
  return flat.length > most ? `${flat.slice(0, most - 1).trimEnd()}\u2026` : flat;
};
export const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
export const interval = (p) => `${percent(p[0])} (${Math.round(100 * p[1])} to ${Math.round(100 * p[2])})`;

// A command and a button that copies it. Where the clipboard is not to be had, the command is selected.
export function command(text) {
  const code = h("code", { tabindex: "0" }, text);
  const button = h("button", { type: "button", onclick: copy, "aria-label": `copy: ${text}` }, "copy");
  function copy() {
    const done = () => {
      button.textContent = "copied";
      setTimeout(() => (button.textContent = "copy"), 1500);
    };
    const select = () => {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "selected";
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, select);
    else select();
  }
  return h("span", { class: "command" }, code, button);
}

const NEGATIVE = [213, 94, 0], NEUTRAL = [214, 217, 222], POSITIVE = [0, 114, 178];

// The colour of a change: vermilion, grey, blue, as in the pictures without a script. What chance explains is paler.
export function colour(change, scale, sure = true) {
  if (change === null || change === undefined) return "var(--paper)";
  const share = Math.max(-1, Math.min(1, change / (scale || 1)));
  const end = share > 0 ? POSITIVE : NEGATIVE;
  const mix = Math.sqrt(Math.abs(share)) * (sure ? 1 : 0.35);
  return `rgb(${NEUTRAL.map((a, i) => Math.round(a + (end[i] - a) * mix)).join(",")})`;
}

// The same behind a text: nothing where nothing changes.
export function heat(change, scale) {
  const share = Math.max(-1, Math.min(1, change / (scale || 1)));
  return `rgba(${(share > 0 ? POSITIVE : NEGATIVE).join(",")},${(0.6 * Math.sqrt(Math.abs(share))).toFixed(3)})`;
}

// A sentence with what stands between backticks as code.
export const sentence = (text) => text.split("`").map((part, at, all) => (at % 2 && at < all.length - 1 ? h("code", null, part) : part));
