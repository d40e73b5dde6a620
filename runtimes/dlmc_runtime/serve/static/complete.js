/** Plain text that the model goes on with. */

import { Composer } from "./composer.js";
import { byId } from "./dom.js";
import { RunView } from "./run.js";

export class Complete {
  constructor(settings) {
    this.settings = settings;
    this.composer = new Composer(byId("complete-form"), settings, (signal) => this.send(signal));
  }

  stop() {
    this.composer.stop();
  }

  async send(signal) {
    const view = new RunView();
    byId("complete-result").replaceChildren(view.element);
    const body = { ...this.settings.body(), prompt: this.composer.text.value };
    await view.start("v1/completions", body, { key: this.settings.key, signal });
  }
}
