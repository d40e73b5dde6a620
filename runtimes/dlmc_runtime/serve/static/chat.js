/** A conversation: each answer with its reasoning folded away and its canvas below it. */

import { Composer } from "./composer.js";
import { byId, make } from "./dom.js";
import { RunView } from "./run.js";

export class Chat {
  constructor(settings) {
    this.settings = settings;
    this.messages = [];
    this.log = byId("chat-log");
    this.composer = new Composer(byId("chat-form"), settings, (signal) => this.send(signal));
    byId("chat-new").addEventListener("click", () => this.clear());
  }

  stop() {
    this.composer.stop();
  }

  clear() {
    this.stop();
    this.messages = [];
    this.log.replaceChildren();
    this.composer.text.focus();
  }

  async send(signal) {
    const { text } = this.composer;
    const question = { role: "user", content: text.value };
    const conversation = this.messages;
    conversation.push(question);
    for (const film of this.log.querySelectorAll("details.film")) film.open = false;
    const view = new RunView();
    const said = make("div", { class: "said prose" }, question.content);
    this.log.append(said, view.element);
    text.value = "";
    said.scrollIntoView({ block: "start" });

    const body = { ...this.settings.body(), messages: conversation };
    const end = await view.start("v1/chat/completions", body, { key: this.settings.key, signal });
    const { text: answer } = view.outcome;
    if (answer && end !== "failed") conversation.push({ role: "assistant", content: answer });
    else this.takeBack(conversation, question);
  }

  /** Forget a question that got no answer, and give it back to be sent again. */
  takeBack(conversation, question) {
    conversation.splice(conversation.indexOf(question), 1);
    if (conversation === this.messages && !this.composer.text.value) {
      this.composer.text.value = question.content;
    }
  }
}
