// Small helpers for elements. Text is only ever set as text.

export const byId = (id) => document.getElementById(id);

/** An element with properties, `data` and children; null children are left out. */
export function element(tag, { data = {}, aria = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  Object.assign(made.dataset, data);
  for (const [name, value] of Object.entries(aria)) made.setAttribute(`aria-${name}`, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Sets text only where it differs, so that nothing is announced or laid out for nothing. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A bar, moved by `move(bar, percent)`. */
export function bar(label) {
  const made = element("div", { className: "bar", role: "progressbar", aria: { label, valuemin: 0, valuemax: 100 } });
  made.append(element("span"));
  move(made, 0);
  return made;
}

export function move(made, percent) {
  made.setAttribute("aria-valuenow", percent);
  made.firstChild.style.transform = `scaleX(${percent / 100})`;
}

/** Opens a dialog; `opener` has the focus again when it closes, if it is still there. */
export function open(dialog) {
  const opener = document.activeElement;
  dialog.showModal();
  dialog.addEventListener("close", () => opener?.isConnected && opener.focus(), { once: true });
}

/** Puts blobs into elements, and frees them with the elements. */
export class Pictures {
  constructor() {
    this._urls = new WeakMap();
  }

  show(node, blob) {
    this.free(node);
    const url = URL.createObjectURL(blob);
    this._urls.set(node, url);
    node.src = url;
    return url;
  }

  free(node) {
    const url = this._urls.get(node);
    if (url) URL.revokeObjectURL(url);
    this._urls.delete(node);
  }
}
