declare const setup: unknown;
export default setup;
