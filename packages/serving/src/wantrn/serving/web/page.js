// The page: what is selected, what the server says, and how its parts hear of it.

import * as api from "./api.js";
import { byId, open, say } from "./dom.js";
import { Form } from "./form.js";
import { Shelf } from "./shelf.js";
import { Stage } from "./stage.js";
import { Videos } from "./videos.js";
import { stateOf } from "./words.js";

const QUARTER = 25;

// What is told about the server; `text` is empty where no banner is needed.
const LINKS = {
  connecting: { short: "Connecting" },
  key: { short: "Key needed" },
  ready: { short: "Ready" },
  starting: { short: "Starting", title: "The model is being loaded.", text: "Videos can be asked for in a moment." },
  restarting: { short: "Restarting", title: "The engine is starting again.", text: "This page goes on by itself when it is back. Videos that waited are still in line." },
  broken: { short: "Out of order", title: "The engine has given up.", text: "Finished videos can still be watched; new ones need whoever runs this server." },
  away: { short: "Away", title: "The server does not answer.", text: "Trying again; this page goes on by itself." },
};

const videos = new Videos(() => draw());
const form = new Form(make);
const shelf = new Shelf();
const stage = new Stage(videos, { cancel, again, remove, failed });
let announced = "";
let missing = null;
let deleting = null;

const selectedId = () => (location.hash.startsWith("#video_") ? location.hash.slice(1) : null);

function draw() {
  const link = LINKS[videos.link];
  byId("health").dataset.state = videos.link;
  say(byId("health-text"), link.short);
  byId("banner").hidden = !link.text;
  byId("banner").dataset.state = videos.link;
  if (link.text) {
    say(byId("banner-title"), link.title);
    say(byId("banner-text"), link.text);
  }
  if (videos.model) form.apply(videos.model);
  if (videos.link === "key") askForKey();
  const id = selectedId();
  const video = id && videos.get(id);
  if (id && !video && videos.loaded && missing !== id) look(id);
  if (!id || video || missing === id) stage.show(video || null, id);
  shelf.show(videos, id);
  announce(video);
  const running = video?.status === "in_progress";
  document.title = running ? `${video.progress} % · wantrn` : "wantrn";
}

/** Tells those who cannot see the bar: states, and quarters of the way. */
function announce(video) {
  if (!video) return;
  const quarter = Math.floor(video.progress / QUARTER) * QUARTER;
  const running = video.status === "in_progress";
  const news = `${video.id} ${video.status} ${running ? quarter : ""}`;
  if (news === announced) return;
  const other = !announced.startsWith(video.id);
  announced = news;
  if (other && video.status !== "queued") return; // chosen by hand: its title is read
  say(byId("announcer"), running && quarter ? `${quarter} percent` : `Video: ${stateOf(video)}`);
}

/** Look for a video that no list has shown yet. */
async function look(id) {
  missing = id; // asked for once
  try {
    if (await videos.find(id)) missing = null;
  } catch (error) {
    missing = null;
    failed(error);
    return;
  }
  draw();
}

async function make(fields) {
  form.busy = true;
  try {
    const video = await videos.create(fields);
    select(video.id);
    stage.bringIntoView();
  } catch (error) {
    if (!(error instanceof api.ApiFailure)) failed(error);
    if (error instanceof api.Away) error.message = "The server does not answer. Nothing was sent; try again in a moment.";
    if (error.retryAfter && error.status === 429) error.message += `. Try again in ${error.retryAfter} s.`;
    if (error.status === 401) failed(error);
    else form.tell(error);
  } finally {
    form.busy = false;
  }
}

async function cancel(video) {
  try {
    await videos.cancel(video.id);
  } catch (error) {
    if (error.status !== 409 && error.status !== 404) failed(error); // it has ended meanwhile
  }
}

function again(video) {
  form.fill(video);
}

function remove(video) {
  deleting = video;
  const running = video.status === "in_progress" || video.status === "queued";
  say(byId("delete-text"), running ? "It is stopped, and its file goes." : "It is removed from the server, for everybody.");
  open(byId("delete-dialog"));
  byId("delete-no").focus();
}

async function removeNow() {
  byId("delete-dialog").close();
  const next = shelf.neighbour(deleting.id);
  try {
    await videos.remove(deleting.id);
  } catch (error) {
    failed(error);
    return;
  }
  say(byId("announcer"), "Video deleted");
  select(null);
  if (next) shelf.focus(next);
  else byId("prompt").focus();
}

function select(id) {
  history.pushState(null, "", id ? `#${id}` : location.pathname);
  draw();
}

/** A failure outside of the form: the next round will show what is wrong. */
function failed(error) {
  if (!(error instanceof api.ApiFailure || error instanceof api.Away)) throw error;
  videos.wake();
}

function askForKey() {
  if (byId("key-dialog").open) return;
  byId("key-error").hidden = !api.dropKey();
  byId("key").value = "";
  open(byId("key-dialog"));
  byId("key").focus();
}

function takeKey(event) {
  event.preventDefault();
  const fits = api.setKey(byId("key").value.trim());
  byId("key-error").hidden = fits;
  if (!fits) return;
  videos.link = "connecting";
  byId("key-dialog").close();
  videos.wake();
}

byId("key-form").addEventListener("submit", takeKey);
byId("key-dialog").addEventListener("close", () => videos.link === "key" && askForKey());
byId("delete-no").addEventListener("click", () => byId("delete-dialog").close());
byId("delete-yes").addEventListener("click", removeNow);
byId("older").addEventListener("click", () => videos.older().catch(failed));
window.addEventListener("hashchange", () => {
  draw();
  if (!selectedId()) return;
  stage.focus();
  stage.bringIntoView();
});
window.addEventListener("popstate", () => draw());
draw();
videos.wake();
