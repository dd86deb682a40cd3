// Builds explorer.js, engine.js and explorer.css, the files that a page contains, and notes the
// digest of the sources in them.

import {createHash} from "node:crypto";
import {readFileSync, readdirSync, writeFileSync} from "node:fs";
import {build} from "esbuild";

const here = new URL("./", import.meta.url);
const own = (folder) => readdirSync(new URL(folder, here)).map((name) => `${folder}${name}`);
const names = [...own(""), ...own("engine/")]
  .filter((name) => /\.(js|css|mjs)$/.test(name) || name === "package-lock.json")
  .sort();
const hash = createHash("sha256");
for (const name of names)
  hash
    .update(name)
    .update("\0")
    .update(readFileSync(new URL(name, here)))
    .update("\0");
const digest = hash.digest("hex");

for (const [entry, outfile] of [
  ["main.js", "../explorer.js"],
  ["engine/worker.js", "../engine.js"],
  ["explorer.css", "../explorer.css"],
]) {
  const result = await build({
    absWorkingDir: new URL(".", here).pathname,
    entryPoints: [entry],
    bundle: true,
    minify: true,
    format: entry.startsWith("engine") ? "iife" : "esm",
    target: ["chrome110", "firefox113", "safari16.4"],
    legalComments: "eof",
    charset: "ascii",
    write: false,
  });
  const text = result.outputFiles[0].text;
  if (/<\/(script|style)/i.test(text))
    throw new Error(`${entry} contains the end of its own element`);
  writeFileSync(new URL(outfile, here), `/* sources ${digest} */\n${text}`);
  console.log(`${outfile.slice(3)}: ${text.length.toLocaleString("en")} bytes`);
}
