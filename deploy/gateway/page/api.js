// Requests to this server: the key, errors in words, answers as they come.

const KEY = "gateway-key";

// Where storage is forbidden, the key lasts as long as the page.
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

/** What went wrong, in words. `status` is 0 where there was no answer. */
export class Failure extends Error {
  constructor(status, type, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.type = type;
    this.retryAfter = retryAfter;
  }
}

const WORDS = {
  401: "This gateway asks for a key.",
  403: "This key may not do that.",
  404: "There is no such model or version.",
  408: "The request took too long to arrive.",
  413: "This is larger than the gateway takes.",
  429: "That was more than the key's rate allows.",
  500: "The model failed.",
  502: "The node that had the request was lost.",
  503: "No worker is free, or none is up.",
  504: "The answer took too long.",
  507: "The model ran out of memory.",
};

async function failure(response) {
  let said = {};
  try {
    said = JSON.parse(await response.text());
  } catch {
    // No JSON: the status has words of its own.
  }
  const told = said?.error && typeof said.error === "object" ? said.error : said;
  const message = told?.message ?? (typeof told?.error === "string" ? told.error : null);
  const words = message || WORDS[response.status] || `The server answered ${response.status}.`;
  return new Failure(response.status, told?.type ?? "", String(words), response.headers.get("Retry-After"));
}

/** Fetch from this server with the key; rejects with a Failure where the status is 400 or more. */
export async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  const sent = key();
  if (sent) headers.set("Authorization", `Bearer ${sent}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "", "The gateway cannot be reached.");
  }
  if (response.ok) return response;
  const failed = await failure(response);
  if (failed.status === 401) dispatchEvent(new CustomEvent("keyneeded", { detail: { sent } }));
  throw failed;
}

/** Read an answer: parsed JSON, or text. */
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
