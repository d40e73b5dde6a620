/** A form that sends: Ctrl+Enter or its button sends, Esc or its other button stops. */

export class Composer {
  /**
   * @param {HTMLFormElement} form with a textarea, a submit button and a `.stop` button
   * @param {Settings} settings checked before anything is sent
   * @param {(signal: AbortSignal) => Promise<void>} send
   */
  constructor(form, settings, send) {
    this.form = form;
    this.settings = settings;
    this.send = send;
    this.controller = null;
    this.text = form.querySelector("textarea");
    this.sendButton = form.querySelector("[type=submit]");
    this.stopButton = form.querySelector(".stop");
    this.stopButton.addEventListener("click", () => this.stop());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.submit();
    });
  }

  async submit() {
    if (this.controller || !this.form.reportValidity() || !this.settings.check()) return;
    this.controller = new AbortController();
    this.show();
    try {
      await this.send(this.controller.signal);
    } finally {
      this.controller = null;
      this.show();
    }
  }

  stop() {
    this.controller?.abort();
  }

  /** Show the button that does something now, and keep the focus where it was used. */
  show() {
    const busy = this.controller !== null;
    const focused = [this.sendButton, this.stopButton].includes(document.activeElement);
    this.sendButton.hidden = busy;
    this.stopButton.hidden = !busy;
    if (focused) (busy ? this.stopButton : this.text).focus();
  }
}
