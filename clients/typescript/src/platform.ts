/** What a browser and Node.js have under different names; package.json says which file is whose. */

/** Bytes that nobody can guess. */
export function randomBytes(count: number): Uint8Array {
  return globalThis.crypto.getRandomValues(new Uint8Array(count));
}

/** One request. Looked up at each, since some put another in its place. */
export const send: typeof fetch = (...request) => globalThis.fetch(...request);
