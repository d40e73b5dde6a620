/** What is asked of the server: model, key and sampler. */

import { models } from "./api.js";
import { byId, make } from "./dom.js";

const OPTIONS = ["steps", "threshold", "block_length", "temperature", "max_tokens"];
const KEY = "dlmc-api-key"; // in sessionStorage: gone when the tab closes

/** Return a number field's value, undefined where it is empty. */
const number = (field) => (field.value === "" ? undefined : field.valueAsNumber);

/** Return a copy without what is undefined or empty. */
function given(fields) {
  const entries = Object.entries(fields);
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined && value !== ""));
}

/** Replace a sampler menu's choices and keep the choice, where it is still there. */
export function offer(select, samplers, own) {
  const chosen = select.value;
  const first = own ? `${own} (own)` : "model’s own";
  select.replaceChildren(make("option", { value: "" }, first));
  select.append(...samplers.map((name) => make("option", { value: name }, name)));
  select.value = samplers.includes(chosen) ? chosen : "";
}

export class Settings extends EventTarget {
  constructor(form) {
    super();
    this.form = form;
    this.fields = form.elements;
    this.models = [];
    this.fields.key.value = sessionStorage.getItem(KEY) ?? "";
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(() => this.changed()));
    form.addEventListener("input", () => this.changed());
    this.fields.key.addEventListener("change", () => {
      if (this.key) sessionStorage.setItem(KEY, this.key);
      else sessionStorage.removeItem(KEY);
      this.load();
    });
  }

  get key() {
    return this.fields.key.value.trim();
  }

  get model() {
    return this.models.find(({ id }) => id === this.fields.model.value);
  }

  /** The samplers that the chosen model can run. */
  get samplers() {
    return this.model?.samplers ?? [];
  }

  /** Ask the server for its models, and say so where it refuses. */
  async load() {
    const trouble = byId("model-trouble");
    try {
      this.models = await models(this.key);
      trouble.hidden = true;
    } catch (error) {
      this.models = [];
      trouble.textContent = error.message;
      trouble.hidden = false;
      byId("settings").open = true;
    }
    const chosen = this.fields.model.value;
    const options = this.models.map(({ id }) => make("option", { value: id }, id));
    this.fields.model.replaceChildren(...options);
    if (this.models.some(({ id }) => id === chosen)) this.fields.model.value = chosen;
    this.changed();
  }

  changed() {
    const { fields, model } = this;
    const own = model?.sampler ?? {};
    offer(fields.sampler, this.samplers, own.name);
    const sampler = fields.sampler.value || (own.name ?? "its own sampler");
    byId("settings-summary").textContent = `${model?.id ?? "no model"} · ${sampler}`;
    // What the model does by itself; with another sampler that one's own values count.
    const known = fields.sampler.value === "" ? { ...own, max_tokens: model?.max_tokens } : {};
    for (const name of OPTIONS) fields[name].placeholder = known[name] ?? "own";
    this.dispatchEvent(new Event("change"));
  }

  /** Whether every field holds what it may; shows the first that does not. */
  check() {
    if (this.form.checkValidity()) return true;
    byId("settings").open = true;
    this.form.reportValidity();
    return false;
  }

  /**
   * Return the fields of a request's body.
   *
   * @param {{sampler?: string}} [changes] of the sampler's parameters
   */
  body(changes = {}) {
    const { fields } = this;
    const diffusion = given({
      sampler: fields.sampler.value,
      steps: number(fields.steps),
      threshold: number(fields.threshold),
      block_length: number(fields.block_length),
      ...changes,
    });
    return given({
      model: fields.model.value,
      max_tokens: number(fields.max_tokens),
      temperature: number(fields.temperature),
      seed: number(fields.seed),
      reasoning_effort: fields.reasoning_effort.value,
      diffusion: Object.keys(diffusion).length ? diffusion : undefined,
    });
  }
}
