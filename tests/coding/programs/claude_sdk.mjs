// An agent of the Claude Agent SDK, whose shell is a tool of this process.
import { spawnSync } from "node:child_process";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.PACKAGES}/x.js`); // where this agent's packages lie
const { createSdkMcpServer, query, tool } = await import(require.resolve("@anthropic-ai/claude-agent-sdk"));
const { z } = await import(require.resolve("zod"));

const shell = tool("shell", "Run a shell command.", { command: z.string() }, async ({ command }) => {
  const done = spawnSync("sh", ["-c", command], { encoding: "utf8" });
  return { content: [{ type: "text", text: done.stdout }] };
});
const mcpServers = { lab: createSdkMcpServer({ name: "lab", tools: [shell] }) };
const options = { mcpServers, allowedTools: ["mcp__lab__shell"], maxTurns: 30 };
for await (const message of query({ prompt: process.argv[2], options })) {
  if (message.type === "result") {
    console.log(message.result ?? message.errors);
    process.exitCode = message.is_error ? 1 : 0;
  }
}
