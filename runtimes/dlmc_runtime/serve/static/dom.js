/** Elements made in code. Text only ever becomes a text node, so nothing in it is markup. */

/**
 * Return a new element.
 *
 * @param {string} tag
 * @param {Object<string, string>} [attributes]
 * @param {...(Node|string)} children strings become text
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** Return a new SVG element. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Return the element with this id. */
export const byId = (id) => document.getElementById(id);

/** Have assistive technology say something when it next pauses. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Return "1 token" or "2 tokens". */
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
