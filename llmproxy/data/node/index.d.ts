/** What a session comes to so far (docs/node.md has the main members). */
export interface Report {
  arrived: number;
  hits: number;
  misses: number;
  recorded: number;
  bound: number;
  miss_texts: string[];
  unused_total: number | null;
  cost_not_spent?: number | null;
  [name: string]: unknown;
}

export interface Call {
  seq: number;
  provider: string;
  operation: string;
  model: string | null;
  status: number;
  decision: string;
  fault?: string | null;
  [name: string]: unknown;
}

export type Mode = "replay" | "once" | "auto" | "record" | "passthrough";

export interface SessionOptions {
  cassette?: string;
  mode?: Mode;
  /** 0: at once; 1: as recorded. */
  speed?: number;
  exhausted?: "miss" | "last" | "cycle";
  sample?: number;
  bind?: "all" | "paths" | "none";
  overrides?: unknown;
  fork?: unknown;
  faults?: unknown;
  mocks?: Record<string, unknown>;
  live?: Array<"llm" | "mcp" | "http">;
  unknownTool?: "error" | "fail" | "live";
  readOnly?: string[];
  /** What is true of this run only: ids, ports, folders that the test made. */
  runVariables?: Record<string, string | number>;
}

export interface Session {
  readonly name: string;
  readonly cassette: string;
  readonly mode: Mode;
  readonly url: string;
  /** OpenAI's base URL of this session, for a client or a process that takes it as an argument. */
  readonly baseURL: string;
  report(): Promise<Report>;
  /** Texts of the requests that were never recorded. */
  misses(): Promise<string[]>;
  calls(): Promise<Call[]>;
  runVariable(name: string, value: string | number, where?: { tool?: string; path?: string }): Promise<Report>;
  faults(faults: unknown): Promise<unknown>;
  reset(): Promise<Report>;
  /** Throws where a request was refused, although the test swallowed it. */
  expectNoMiss(): Promise<void>;
}

/** The session of the running test; with options, one of its own, before its first call. */
export function session(options?: SessionOptions): Promise<Session>;
