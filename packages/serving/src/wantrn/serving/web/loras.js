// The LoRAs of the form: which, and how strong.

import { byId, element } from "./dom.js";

export class Loras {
  constructor() {
    this._node = byId("loras");
  }

  /** Offer those by `names`; with two experts, each strength can differ. */
  offer(names, experts) {
    byId("lora-field").hidden = names.length === 0;
    this._node.replaceChildren(...names.map((name) => row(name, experts > 1)));
  }

  /** What is chosen, as the API takes it. */
  chosen() {
    return this._rows().filter(({ on }) => on.checked).map(({ name, scale, scale_2 }) => ({
      name,
      ...(scale.value.trim() && { scale: scale.value.trim() }),
      ...(scale_2?.value.trim() && { scale_2: scale_2.value.trim() }),
    }));
  }

  /** Choose what a video was made with; the names of those that are not here. */
  choose(uses) {
    const rows = this._rows();
    for (const { on, scale, scale_2 } of rows) {
      on.checked = false;
      scale.value = "";
      if (scale_2) scale_2.value = "";
    }
    const missing = [];
    for (const use of uses) {
      const found = rows.find(({ name }) => name === use.name);
      if (!found) {
        missing.push(use.name);
        continue;
      }
      found.on.checked = true;
      found.scale.value = use.scale;
      if (found.scale_2) found.scale_2.value = use.scale_2 ?? use.scale;
    }
    return missing;
  }

  _rows() {
    return [...this._node.children].map((node) => {
      const [on, scale, scale_2] = node.querySelectorAll("input");
      return { name: node.dataset.name, on, scale, scale_2 };
    });
  }
}

function row(name, two) {
  const strength = (label, placeholder) => {
    const made = element("input", { inputMode: "decimal", autocomplete: "off", placeholder, aria: { label: `${label} of ${name}` } });
    made.addEventListener("input", () => (made.closest("li").querySelector("input").checked = true));
    return made;
  };
  return element("li", { data: { name } },
    element("label", {}, element("input", { type: "checkbox" }), element("span", { textContent: name })),
    strength("Strength", "1"),
    two ? strength("Strength at low noise", "same") : null);
}
