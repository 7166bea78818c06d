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
  #held = "";
  /** Where the search for the end of the line goes on: what came before has none. */
  #searched = 0;
  #event: Event = { name: "", data: "" };
  #lines: string[] = [];
  #size = 0;

  constructor(longest: number) {
    this.#longest = longest;
  }

  /** `undefined`: an event is longer than any of the server's. */
  take(piece: Uint8Array): Event[] | undefined {
    this.#held += this.#text.decode(piece, { stream: true });
    const events: Event[] = [];
    for (let line = this.#line(); line !== undefined; line = this.#line()) {
      const event = this.#takeLine(line);
      if (event !== undefined) events.push(event);
    }
    return this.#held.length + this.#size > this.#longest ? undefined : events;
  }

  /** The next whole line, without its end: CR LF, LF or CR. */
  #line(): string | undefined {
    const found = this.#held.slice(this.#searched).search(/[\r\n]/);
    const end = found < 0 ? this.#held.length : this.#searched + found;
    this.#searched = end;
    // A CR at the end of a piece may have its LF in the next.
    if (found < 0 || (this.#held[end] === "\r" && end + 1 === this.#held.length)) return undefined;
    const line = this.#held.slice(0, end);
    this.#held = this.#held.slice(this.#held.startsWith("\r\n", end) ? end + 2 : end + 1);
    this.#searched = 0;
    return line;
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
