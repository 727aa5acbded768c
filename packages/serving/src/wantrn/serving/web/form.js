// The form: what is asked for, and what is wrong with it.

import { byId, say } from "./dom.js";
import { Loras } from "./loras.js";
import { withoutField } from "./words.js";

// by these names the API and a video know them, and an empty one is the model's default
const FIELDS = [
  "prompt", "negative_prompt", "size", "fps", "num_inference_steps",
  "guidance_scale", "guidance_scale_2", "scheduler", "flow_shift", "step_cache", "seed",
];
const TITLES = { t2v: "Text to video", i2v: "Picture to video", ti2v: "Text or picture to video" };

export class Form {
  /** `submit(fields)` is called with what the API takes. */
  constructor(submit) {
    this._model = null;
    this._submit = submit;
    this._picture = null;
    this._loras = new Loras();
    this._node = byId("form");
    this._node.addEventListener("submit", (event) => this._send(event));
    this._node.addEventListener("input", (event) => this._edited(event.target));
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this._node.requestSubmit();
    });
    byId("reset").addEventListener("click", () => this._reset());
    for (const button of this._node.querySelectorAll("[data-shape]")) {
      button.addEventListener("click", () => this._shape(button.dataset.shape));
    }
    this._takePictures();
  }

  /** Follow the server's model: its kind, and its defaults as placeholders. */
  apply(model) {
    if (JSON.stringify(model) === JSON.stringify(this._model)) return;
    this._model = model;
    const defaults = model.defaults;
    say(byId("model"), `${model.id} · ${TITLES[model.kind] ?? model.kind}`);
    byId("picture-field").hidden = model.kind === "t2v";
    byId("picture-optional").hidden = model.kind === "i2v";
    byId("guidance-2-field").hidden = model.experts < 2;
    for (const name of FIELDS) {
      if (defaults[name] !== undefined && name !== "scheduler") byId(name).placeholder = defaults[name] ?? "";
    }
    byId("scheduler").replaceChildren(
      new Option(`${defaults.scheduler} (default)`, ""),
      ...model.schedulers.filter((name) => name !== defaults.scheduler).map((name) => new Option(name)),
    );
    this._loras.offer(model.loras, model.experts);
    this._sizes();
    this._lengths();
  }

  /** Take over the settings of `video`. */
  fill(video) {
    this._clearErrors();
    for (const name of FIELDS) {
      const value = String(video[name] ?? "");
      byId(name).value = value;
      if (name === "scheduler" && byId(name).selectedIndex < 0) byId(name).value = "";
    }
    byId("length").value = video.num_frames;
    byId("length-unit").value = "num_frames";
    byId("more").open = true;
    this._sizes();
    this._lengths();
    const missing = this._loras.choose(video.lora);
    if (missing.length) {
      byId("form-error").hidden = false;
      say(byId("form-error"), `This video was made with LoRAs that are not here: ${missing.join(", ")}`);
    }
    if (video.has_image && this._picture === null) {
      this._error(["input_reference"], "This video had a first frame. Choose it again to make the same.");
    }
    byId("prompt").focus();
  }

  /** Tell an ApiFailure at the field that it names, or above the button. */
  tell(failure) {
    const message = withoutField(failure.message, failure.param);
    const param = failure.status === 413 && this._picture ? "input_reference" : failure.param;
    const field = this._error(param ? [param, param.split(".")[0]] : [], message);
    if (!field) {
      byId("form-error").hidden = false;
      say(byId("form-error"), failure.message.charAt(0).toUpperCase() + failure.message.slice(1));
      return;
    }
    field.closest("details")?.setAttribute("open", "");
    field.querySelector("textarea, input, select").focus();
  }

  set busy(is) {
    byId("make").disabled = is;
    say(byId("make"), is ? "Sending" : "Make video");
  }

  async _send(event) {
    event.preventDefault();
    if (byId("make").disabled) return;
    this._clearErrors();
    if (byId("prompt").value === "") {
      this._error(["prompt"], "Say what the video shows.");
      byId("prompt").focus();
      return;
    }
    const fields = {};
    for (const name of FIELDS) {
      const value = byId(name).value;
      const text = name.endsWith("prompt") ? value : value.trim();
      if (text !== "" && !byId(name).closest("[hidden]")) fields[name] = text;
    }
    const length = byId("length").value.trim();
    if (length !== "") fields[byId("length-unit").value] = length;
    const loras = this._loras.chosen();
    if (loras.length) fields.lora = loras;
    if (byId("fit").checked) fields.fit = "nearest";
    if (this._picture && !byId("picture-field").hidden) {
      try {
        fields.input_reference = { image_url: await dataUrl(this._picture) };
      } catch (error) {
        this._error(["input_reference"], `The file cannot be read: ${error.message}`);
        return;
      }
    }
    await this._submit(fields);
  }

  _error(names, message) {
    const fields = [...this._node.querySelectorAll("[data-field]")];
    const field = fields.find((one) => one.dataset.field.split(" ").some((name) => names.includes(name)));
    if (!field || field.hidden) return null;
    const input = field.querySelector("textarea, input, select");
    let text = field.querySelector(".error");
    if (!text) {
      text = document.createElement("p");
      text.className = "error";
      text.id = `${input.id}-error`;
      text.setAttribute("role", "alert");
      field.append(text);
    }
    text.textContent = message;
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", [text.id, `${input.id}-hint`].filter(byId).join(" "));
    return field;
  }

  _clearErrors() {
    byId("form-error").hidden = true;
    for (const field of this._node.querySelectorAll("[data-field]")) this._clear(field);
  }

  _clear(field) {
    const text = field.querySelector(".error");
    if (!text) return;
    text.remove();
    const input = field.querySelector("[aria-invalid]");
    input.removeAttribute("aria-invalid");
    if (byId(`${input.id}-hint`)) input.setAttribute("aria-describedby", `${input.id}-hint`);
    else input.removeAttribute("aria-describedby");
  }

  _edited(input) {
    const field = input.closest("[data-field]");
    if (field) this._clear(field);
    if (["length", "length-unit", "fps"].includes(input.id)) this._lengths();
    if (input.id === "size") this._sizes();
  }

  _reset() {
    this._clearErrors();
    for (const name of FIELDS) if (name !== "prompt") byId(name).value = "";
    this._loras.choose([]);
    byId("length").value = "";
    byId("length-unit").value = "num_frames";
    this._sizes();
    this._lengths();
  }

  /** A size of the default's area in another shape, which the model can make. */
  _shape(name) {
    const [width, height] = this._model.defaults.size.split("x").map(Number);
    const [long, short] = width === height ? [16, 9] : [Math.max(width, height), Math.min(width, height)];
    const [across, down] = { landscape: [long, short], square: [1, 1], portrait: [short, long] }[name];
    const unit = Math.sqrt((width * height) / (across * down));
    const fitted = [across, down].map((side) => this._multiple(side * unit));
    byId("size").value = fitted.join("x");
    this._clear(byId("size").closest("[data-field]"));
    this._sizes();
  }

  _multiple(pixels) {
    const multiple = this._model.size_multiple;
    return Math.max(1, Math.round(pixels / multiple)) * multiple;
  }

  _sizes() {
    const size = byId("size").value.trim() || byId("size").placeholder;
    const [width, height] = size.split("x").map(Number);
    const shape = width > height ? "landscape" : width < height ? "portrait" : "square";
    for (const button of this._node.querySelectorAll("[data-shape]")) {
      button.setAttribute("aria-pressed", String(width > 0 && button.dataset.shape === shape));
    }
    if (this._model) say(byId("size-hint"), `Multiples of ${this._model.size_multiple}`);
  }

  _lengths() {
    if (!this._model) return;
    const { num_frames, fps } = this._model.defaults;
    const rate = Number(byId("fps").value.trim() || fps);
    const inFrames = byId("length-unit").value === "num_frames";
    const seconds = (frames) => String(Number(((frames - 1) / rate).toFixed(2)));
    byId("length").placeholder = inFrames ? num_frames : seconds(num_frames);
    const given = Number(byId("length").value.trim().replace(",", ".") || byId("length").placeholder);
    const other = inFrames ? `${seconds(given)} s` : `${Math.round(given * rate) + 1} frames`;
    say(byId("length-hint"), given > 0 && rate > 0 ? `${other} at ${rate} fps` : "");
  }

  _takePictures() {
    const drop = byId("drop");
    byId("picture").addEventListener("change", (event) => this._choose(event.target.files[0] ?? null));
    byId("picture-clear").addEventListener("click", () => {
      byId("picture").value = "";
      this._choose(null);
      byId("picture").focus();
    });
    for (const name of ["dragover", "dragleave", "drop"]) {
      drop.addEventListener(name, (event) => {
        event.preventDefault();
        drop.classList.toggle("over", name === "dragover");
        if (name === "drop" && event.dataTransfer.files.length) this._choose(event.dataTransfer.files[0]);
      });
    }
  }

  _choose(file) {
    const shown = byId("picture-shown");
    if (shown.src) URL.revokeObjectURL(shown.src);
    shown.removeAttribute("src");
    this._picture = file;
    this._clear(byId("picture-field"));
    shown.hidden = byId("picture-clear").hidden = file === null;
    if (file) shown.src = URL.createObjectURL(file);
    say(byId("picture-text"), file ? file.name : "Choose a picture, or drop it here");
    if (this._model) byId("size").placeholder = file ? "From the picture" : this._model.defaults.size;
    this._sizes();
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
