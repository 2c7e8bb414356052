// Requests to this server: the key, errors in words, responses.

const KEY = "gateway-key";

// If storage is forbidden, the key lasts as long as the page.
let kept = null;

export function key() {
  try {
    return sessionStorage.getItem(KEY) ?? kept;
  } catch {
    return kept;
  }
}

export function setKey(value) {
  kept = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch {
    // It stays in `kept`.
  }
}

/** A failure in words. `status` is 0 if there was no response. */
export class Failure extends Error {
  constructor(status, type, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.type = type;
    this.retryAfter = retryAfter;
  }
}

const WORDS = {
  401: "The gateway requires an API key.",
  403: "This API key does not permit the request.",
  404: "No such model or version.",
  408: "The request did not arrive in time.",
  413: "The request exceeds the gateway's limits.",
  429: "The requests exceed the API key's rate.",
  500: "The model failed on this request.",
  502: "The node failed before its response was complete.",
  503: "No worker is ready, or all workers are busy.",
  504: "The response took too long.",
  507: "The model ran out of memory.",
};

async function failure(response) {
  let said = {};
  try {
    said = JSON.parse(await response.text());
  } catch {
    // Not JSON: WORDS describes the status.
  }
  const told = said?.error && typeof said.error === "object" ? said.error : said;
  const message = told?.message ?? (typeof told?.error === "string" ? told.error : null);
  const words = message || WORDS[response.status] || `The server returned status ${response.status}.`;
  return new Failure(response.status, told?.type ?? "", String(words), response.headers.get("Retry-After"));
}

/** Fetch from this server with the key; rejects with a Failure if the status is 400 or more. */
export async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  const sent = key();
  if (sent) headers.set("Authorization", `Bearer ${sent}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "", "The server cannot be reached.");
  }
  if (response.ok) return response;
  const failed = await failure(response);
  if (failed.status === 401) dispatchEvent(new CustomEvent("keyneeded", { detail: { sent } }));
  throw failed;
}

/** Read a response: parsed JSON, or text. */
export async function read(response) {
  return parsed(await response.text());
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
