// Builds explorer.js, engine.js and explorer.css, the files that a page contains, and notes the
// digest of the sources in them. The colours come from palette.json, which Python reads too.

import {createHash} from "node:crypto";
import {readFileSync, readdirSync, writeFileSync} from "node:fs";
import {build} from "esbuild";

const here = new URL("./", import.meta.url);
const own = (folder) => readdirSync(new URL(folder, here)).map((name) => `${folder}${name}`);
const names = [...own(""), ...own("engine/")]
  .filter((name) => /\.(js|css|mjs)$/.test(name) || name === "package-lock.json")
  .sort();
names.push("../../palette.json");
const hash = createHash("sha256");
for (const name of names)
  hash
    .update(name)
    .update("\0")
    .update(readFileSync(new URL(name, here)))
    .update("\0");
const digest = hash.digest("hex");

/**
 * The style with the colours of both themes in front: the dark ones where the system or the reader
 * wants them.
 */
function styleOf(rules) {
  const palette = JSON.parse(readFileSync(new URL("../../palette.json", here), "utf8"));
  const {light, dark, both} = palette.page;
  const darkTheme = `${variables(dark)} color-scheme: dark;`;
  return `
    :root { ${variables(light)} ${variables(both)} }
    @media (prefers-color-scheme: dark) { :root:not([data-theme="light"]) { ${darkTheme} } }
    :root[data-theme="dark"] { ${darkTheme} }
    :root[data-theme="light"] { color-scheme: light; }
    ${rules}`;
}

/** Colours by name as variables of a style. */
function variables(colours) {
  return Object.entries(colours)
    .map(([name, colour]) => `--${name}: ${colour};`)
    .join(" ");
}

// Where a line's end is no space: before the end of a tag, and of an element that ends a line.
const NO_SPACE = /\n(\/?>|<\/(?:p|div|section|h\d|button|t[dhr]|table|tbody|thead)>)/g;
// Before an element that begins a line.
const NO_SPACE_BEFORE =
  /\n(?=<(?:p|div|section|h\d|t[dhr]|table|tbody|thead|details|nav|main|footer)\b)/g;

// Values of attributes that HTML reads without quotes too; outside of templates "=" has spaces.
const QUOTED = /="([\w-]+)"(?=[\s>])/g;

/**
 * Scripts whose templates are smaller, because they are not minified otherwise: without
 * indentation, since HTML reads a line's end and its indentation as one space, and without needless
 * quotes.
 */
const smaller = {
  name: "smaller",
  setup({onLoad}) {
    onLoad({filter: /source\/[^/]*\.js$/}, ({path}) => ({
      contents: readFileSync(path, "utf8")
        .replace(/\n\s+/g, "\n")
        .replace(NO_SPACE, "$1")
        .replace(NO_SPACE_BEFORE, "")
        .replace(QUOTED, "=$1"),
    }));
  },
};

/** What esbuild begins with: a file, or the text of the style. */
function input(entry) {
  if (!entry.endsWith(".css")) return {entryPoints: [entry]};
  const rules = readFileSync(new URL(entry, here), "utf8");
  return {stdin: {contents: styleOf(rules), loader: "css"}};
}

for (const [entry, outfile] of [
  ["main.js", "../explorer.js"],
  ["engine/worker.js", "../engine.js"],
  ["explorer.css", "../explorer.css"],
]) {
  const result = await build({
    absWorkingDir: new URL(".", here).pathname,
    ...input(entry),
    bundle: true,
    plugins: [smaller],
    minify: true,
    format: entry.startsWith("engine") ? "iife" : "esm",
    target: ["chrome110", "firefox113", "safari16.4"],
    legalComments: "eof",
    charset: "utf8",
    write: false,
  });
  const text = result.outputFiles[0].text;
  if (/<\/(script|style)/i.test(text))
    throw new Error(`${entry} contains the end of its own element`);
  writeFileSync(new URL(outfile, here), `/* sources ${digest} */\n${text}`);
  console.log(`${outfile.slice(3)}: ${text.length.toLocaleString("en")} bytes`);
}
