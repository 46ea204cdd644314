/** A reporter for vitest, Jest and Playwright Test. */
declare const Reporter: new (...given: unknown[]) => object;
export default Reporter;
/** What the run came to, as lines. */
export function summary(file?: string): string[];
export function print(): void;
