/** The server's endpoints: JSON, server-sent events, and errors as sentences. */

/** What went wrong, in words for the person at the page. */
export class ApiError extends Error {}

const HINTS = {
  401: "Enter an API key that this server knows, under Settings.",
  413: "Shorten the text.",
  429: "The server is busy.",
  503: "The server is busy or shutting down.",
  504: "Ask for fewer tokens, or try when fewer others do.",
};

/** Return an error body's sentence, with what to do. */
function sentence(status, error, retryAfter) {
  const parts = [error?.message || `The server answered with status ${status}`];
  const field = error?.param?.split(".").at(-1);
  if (field && !parts[0].includes(field)) parts[0] += ` (${error.param})`;
  if (!/[.!?]$/.test(parts[0])) parts[0] += ".";
  if (HINTS[status]) parts.push(HINTS[status]);
  if (retryAfter) parts.push(`Try again in ${retryAfter} s.`);
  return parts.join(" ");
}

async function request(path, key, options) {
  const headers = { Accept: "application/json, text/event-stream" };
  if (options.body) headers["Content-Type"] = "application/json";
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers });
  } catch {
    throw new ApiError("The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ApiError(sentence(response.status, body?.error, response.headers.get("Retry-After")));
}

/** Return the models that the server has. */
export async function models(key) {
  const response = await request("v1/models", key, {});
  return (await response.json()).data;
}

/**
 * Send a request and yield the objects of its event stream.
 *
 * @param {string} path such as "v1/chat/completions"
 * @param {object} body
 * @param {{key: string, signal: AbortSignal}} options aborting ends the request on the server too
 * @throws {ApiError} the server refused, failed, or went away before it was done; or was let go of
 */
export async function* stream(path, body, { key, signal }) {
  const options = { stream: true, stream_options: { include_usage: true }, diffusing: true };
  const text = JSON.stringify({ ...body, ...options });
  const response = await request(path, key, { method: "POST", body: text, signal });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(sentence(chunk.error.code, chunk.error));
    yield chunk;
  }
  throw new ApiError("The connection broke off before the answer was complete.");
}

/** Yield the data of each server-sent event of a byte stream. */
async function* events(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await read(reader);
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the reader left early: let go of the connection
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch {
    throw new ApiError("The connection to the server was lost.");
  }
}
