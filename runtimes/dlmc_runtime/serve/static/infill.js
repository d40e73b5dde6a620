/** A text with named slots, filled all at once. */

import { Composer } from "./composer.js";
import { byId, make } from "./dom.js";
import { RunView } from "./run.js";

const SLOT = /<slot\s+([^<>]*?)\s*\/>/g;
const NAME = /(?:^|\s)name\s*=\s*["']?([^\s"']+)/;

/** Split a template into texts and slots. */
export function parse(template) {
  const parts = [];
  let end = 0;
  for (const match of template.matchAll(SLOT)) {
    parts.push({ text: template.slice(end, match.index) });
    parts.push({ slot: NAME.exec(match[1])?.[1] ?? "?" });
    end = match.index + match[0].length;
  }
  parts.push({ text: template.slice(end) });
  return parts;
}

export class Infill {
  constructor(settings) {
    this.settings = settings;
    this.result = byId("infill-result");
    this.composer = new Composer(byId("infill-form"), settings, (signal) => this.send(signal));
    byId("infill-slot").addEventListener("click", () => this.insert());
  }

  stop() {
    this.composer.stop();
  }

  /** Put a new slot where the cursor is, and its name under the cursor. */
  insert() {
    const { text } = this.composer;
    const names = parse(text.value).map(({ slot }) => slot);
    let number = 1;
    while (names.includes(`slot${number}`)) number += 1;
    const name = `slot${number}`;
    const start = text.selectionStart;
    text.setRangeText(`<slot name=${name} max=8/>`, start, text.selectionEnd, "end");
    text.focus();
    const begin = start + "<slot name=".length;
    text.setSelectionRange(begin, begin + name.length);
  }

  async send(signal) {
    const template = this.composer.text.value;
    const view = new RunView();
    const page = make("div", { class: "filled prose" });
    const names = make("dl", { class: "slots" });
    view.answer.classList.add("elsewhere"); // the filled template says the same
    this.result.replaceChildren(page, view.element, names);
    const show = () => {
      fill(page, parse(template), view.outcome.slots ?? {});
      list(names, view.outcome.slots ?? {});
    };
    view.element.addEventListener("progress", show);
    show();
    const body = { ...this.settings.body(), template };
    delete body.max_tokens; // each slot says its own
    await view.start("v1/completions", body, { key: this.settings.key, signal });
  }
}

/** Show a template with what its slots hold so far. */
function fill(page, parts, slots) {
  const shown = parts.map(({ text, slot }) => {
    if (slot === undefined) return text;
    const open = slots[slot] === undefined;
    const attributes = { class: open ? "slot open" : "slot", title: slot };
    return make("mark", attributes, open ? slot : slots[slot]);
  });
  page.replaceChildren(...shown);
}

function list(names, slots) {
  const rows = Object.entries(slots).map(([name, text]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, text)),
  );
  names.replaceChildren(...rows);
}
