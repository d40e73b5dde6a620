/** The time axis of a run: a bar for what each forward filled in, under a slider to step through. */

import { draw, make } from "./dom.js";

const REPLAY_SECONDS = 4; // a whole run, however many forwards it had
const SLOWEST = 250; // milliseconds a frame

export class Timeline {
  /**
   * @param {Film} film
   * @param {(index: number) => void} onMove called with the frame to show
   */
  constructor(film, onMove) {
    this.film = film;
    this.onMove = onMove;
    this.index = -1;
    this.following = true; // the newest frame is shown as it comes, until someone steps back
    this.timer = null;
    this.bars = draw("path", { class: "bar" });
    this.past = draw("path", { class: "bar past" });
    const hidden = { preserveAspectRatio: "none", "aria-hidden": "true" };
    this.chart = draw("svg", hidden, this.bars, this.past);
    this.slider = make("input", { type: "range", min: "0", max: "0", value: "0", step: "1" });
    this.slider.setAttribute("aria-label", "Step through the canvas states");
    this.button = make("button", { type: "button", class: "quiet play" }, "Replay");
    this.element = make(
      "div",
      { class: "timeline" },
      this.button,
      make("div", { class: "track" }, this.chart, this.slider),
    );
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.button.addEventListener("click", () => (this.timer ? this.pause() : this.replay()));
  }

  /** Take up frames that were added to the film. */
  refresh() {
    const last = this.film.length - 1;
    if (last < 0) return;
    this.slider.max = String(last);
    this.show(this.following ? last : Math.min(this.index, last));
  }

  /** Show the frame that someone chose. */
  go(index) {
    this.pause();
    const last = this.film.length - 1;
    this.show(Math.max(0, Math.min(index, last)));
    this.following = this.index === last;
  }

  step(by) {
    this.go(this.index + by);
  }

  /** Go through the whole run again from the first state. */
  replay() {
    const pause = Math.min(SLOWEST, (1000 * REPLAY_SECONDS) / this.film.length);
    let index = 0;
    this.following = false;
    this.button.textContent = "Pause";
    this.show(index);
    this.timer = setInterval(() => {
      index += 1;
      if (index < this.film.length) this.show(index);
      else this.go(this.film.length - 1);
    }, pause);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "Replay";
  }

  show(index) {
    this.index = index;
    const { frame } = this.film.at(index);
    this.slider.value = String(index);
    this.slider.setAttribute(
      "aria-valuetext",
      `forward ${frame.forward}, ${index + 1} of ${this.film.length} states, ${frame.fresh} new`,
    );
    this.plot();
    this.onMove(index);
  }

  /** Draw the bars: lines whose width does not scale with the chart. */
  plot() {
    const { frames } = this.film;
    const top = Math.max(1, ...frames.map((frame) => frame.fresh));
    const line = ({ fresh }, index) => `M${index} 1V${(1 - Math.max(fresh / top, 0.06)).toFixed(3)}`;
    this.chart.setAttribute("viewBox", `0 0 ${Math.max(1, frames.length - 1)} 1`);
    const room = (this.chart.clientWidth || 240) / frames.length;
    const width = String(Math.max(1, Math.min(8, room * 0.7)));
    this.bars.setAttribute("stroke-width", width);
    this.past.setAttribute("stroke-width", width);
    this.bars.setAttribute("d", frames.map(line).join(""));
    this.past.setAttribute("d", frames.slice(0, this.index + 1).map(line).join(""));
  }
}
