/** Every canvas state of one run, in order. */

// What is held; beyond it every second frame is let go.
export const MOST_FRAMES = 2000;
const MOST_TOKENS = 1_000_000; // over all frames

/**
 * @typedef {{id: number, text: string, state: string, confidence: number|null}} Token
 * @typedef {{forward: number, rate: number, tokens: Token[], fresh: number}} Frame
 *   `fresh` is how many tokens were filled in since the frame before.
 */

export class Film {
  constructor() {
    /** @type {Frame[]} */
    this.frames = [];
    this.held = 0;
  }

  get length() {
    return this.frames.length;
  }

  /** Add the state that an event of the server carries (its `diffusion` object). */
  push(event) {
    const before = this.frames.at(-1)?.tokens ?? [];
    const tokens = event.tokens.map((token, index) => reuse(before[index], token));
    this.frames.push({
      forward: event.forward,
      rate: event.tokens_per_forward,
      tokens,
      fresh: tokens.filter((token, index) => isFresh(before[index], token)).length,
    });
    this.held += tokens.length;
    const full = () => this.held > MOST_TOKENS || this.frames.length > MOST_FRAMES;
    while (full() && this.frames.length > 2) this.thin();
  }

  /** Return the frame at a place in time, with the tokens of the one before. */
  at(index) {
    return { frame: this.frames[index], before: this.frames[index - 1]?.tokens ?? [] };
  }

  /** Let go of every second frame, never of the first or the last. */
  thin() {
    const last = this.frames.length - 1;
    const kept = this.frames.filter((_, index) => index % 2 === 0 || index === last);
    for (let index = 1; index < kept.length; index += 1) {
      const before = kept[index - 1].tokens;
      kept[index].fresh = kept[index].tokens.filter((t, i) => isFresh(before[i], t)).length;
    }
    this.frames = kept;
    this.held = kept.reduce((sum, frame) => sum + frame.tokens.length, 0);
  }
}

/** Whether a token was filled in, or became another, since the frame before. */
export function isFresh(before, token) {
  if (token.state === "masked") return false;
  return !before || before.state === "masked" || before.id !== token.id;
}

/** Return the earlier object where nothing changed: frames share tokens, views skip them. */
function reuse(before, token) {
  const same =
    before &&
    before.id === token.id &&
    before.text === token.text &&
    before.state === token.state &&
    before.confidence === token.confidence;
  return same ? before : token;
}
