/** The version; package.json has it too, and a test holds them together. */
export const VERSION = "0.1.0";
