// The lists: what waits and runs, and what has ended.

import * as api from "./api.js";
import { Pictures, bar, byId, element, move, say } from "./dom.js";
import { ago, stageOf, stateOf } from "./words.js";
import { isFinal } from "./videos.js";

const AT_ONCE = 2;
const WAY = { in_progress: 0, queued: 1 };

export class Shelf {
  constructor() {
    this._pictures = new Pictures();
    this._wanted = [];
    this._fetching = 0;
    this._seen = new IntersectionObserver((entries) => this._want(entries), { rootMargin: "200px" });
    this._queue = new List(byId("queue"), row, showRow);
    this._history = new List(byId("history"), card, (node, video) => this._showCard(node, video));
    this._history.onRemove = (node) => {
      this._seen.unobserve(node);
      this._pictures.free(node.querySelector("img"));
    };
  }

  show(videos, selected) {
    const open = videos.listed.filter((video) => !isFinal(video)).reverse();
    open.sort((one, other) => WAY[one.status] - WAY[other.status] || (one.queue_position ?? 0) - (other.queue_position ?? 0));
    const ended = videos.listed.filter(isFinal);
    const focused = document.activeElement?.closest?.("#queue [data-id]")?.dataset.id;
    this._queue.show(open, selected);
    this._history.show(ended, selected);
    // one that ended while it had the focus takes it along
    if (focused && !this._queue.has(focused)) this._history.focus(focused);
    byId("queue-section").hidden = open.length === 0;
    say(byId("queue-count"), String(open.length));
    byId("older").hidden = !videos.hasOlder;
    byId("history-empty").hidden = ended.length > 0 || !videos.loaded;
  }

  /** The id next to that of `id`, or null. */
  neighbour(id) {
    return this._history.neighbour(id);
  }

  focus(id) {
    this._history.focus(id);
  }

  _showCard(node, video) {
    say(node.querySelector(".text"), video.prompt);
    say(node.querySelector(".when"), ago(video.completed_at ?? video.created_at));
    say(node.querySelector(".badge"), video.status === "failed" ? stateOf(video) : `${video.seconds} s`);
    if (video.status === "completed" && !node.dataset.asked) {
      node.dataset.asked = "yes";
      this._seen.observe(node);
    }
  }

  /** Thumbnails of cards that come into sight, few at a time: the server draws them when asked. */
  _want(entries) {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      this._seen.unobserve(target);
      this._wanted.push(target);
    }
    while (this._fetching < AT_ONCE && this._wanted.length) this._thumbnail(this._wanted.shift());
  }

  async _thumbnail(node) {
    const image = node.querySelector("img");
    this._fetching += 1;
    try {
      const blob = await api.content(node.dataset.id, "thumbnail");
      if (image.isConnected) this._pictures.show(image, blob);
      image.hidden = false;
    } catch {
      delete node.dataset.asked; // the next round asks again; the banner tells what is wrong
    }
    this._fetching -= 1;
    this._want([]);
  }
}

/** Nodes by a video's id, kept while it is shown, so that the focus stays. */
class List {
  constructor(node, make, show) {
    this._node = node;
    this._make = make;
    this._show = show;
    this._made = new Map();
    this.onRemove = () => {};
  }

  show(videos, selected) {
    const ids = new Set(videos.map((video) => video.id));
    for (const [id, node] of this._made) {
      if (ids.has(id)) continue;
      this.onRemove(node);
      node.remove();
      this._made.delete(id);
    }
    videos.forEach((video, place) => {
      let node = this._made.get(video.id);
      if (!node) {
        node = this._make(video);
        node.dataset.id = video.id;
        this._made.set(video.id, node);
      }
      this._show(node, video);
      const link = node.querySelector("a");
      if (video.id === selected) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
      // moving a node would take its focus away
      if (this._node.children[place] !== node) this._node.insertBefore(node, this._node.children[place] ?? null);
    });
  }

  has(id) {
    return this._made.has(id);
  }

  focus(id) {
    this._made.get(id)?.querySelector("a").focus();
  }

  neighbour(id) {
    const node = this._made.get(id);
    return (node?.nextElementSibling ?? node?.previousElementSibling)?.dataset.id ?? null;
  }
}

function row(video) {
  const link = element("a", { href: `#${video.id}` },
    element("span", { className: "text", textContent: video.prompt }),
    element("span", { className: "where" }), bar("Progress"));
  return element("li", {}, link);
}

function showRow(node, video) {
  const percent = video.status === "in_progress" ? ` · ${video.progress} %` : "";
  say(node.querySelector(".where"), stageOf(video) + percent);
  node.classList.toggle("running", video.status === "in_progress");
  move(node.querySelector(".bar"), video.progress);
}

function card(video) {
  const picture = element("span", { className: `picture ${video.status}` },
    element("img", { alt: "", hidden: true }), element("span", { className: "badge" }));
  const link = element("a", { href: `#${video.id}` }, picture,
    element("span", { className: "text" }), element("span", { className: "when" }));
  return element("li", {}, link);
}
