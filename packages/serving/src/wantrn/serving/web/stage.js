// The large view of one video: on its way, finished or failed.

import * as api from "./api.js";
import { Pictures, bar, byId, element, move, say } from "./dom.js";
import { durationOf, fileName, loraOf, remainingOf, stageOf, stateOf, withoutField } from "./words.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const PREVIEW_MS = 700;
const LONG = 500; // characters of a prompt that may not be seen at once

export class Stage {
  /** `on` has `cancel`, `again` and `remove`, each called with a video, and `failed(error)`. */
  constructor(videos, on) {
    this._videos = videos;
    this._on = on;
    this._pictures = new Pictures();
    this._node = byId("stage");
    this._drawn = "";
    this._previewed = { at: 0, step: -1 };
  }

  /** Show `video`, or what stands there without one: `missing` is an id that is not there. */
  show(video, missing) {
    const key = video ? `${video.id} ${video.status}` : `no ${missing ?? ""}`;
    if (key !== this._drawn) {
      const focused = this._node.contains(document.activeElement);
      const same = video !== null && this._drawn.startsWith(`${video.id} `);
      this._drawn = key;
      const still = same ? this._node.querySelector("img.preview") : null;
      if (!still) this._node.querySelectorAll("img, video").forEach((one) => this._pictures.free(one));
      this._node.replaceChildren(...(video ? this._parts(video, still) : this._nothing(missing)));
      this._previewed = { at: 0, step: -1 };
      if (focused) this.focus();
    }
    if (video && (video.status === "queued" || video.status === "in_progress")) this._follow(video);
  }

  focus() {
    byId("stage-title").focus({ preventScroll: true });
  }

  /** Scroll only as far as needed. */
  bringIntoView() {
    this._node.scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
  }

  _nothing(missing) {
    const [title, text] = missing
      ? ["There is no such video", "It was deleted, or has been kept as long as this server keeps videos."]
      : ["Nothing on screen yet", "Describe a video, and watch it come out of the noise."];
    return [
      element("div", { className: "screen empty" },
        element("div", { className: "frame", ariaHidden: "true" }),
        element("div", { className: "words" },
          element("h2", { id: "stage-title", tabIndex: -1, textContent: title }),
          element("p", { textContent: text }))),
    ];
  }

  _parts(video, still) {
    const title = element("h2", { id: "stage-title", className: "unseen", tabIndex: -1 });
    title.textContent = `${stateOf(video)}: ${video.prompt.slice(0, 120)}`;
    return [title, this._screen(video, still), this._controls(video), this._settings(video)];
  }

  _screen(video, still) {
    const screen = element("div", { className: `screen ${video.status}` });
    if (video.status === "failed") {
      const cancelled = video.error.code === "cancelled";
      screen.append(
        element("div", { className: "words" },
          element("p", { className: "big", textContent: cancelled ? "Cancelled" : "This video could not be made" }),
          cancelled ? null : element("p", { className: "reason", textContent: withoutField(video.error.message) }),
          cancelled ? null : element("p", { className: "code", textContent: video.error.code })));
      return screen;
    }
    screen.append(still ?? element("img", { className: "preview", alt: "What the video is like by now", hidden: true }));
    if (video.status === "completed") this._play(video, screen);
    else screen.append(element("div", { className: "words waiting" }, element("span", { className: "pulse", ariaHidden: "true" }), element("p")));
    return screen;
  }

  async _play(video, screen) {
    const player = element("video", { controls: true, loop: true, muted: true, playsInline: true });
    player.setAttribute("aria-label", `The video: ${video.prompt.slice(0, 120)}`);
    try {
      const blob = await api.content(video.id);
      if (!screen.isConnected) return;
      const url = this._pictures.show(player, blob);
      const link = byId("download");
      link.href = url;
      link.removeAttribute("aria-disabled");
      player.autoplay = !calm.matches;
      const still = screen.querySelector(".preview");
      player.addEventListener("loadeddata", () => {
        this._pictures.free(still);
        still.remove();
      }, { once: true });
      screen.append(player);
    } catch (error) {
      if (screen.isConnected) screen.append(element("div", { className: "words" }, element("p", { className: "reason", textContent: `The file could not be fetched: ${error.message}` })));
      this._on.failed(error);
    }
  }

  _controls(video) {
    const button = (text, className, act) =>
      element("button", { type: "button", className, textContent: text, onclick: () => act(video) });
    if (video.status === "queued" || video.status === "in_progress") {
      return element("div", { className: "controls" },
        element("div", { className: "way" }, bar("Progress of the video"),
          element("p", { className: "numbers" }, element("span", { className: "at" }), element("span", { className: "left" }))),
        button("Cancel", "plain", this._on.cancel));
    }
    const link = element("a", { id: "download", className: "primary", download: fileName(video), textContent: "Download" });
    link.setAttribute("aria-disabled", "true");
    return element("div", { className: "controls ended" },
      video.status === "completed" ? link : null,
      button("Use these settings again", "plain", this._on.again),
      button("Delete", "plain warn", this._on.remove));
  }

  _follow(video) {
    const [controls, screen] = [this._node.querySelector(".controls"), this._node.querySelector(".screen")];
    move(controls.querySelector(".bar"), video.progress);
    controls.classList.toggle("started", video.status === "in_progress");
    say(controls.querySelector(".at"), stageOf(video));
    const decoding = video.step !== null && video.step >= video.num_inference_steps;
    const left = video.step && !decoding ? remainingOf(this._videos.remaining(video)) : "";
    say(controls.querySelector(".left"), left);
    say(screen.querySelector(".words p"), video.status === "queued" ? "Waiting for its turn" : "The first picture comes with the first steps");
    if (video.has_preview) this._preview(video, screen.querySelector(".preview"), screen.querySelector(".words"));
  }

  /** The newest preview, if it may be another one than what is shown. */
  async _preview(video, image, words) {
    const now = performance.now();
    if (document.hidden || this._previewed.step === video.step || now - this._previewed.at < PREVIEW_MS) return;
    this._previewed = { at: now, step: video.step };
    try {
      const blob = await api.preview(video.id);
      if (!image.isConnected || this._node.querySelector("video")) return;
      this._pictures.show(image, blob);
      image.hidden = false;
      words.hidden = true;
    } catch (error) {
      if (error.status !== 404) this._on.failed(error); // 404: it has ended meanwhile
    }
  }

  _settings(video) {
    const list = element("dl", { className: "settings" });
    const add = (term, ...value) => list.append(element("div", {}, element("dt", { textContent: term }), element("dd", {}, ...value)));
    const adjusted = { size: video.adjusted.size, length: video.adjusted.num_frames ?? video.adjusted.seconds };
    const asked = (what) => (what === undefined ? null : element("span", { className: "asked", textContent: ` asked for ${what}` }));
    add("Size", video.size, asked(adjusted.size));
    add("Length", `${video.seconds} s · ${video.num_frames} frames at ${video.fps} fps`, asked(adjusted.length));
    const reused = video.steps_reused ? `, of which ${video.steps_reused} reused others` : "";
    add("Steps", `${video.num_inference_steps}${reused}`);
    const two = video.guidance_scale_2 === null ? "" : ` and ${video.guidance_scale_2}`;
    add("Guidance", `${video.guidance_scale}${two}`);
    add("Schedule", `${video.scheduler}, shift ${video.flow_shift}`);
    if (video.lora.length) add("LoRAs", video.lora.map(loraOf).join(", "));
    add("Seed", element("span", { className: "seed", id: "seed-used", textContent: video.seed }), this._copy(video.seed));
    const seconds = Object.values(video.stage_seconds).reduce((sum, one) => sum + one, 0);
    if (seconds) add("Made in", durationOf(seconds));
    add("Model", video.model);
    return element("div", { className: "about" },
      this._text("Prompt", video.prompt),
      video.negative_prompt ? this._text("Negative prompt", video.negative_prompt) : null,
      list);
  }

  _text(label, text) {
    const made = element("p", { className: "prompt", textContent: text });
    if (text.length > LONG) made.tabIndex = 0; // so that it can be scrolled by keyboard
    made.setAttribute("aria-label", `${label} of this video`);
    made.setAttribute("role", "group");
    return element("div", {}, element("h3", { textContent: label }), made);
  }

  _copy(seed) {
    const made = element("button", { type: "button", className: "quiet", textContent: "Copy" });
    made.setAttribute("aria-label", "Copy the seed");
    made.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(seed);
        say(made, "Copied");
      } catch {
        getSelection().selectAllChildren(byId("seed-used")); // no clipboard without HTTPS
        say(made, "Press Ctrl + C");
      }
      setTimeout(() => say(made, "Copy"), 2000);
    });
    return made;
  }
}
