// Numbers and states as people say them.

const STATES = {
  queued: "Waiting",
  in_progress: "In progress",
  completed: "Finished",
  failed: "Failed",
};

export function stateOf(video) {
  return video.error?.code === "cancelled" ? "Cancelled" : STATES[video.status];
}

/** What a running or waiting video is at, without the time that is left. */
export function stageOf(video) {
  if (video.status === "queued") {
    const ahead = video.queue_position ?? 0;
    return ahead === 0 ? "Next in line" : `${ahead} ahead of it in the queue`;
  }
  if (!video.step) return "Reading the prompt";
  if (video.step >= video.num_inference_steps) return "Decoding the pictures";
  return `Step ${video.step} of ${video.num_inference_steps}`;
}

export function remainingOf(seconds) {
  if (seconds === null) return "";
  if (seconds < 5) return "a few seconds left";
  if (seconds < 55) return `about ${Math.ceil(seconds / 5) * 5} s left`;
  if (seconds < 3600) return `about ${Math.round(seconds / 60)} min left`;
  return `about ${(seconds / 3600).toFixed(1)} h left`;
}

/** Such as "4.2 s" or "3 min 5 s". */
export function durationOf(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

/** Such as "style × 0.5". */
export function loraOf({ name, scale, scale_2 }) {
  return `${name} × ${scale}${scale_2 === null || scale_2 === scale ? "" : ` and ${scale_2}`}`;
}

export function ago(unixSeconds) {
  const past = Date.now() / 1000 - unixSeconds;
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return new Date(unixSeconds * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

/** A message of the server's without the field's name before it, which the field's label says. */
export function withoutField(message, param) {
  const bare = param && message.startsWith(param) ? message.slice(param.length).replace(/^:?\s+/, "") : message;
  return bare.charAt(0).toUpperCase() + bare.slice(1);
}

/** A file name from a prompt. */
export function fileName(video) {
  const words = video.prompt.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  const name = words.join("-").slice(0, 48).replace(/-+$/, "") || "video";
  return `${name}-${video.seed}.mp4`;
}
