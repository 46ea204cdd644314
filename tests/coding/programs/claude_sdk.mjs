// An agent of the Claude Agent SDK, whose shell is a tool of this process, and a sub-agent.
// A server's command may stand behind the question.
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
const [question, command, ...args] = process.argv.slice(2);
if (command) mcpServers.tools = { command, args };
const agents = { reader: { description: "Reads a file.", prompt: "You read files." } };
const options = { mcpServers, agents, allowedTools: ["mcp__lab__shell", "mcp__tools__echo", "Agent"], maxTurns: 30 };
for await (const message of query({ prompt: question, options })) {
  if (message.type === "result") {
    console.log(message.result ?? message.errors);
    process.exitCode = message.is_error ? 1 : 0;
  }
}
