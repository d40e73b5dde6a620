/** One canvas state on the screen: a span for each token. */

import { make } from "./dom.js";
import { isFresh } from "./film.js";

const MASK = "░";
const LEVELS = 5;
// Names of tokens that are no text, as tokenizers write them: shown small.
const SPECIAL = /^(<[|｜].*[|｜]>|<\/?(s|bos|eos|pad|unk|mask|(start|end)_of_turn)>|\[[A-Z]+\])$/;

/** Return the level of a probability: 0 (unsure) to 4 (sure). */
export const levelOf = (confidence) => Math.min(LEVELS - 1, Math.floor(confidence * LEVELS));

/** Return a token's text with its line breaks and emptiness made visible. */
function visible(token) {
  if (token.state === "masked") return MASK;
  if (token.text === "") return "∅";
  return token.text.replaceAll(/\r?\n/g, "⏎\n");
}

export class CanvasView {
  constructor() {
    this.element = make("div", { class: "canvas", role: "group", tabindex: "0" });
    this.spans = [];
    this.shown = [];
    this.frame = null;
  }

  /** Show a frame; only what differs from what is shown is touched. */
  show({ frame, before }) {
    this.frame = frame;
    const { tokens } = frame;
    while (this.spans.length > tokens.length) this.spans.pop().remove();
    const added = [];
    tokens.forEach((token, index) => {
      if (!this.spans[index]) {
        this.spans.push(make("span", { class: "token", "data-index": String(index) }));
        added.push(this.spans[index]);
      }
      const fresh = isFresh(before[index], token);
      const shown = this.shown[index];
      if (shown?.token === token && shown.fresh === fresh) return;
      this.shown[index] = { token, fresh };
      paint(this.spans[index], token, fresh);
    });
    this.element.append(...added);
    this.shown.length = tokens.length;
    const masks = tokens.filter((token) => token.state === "masked").length;
    const label = `Canvas after forward ${frame.forward}: ${masks} of ${tokens.length} masked`;
    this.element.setAttribute("aria-label", label);
    this.reveal();
  }

  /** Scroll, inside a long canvas, to what was filled in last. */
  reveal() {
    const { element } = this;
    if (element.scrollHeight <= element.clientHeight) return;
    const last = this.spans[this.shown.findLastIndex(({ fresh }) => fresh)];
    if (!last) return;
    const above = last.offsetTop < element.scrollTop;
    const below = last.offsetTop + last.offsetHeight > element.scrollTop + element.clientHeight;
    if (above || below) element.scrollTop = last.offsetTop - element.clientHeight / 2;
  }

  /** Return what is known of the token under a pointer event, or an empty text. */
  describe(target) {
    const index = Number(target.closest?.(".token")?.dataset.index ?? NaN);
    const token = this.frame?.tokens[index];
    if (!token) return "";
    const parts = [`position ${index}`, token.state];
    if (token.state !== "masked") parts.push(JSON.stringify(token.text), `id ${token.id}`);
    if (token.confidence !== null) parts.push(`${(100 * token.confidence).toFixed(1)} % sure`);
    return parts.join(" · ");
  }
}

function paint(span, token, fresh) {
  span.textContent = visible(token);
  span.dataset.state = token.state;
  span.classList.toggle("fresh", fresh);
  span.classList.toggle("special", SPECIAL.test(token.text));
  const known = typeof token.confidence === "number";
  if (known) {
    span.dataset.level = levelOf(token.confidence);
    span.style.setProperty("--sure", `${Math.round(100 * token.confidence)}%`);
  } else {
    delete span.dataset.level;
    span.style.removeProperty("--sure");
  }
}
