/** Two samplers on the same prompt, at the same time. */

import { Composer } from "./composer.js";
import { compare } from "./diff.js";
import { announce, byId, make } from "./dom.js";
import { RunView } from "./run.js";
import { offer } from "./settings.js";

const SIDES = ["A", "B"];

export class Compare {
  constructor(settings) {
    this.settings = settings;
    this.form = byId("compare-form");
    this.composer = new Composer(this.form, settings, (signal) => this.send(signal));
    this.verdict = byId("compare-verdict");
    settings.addEventListener("change", () => this.offerSamplers());
  }

  stop() {
    this.composer.stop();
  }

  /** Offer the model's samplers; at first its own, and another one. */
  offerSamplers() {
    const { model, samplers } = this.settings;
    const own = model?.sampler?.name;
    for (const side of SIDES) {
      const select = this.form.elements[`sampler${side}`];
      const fresh = select.options.length <= 1;
      offer(select, samplers, own);
      if (fresh && side === "B") select.value = samplers.find((name) => name !== own) ?? "";
    }
  }

  async send(signal) {
    this.verdict.textContent = "";
    const prompt = this.composer.text.value;
    const chat = this.form.elements.chat.checked;
    const path = chat ? "v1/chat/completions" : "v1/completions";
    const task = chat ? { messages: [{ role: "user", content: prompt }] } : { prompt };
    const views = SIDES.map((name) => new RunView({ name }));
    byId("compare-result").replaceChildren(...views.map((view) => column(view)));
    const ends = await Promise.all(
      views.map((view) => {
        const body = { ...this.settings.body(this.changes(view.name)), ...task };
        return view.start(path, body, { key: this.settings.key, signal });
      }),
    );
    if (ends.every((end) => end === "done")) this.judge(...views);
  }

  /** Return what a side's fields ask for, over what the settings do. */
  changes(side) {
    const fields = this.form.elements;
    const { value } = fields[`threshold${side}`];
    const threshold = value === "" ? {} : { threshold: Number(value) };
    const sampler = fields[`sampler${side}`].value;
    return { ...threshold, ...(sampler && { sampler }) };
  }

  /** Say which needed fewer forwards, and mark where the texts differ. */
  judge(left, right) {
    const [a, b] = [left.cost.forwards, right.cost.forwards];
    const rates = [left, right].map(({ cost }) => cost.rate.toFixed(2));
    const texts = [left.outcome.text, right.outcome.text];
    const same = texts[0] === texts[1];
    const [less, more] = a <= b ? ["A", "B"] : ["B", "A"];
    const times = (Math.max(a, b) / Math.max(1, Math.min(a, b))).toFixed(1);
    const speed =
      a === b ? "Both needed as many forwards." : `${less} needed ${times}× fewer forwards than ${more}.`;
    const tokens = `Tokens per forward: A ${rates[0]}, B ${rates[1]}.`;
    const words = same ? "The texts are the same." : "The texts differ where marked.";
    this.verdict.textContent = `${speed} ${tokens} ${words}`;
    announce(this.verdict.textContent);
    const parts = compare(...texts);
    mark(left.answer, parts.left);
    mark(right.answer, parts.right);
  }
}

function column(view) {
  return make("section", { class: "side" }, make("h3", {}, view.name), view.element);
}

function mark(element, parts) {
  const shown = parts.map(({ text, same }) =>
    same ? text : make("mark", { class: "differs" }, text),
  );
  element.replaceChildren(...shown);
}
