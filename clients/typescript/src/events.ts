/** Bytes as server-sent events, by the standard. */

export interface Event {
  id?: string;
  name: string;
  data: string;
}

/** Takes pieces as they come, and gives the events that they end. Half an event at the end is none. */
export class Decoder {
  /** Also leaves out a mark of the encoding in front. */
  readonly #text = new TextDecoder();
  readonly #longest: number;
  /** Of the line that is not over, in pieces: each is looked at once. */
  #held: string[] = [];
  #heldLength = 0;
  /** The last line ended with a CR, which a LF may still belong to. */
  #afterCr = false;
  #event: Event = { name: "", data: "" };
  #lines: string[] = [];
  #size = 0;

  constructor(longest: number) {
    this.#longest = longest;
  }

  /** `undefined`: an event is longer than any of the server's. */
  take(piece: Uint8Array): Event[] | undefined {
    const text = this.#text.decode(piece, { stream: true });
    const events: Event[] = [];
    const ends = /[\r\n]/g;
    for (let at = 0; at < text.length; ) {
      if (this.#afterCr && text[at] === "\n") at += 1;
      this.#afterCr = false;
      ends.lastIndex = at;
      const found = ends.exec(text);
      const part = text.slice(at, found?.index);
      this.#held.push(part);
      this.#heldLength += part.length;
      if (found === null) break;
      const event = this.#takeLine(this.#held.join(""));
      if (event !== undefined) events.push(event);
      [this.#held, this.#heldLength, this.#afterCr] = [[], 0, found[0] === "\r"];
      at = found.index + 1;
    }
    return this.#heldLength + this.#size > this.#longest ? undefined : events;
  }

  #takeLine(line: string): Event | undefined {
    if (line === "") {
      const event = { ...this.#event, name: this.#event.name || "message", data: this.#lines.join("\n") };
      // Without data it is none.
      const whole = this.#lines.length > 0;
      [this.#event, this.#lines, this.#size] = [{ name: "", data: "" }, [], 0];
      return whole ? event : undefined;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") {
      this.#lines.push(value);
      this.#size += line.length;
    } else if (name === "event") {
      this.#event.name = value;
    } else if (name === "id" && !value.includes("\0")) {
      this.#event.id = value;
    }
    return undefined;
  }
}
