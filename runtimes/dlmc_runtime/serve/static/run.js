/** One request and what is seen of it: its text, its numbers, its canvas through time. */

import { ApiError, stream } from "./api.js";
import { CanvasView } from "./canvas.js";
import { announce, count, make } from "./dom.js";
import { Film } from "./film.js";
import { Timeline } from "./timeline.js";

/** What a run has come to: what it wrote and what it cost. */
function nothingYet() {
  return { text: "", reasoning: "", slots: null, usage: null, reason: null };
}

export class RunView {
  /** @param {{name?: string}} [options] `name` is how it is told from others on the page */
  constructor({ name = "" } = {}) {
    this.name = name;
    this.outcome = nothingYet();
    this.film = new Film();
    this.canvas = new CanvasView();
    this.timeline = new Timeline(this.film, (index) => this.canvas.show(this.film.at(index)));
    this.build();
    this.started = 0;
    this.due = 0; // the screen frame that was asked for, if one was
  }

  build() {
    this.thoughts = make("div", { class: "prose" });
    this.reasoning = make("details", { class: "reasoning" }, make("summary", {}, "Reasoning"));
    this.reasoning.append(this.thoughts);
    this.reasoning.hidden = true;
    this.answer = make("div", { class: "answer prose" });
    this.answer.hidden = true;
    this.trouble = make("p", { class: "trouble", role: "alert" });
    this.trouble.hidden = true;
    this.numbers = make("span", { class: "numbers" }, "waiting for the first forward");
    this.inspector = make("p", { class: "inspector" });
    this.details = make(
      "details",
      { class: "film", open: "" },
      make("summary", {}, this.numbers),
      this.canvas.element,
      this.timeline.element,
      this.inspector,
    );
    this.element = make("article", { class: "run", "aria-busy": "false" });
    this.element.append(this.reasoning, this.answer, this.trouble, this.details);
    this.canvas.element.addEventListener("keydown", (event) => this.steer(event));
    for (const kind of ["pointerover", "pointerdown"]) {
      this.canvas.element.addEventListener(kind, (event) => {
        this.inspector.textContent = this.canvas.describe(event.target);
      });
    }
    this.details.addEventListener("toggle", () => this.timeline.refresh());
  }

  steer(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || !this.film.length) return;
    event.preventDefault();
    this.timeline.step(by);
  }

  /**
   * Send a request and show it until it ends; never throws.
   *
   * @returns {Promise<"done"|"stopped"|"failed">}
   */
  async start(path, body, options) {
    this.started = performance.now();
    this.element.setAttribute("aria-busy", "true");
    announce("Denoising");
    let end = "done";
    try {
      for await (const chunk of stream(path, body, options)) this.take(chunk);
    } catch (error) {
      end = options.signal.aborted ? "stopped" : "failed";
      if (end === "failed") this.fail(error);
    }
    this.seconds = (performance.now() - this.started) / 1000;
    this.element.setAttribute("aria-busy", "false");
    this.element.dataset.end = end;
    this.render();
    if (end !== "failed") this.report(end);
    return end;
  }

  /** Take up one object of the stream. */
  take(chunk) {
    const { outcome } = this;
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    outcome.text += delta.content ?? choice?.text ?? "";
    outcome.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    outcome.reason = choice?.finish_detail ?? choice?.finish_reason ?? outcome.reason;
    outcome.slots = choice?.slots ?? chunk.slots ?? outcome.slots;
    outcome.usage = chunk.usage ?? outcome.usage;
    if (chunk.diffusion) this.film.push(chunk.diffusion);
    this.schedule();
  }

  /** Render once for all that arrives before the next frame of the screen. */
  schedule() {
    this.due ||= requestAnimationFrame(() => this.render());
  }

  render() {
    cancelAnimationFrame(this.due);
    this.due = 0;
    const { outcome } = this;
    const silent = this.element.dataset.end === "done" && !outcome.text;
    this.answer.classList.toggle("silent", silent);
    this.answer.textContent = silent ? "The model ended without a text." : outcome.text;
    this.answer.hidden = !this.answer.textContent;
    this.thoughts.textContent = outcome.reasoning;
    this.reasoning.hidden = !outcome.reasoning;
    this.timeline.refresh();
    this.numbers.replaceChildren(...this.statistics());
    this.element.dispatchEvent(new CustomEvent("progress"));
  }

  /** Forwards so far, and tokens per forward: the server's count once it has sent it. */
  get cost() {
    const frame = this.film.frames.at(-1);
    const { usage } = this.outcome;
    const filled = frame?.tokens.filter((token) => token.state !== "masked").length ?? 0;
    return {
      forwards: usage?.forwards ?? frame?.forward ?? 0,
      rate: usage?.tokens_per_forward ?? frame?.rate ?? 0,
      tokens: usage?.completion_tokens ?? filled,
    };
  }

  statistics() {
    const { forwards, rate, tokens } = this.cost;
    if (!forwards) return [this.element.dataset.end ? "no forwards" : "waiting for the first forward"];
    const parts = [
      [forwards, forwards === 1 ? "forward" : "forwards"],
      [rate.toFixed(2), "tokens per forward"],
      [tokens, tokens === 1 ? "token" : "tokens"],
    ];
    if (this.seconds !== undefined) parts.push([this.seconds.toFixed(1), "s"]);
    const shown = parts.map(([value, unit]) =>
      make("span", { class: "number" }, make("b", {}, String(value)), ` ${unit}`),
    );
    const end = this.element.dataset.end === "stopped" ? "stopped" : this.outcome.reason;
    if (end) shown.push(make("span", { class: "reason" }, end));
    return shown.flatMap((part) => [part, " "]);
  }

  fail(error) {
    const known = error instanceof ApiError;
    this.trouble.textContent = known ? error.message : `The page failed: ${error.message}`;
    this.trouble.hidden = false;
    this.details.hidden = !this.film.length;
  }

  report(end) {
    const { forwards, rate, tokens } = this.cost;
    const who = this.name ? `${this.name} ` : "";
    const cost = `${count(tokens, "token")} in ${count(forwards, "forward")}`;
    announce(`${who}${end}: ${cost}, ${rate.toFixed(1)} a forward`);
  }
}
