/** The page: its tabs, its settings and its keys. */

import { Chat } from "./chat.js";
import { Compare } from "./compare.js";
import { Complete } from "./complete.js";
import { byId } from "./dom.js";
import { Infill } from "./infill.js";
import { Settings } from "./settings.js";

const settings = new Settings(byId("settings-form"));
const panels = {
  chat: new Chat(settings),
  complete: new Complete(settings),
  infill: new Infill(settings),
  compare: new Compare(settings),
};
const tabs = [...document.querySelectorAll("[role=tab]")];

function select(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  history.replaceState(null, "", `#${tab.dataset.panel}`);
}

for (const [index, tab] of tabs.entries()) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = tabs.at(to % tabs.length);
    next.focus();
    select(next);
  });
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const panel of Object.values(panels)) panel.stop();
});

byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.querySelector("[role=tabpanel]:not([hidden]) textarea").focus();
});

for (const choice of document.querySelectorAll("[name=layout]")) {
  choice.addEventListener("change", () => {
    byId("work").dataset.layout = choice.value;
  });
}

// Beside the work where there is room, folded into one line above it where there is none.
const wide = matchMedia("(min-width: 56rem)");
const unfold = () => {
  byId("settings").open = wide.matches;
};
wide.addEventListener("change", unfold);
unfold();

select(tabs.find((tab) => `#${tab.dataset.panel}` === location.hash) ?? tabs[0]);
settings.load();
