// Bundles src/main.js with d3 into one file. Its first line names the SHA-256 of everything it was made from, so that a test without Node
// sees a bundle that is older than its sources. `--check` compares the bytes with the committed file instead of writing it.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const here = new URL(".", import.meta.url);
const out = new URL("../src/ramify/web/static/page.js", here);
const names = ["build.mjs", "package-lock.json", "package.json", ...readdirSync(new URL("src/", here)).map((name) => `src/${name}`)].sort();
const hash = createHash("sha256");
for (const name of names) hash.update(name).update("\0").update(readFileSync(new URL(name, here))).update("\0");

const made = await build({
  entryPoints: [new URL("src/main.js", here).pathname],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2020",
  charset: "ascii",
  legalComments: "none",
  write: false,
});
const code = made.outputFiles[0].text;
if (code.includes("</")) throw new Error("the bundle holds '</', which would end its script element");
const whole = `/* made by page/build.mjs from ${hash.digest("hex")}; d3: see page.LICENSE.txt */\n${code}`;
if (process.argv.includes("--check")) {
  if (readFileSync(out, "utf8") !== whole) throw new Error("src/ramify/web/static/page.js is not what its sources make: run npm run build in page/");
  console.log("the bundle is what its sources make");
} else {
  writeFileSync(out, whole);
  console.log(`${out.pathname}: ${whole.length} bytes`);
}
