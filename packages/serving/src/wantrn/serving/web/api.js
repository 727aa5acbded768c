// What the page asks of the server. Every failure is an ApiFailure or an Away.

const KEY = "wantrn-api-key";
const PATIENCE_MS = 20000;

let key = sessionStorage.getItem(KEY);

/** The server replied with an error; `param` is the field at fault, if there is one. */
export class ApiFailure extends Error {
  constructor(status, { message, param, code } = {}, retryAfter = null) {
    super(message ?? `the server replied ${status}`);
    this.status = status;
    this.param = param ?? null;
    this.code = code ?? null;
    this.retryAfter = retryAfter;
  }
}

/** No reply came. */
export class Away extends Error {}

/** Keeps the key for this tab; false if it cannot be one. */
export function setKey(given) {
  if (!/^[\x21-\x7e]+$/.test(given)) return false;
  key = given;
  sessionStorage.setItem(KEY, given);
  return true;
}

export function dropKey() {
  const had = key !== null;
  key = null;
  sessionStorage.removeItem(KEY);
  return had;
}

/** {status: "ready" | "starting" | "restarting" | "broken"} */
export async function health() {
  const response = await ask("/health", {});
  if (!response.ok && response.status !== 503) throw await failureOf(response);
  return parse(response);
}

export async function model() {
  return (await parse(await send("/v1/models"))).data[0];
}

export async function page(limit, after) {
  const query = new URLSearchParams({ limit });
  if (after) query.set("after", after);
  return parse(await send(`/v1/videos?${query}`));
}

/** The video, and in how many milliseconds it is worth asking again. */
export async function retrieve(id) {
  const response = await send(place(id));
  const wait = Number(response.headers.get("openai-poll-after-ms") ?? 0);
  return { video: await parse(response), wait };
}

/** JSON, because a form would change the line ends of a prompt. */
export async function create(fields) {
  const options = { method: "POST", body: JSON.stringify(fields), type: "application/json" };
  return parse(await send("/v1/videos", options, null));
}

export async function cancel(id) {
  return parse(await send(`${place(id)}/cancel`, { method: "POST" }));
}

export async function remove(id) {
  await send(place(id), { method: "DELETE" });
}

/** A blob: an element cannot send a key with its request. */
export async function content(id, variant) {
  const query = variant ? `?variant=${variant}` : "";
  return (await send(`${place(id)}/content${query}`, { cache: "default" }, null)).blob();
}

export async function preview(id) {
  return (await send(`${place(id)}/preview`)).blob();
}

const place = (id) => `/v1/videos/${encodeURIComponent(id)}`;

async function send(path, options = {}, patience = PATIENCE_MS) {
  const response = await ask(path, options, patience);
  if (!response.ok) throw await failureOf(response);
  return response;
}

async function ask(path, { type, ...options }, patience = PATIENCE_MS) {
  const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
  if (type) headers["Content-Type"] = type;
  const signal = patience === null ? undefined : AbortSignal.timeout(patience);
  try {
    return await fetch(path, { cache: "no-store", ...options, headers, signal });
  } catch (error) {
    throw new Away(error.message);
  }
}

/** JSON, with seeds as text: they have up to 63 bits, and a JavaScript number 53. */
async function parse(response) {
  let text;
  try {
    text = await response.text();
  } catch (error) {
    throw new Away(error.message);
  }
  // inside of JSON's own strings, a quotation mark has a backslash before it
  return JSON.parse(text.replace(/"seed":\s*(\d+)/g, '"seed":"$1"'));
}

async function failureOf(response) {
  const after = Number(response.headers.get("retry-after"));
  let error;
  try {
    error = (await response.json()).error;
  } catch {
    error = undefined; // a proxy's page, perhaps
  }
  return new ApiFailure(response.status, error, after || null);
}
