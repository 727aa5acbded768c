// What the page knows of the server's videos, and how it keeps up with them.

import * as api from "./api.js";

const PAGE = 24;
const LEAST_MS = 250;
const LIST_BUSY_MS = 3000;
const LIST_IDLE_MS = 10000;
const HIDDEN_MS = 30000;
const RETRY_MS = [1000, 2000, 4000, 8000];
const SAMPLES = 12; // steps that the remaining time is reckoned from

export const isFinal = (video) => video.status === "completed" || video.status === "failed";

/**
 * Asks the server again and again, and calls `changed()` after each reply, which reads:
 *
 * `link`: "connecting", "ready", "starting", "restarting", "broken", "away" or "key" (401);
 * `model`; `listed`, the videos, newest first; `hasOlder`.
 */
export class Videos {
  constructor(changed) {
    this.link = "connecting";
    this.model = null;
    this.hasOlder = false;
    this.loaded = false;
    this._changed = changed;
    this._byId = new Map();
    this._order = [];
    this._due = new Map(); // when to ask for a video again
    this._steps = new Map(); // [step, time] of running videos
    this._gone = new Set(); // deleted here: an older reply may still have them
    this._listDue = 0;
    this._failures = 0;
    this._timer = 0;
    this._busy = false;
    this._again = false;
    document.addEventListener("visibilitychange", () => document.hidden || this.wake());
    window.addEventListener("online", () => this.wake());
  }

  get listed() {
    return this._order.map((id) => this._byId.get(id));
  }

  get(id) {
    return this._byId.get(id) ?? null;
  }

  /** Ask for everything now. */
  wake() {
    this._listDue = 0;
    this._due.clear();
    this._turn();
  }

  async create(fields) {
    const video = await api.create(fields);
    this._put(video);
    if (!this._order.includes(video.id)) this._order.unshift(video.id);
    this.wake();
    return video;
  }

  async cancel(id) {
    this._put(await api.cancel(id));
    this.wake();
  }

  async remove(id) {
    try {
      await api.remove(id);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
    this._gone.add(id);
    this._forget(id);
    this.wake();
  }

  /** A video that may not be listed yet; null if there is none. */
  async find(id) {
    try {
      this._put((await api.retrieve(id)).video);
    } catch (error) {
      if (error.status !== 404) throw error;
      this._forget(id);
    }
    return this.get(id);
  }

  async older() {
    try {
      const page = await api.page(PAGE, this._order.at(-1));
      this._append(page);
    } catch (error) {
      if (error.status !== 400) throw error;
      this._order.length = 0; // the last one is gone: begin anew
      await this._refresh();
    }
    this._changed();
  }

  /** Seconds until the last step, or null if not enough steps were seen. */
  remaining(video) {
    const seen = this._steps.get(video.id) ?? [];
    if (seen.length < 2) return null;
    const [first, last] = [seen[0], seen.at(-1)];
    const each = (last[1] - first[1]) / (last[0] - first[0]);
    const since = performance.now() - last[1];
    return Math.max(0, (video.num_inference_steps - last[0]) * each - since) / 1000;
  }

  async _turn() {
    clearTimeout(this._timer);
    if (this._busy) {
      this._again = true;
      return;
    }
    this._busy = true;
    this._again = false;
    try {
      await this._look();
      this._failures = 0;
    } catch (error) {
      this._failed(error);
    }
    this._busy = false;
    this._changed();
    if (this.link === "key" && !this._again) return; // until a key is given
    this._timer = setTimeout(() => this._turn(), this._again ? 0 : this._pause());
  }

  async _look() {
    const { status } = this._listIsDue() ? await api.health() : { status: this.link };
    this.model ??= await api.model();
    if (this._listIsDue()) await this._refresh();
    this.link = status;
    const now = performance.now();
    const due = this._watched().filter((video) => (this._due.get(video.id) ?? 0) <= now);
    await Promise.all(due.map((video) => this._ask(video.id)));
  }

  _listIsDue() {
    return performance.now() >= this._listDue;
  }

  /** Videos that are asked for one by one: those that run, and the next that will. */
  _watched() {
    const open = this.listed.filter((video) => !isFinal(video));
    const waiting = open.filter((video) => video.status === "queued");
    waiting.sort((one, other) => one.queue_position - other.queue_position);
    return [...open.filter((video) => video.status === "in_progress"), ...waiting.slice(0, 1)];
  }

  async _ask(id) {
    let wait = 0;
    try {
      const reply = await api.retrieve(id);
      wait = reply.wait;
      if (!this._byId.has(id)) return; // deleted meanwhile
      if (this._put(reply.video)) this._listDue = 0; // positions in the queue are others now
    } catch (error) {
      if (error.status !== 404) throw error;
      this._forget(id);
    }
    this._due.set(id, performance.now() + Math.max(wait, LEAST_MS));
  }

  /** The newest page, and as many more as have videos that are not made yet. */
  async _refresh() {
    const before = [...this._order];
    let page = await api.page(PAGE);
    const found = page.data.filter((video) => !this._gone.has(video.id));
    const ids = found.map((video) => video.id);
    const last = before.indexOf(page.last_id);
    const kept = page.has_more && last >= 0 ? before.slice(last + 1) : [];
    if (kept.length === 0) this.hasOlder = page.has_more;
    const made = this._order.filter((id) => !before.includes(id) && !ids.includes(id)); // meanwhile
    const lost = before.filter((id) => !ids.includes(id) && !kept.includes(id));
    lost.forEach((id) => this._forget(id));
    this._order = [...made, ...ids, ...kept].filter((id) => !this._gone.has(id));
    found.forEach((video) => this._put(video));
    while (kept.length === 0 && this.hasOlder && !isFinal(page.data.at(-1))) {
      page = await api.page(PAGE, this._order.at(-1));
      this._append(page);
    }
    this.loaded = true;
    const open = this.listed.some((video) => !isFinal(video));
    this._listDue = performance.now() + (open ? LIST_BUSY_MS : LIST_IDLE_MS);
  }

  _append(page) {
    for (const video of page.data) {
      if (this._gone.has(video.id)) continue;
      this._put(video);
      if (!this._order.includes(video.id)) this._order.push(video.id);
    }
    this.hasOlder = page.has_more;
  }

  /** Takes a video's newest state; true if its status is another one than before. */
  _put(video) {
    const before = this._byId.get(video.id);
    if (before && isFinal(before) && !isFinal(video)) return false; // an older reply, come late
    this._byId.set(video.id, video);
    if (video.status === "in_progress" && video.step !== null) {
      const seen = this._steps.get(video.id) ?? [];
      if (seen.length === 0 || seen.at(-1)[0] < video.step) {
        seen.push([video.step, performance.now()]);
        this._steps.set(video.id, seen.slice(-SAMPLES));
      }
    } else {
      this._steps.delete(video.id);
    }
    return before?.status !== video.status;
  }

  _forget(id) {
    this._byId.delete(id);
    this._steps.delete(id);
    this._due.delete(id);
    this._order = this._order.filter((one) => one !== id);
  }

  _failed(error) {
    this._listDue = 0;
    this._failures += 1;
    if (error.status === 401) {
      this.link = "key";
    } else {
      this.link = "away";
      this.model = null; // another one may come back
      if (!(error instanceof api.Away || error instanceof api.ApiFailure)) console.error(error);
    }
  }

  _pause() {
    if (document.hidden) return HIDDEN_MS;
    if (this.link === "away") return RETRY_MS[Math.min(this._failures, RETRY_MS.length) - 1];
    if (this.link !== "ready") this._listDue = Math.min(this._listDue, performance.now() + RETRY_MS[1]);
    const dues = this._watched().map((video) => this._due.get(video.id) ?? 0);
    const next = Math.min(this._listDue, ...dues) - performance.now();
    return Math.max(next, LEAST_MS / 2);
  }
}
