// HTTP API client: the token, errors, and the live stream.
//
// The stream uses fetch, because EventSource cannot send the token.

const TOKEN = 'slidegate-token';
/** Timeout of a request. */
const TIMEOUT_MS = 10_000;
/** The stream sends an event every second. After this time without one it is reconnected. */
const STREAM_TIMEOUT_MS = 6000;
const MIN_BACKOFF_MS = 1000;
const MAX_BACKOFF_MS = 30_000;
/** Maximum characters of one event. */
const MAX_EVENT = 1 << 20;

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/** The service did not respond, or not with a valid response. */
export class Unavailable extends Error {}

/** An error response; `detail` is the problem's detail. */
export class HttpError extends Error {
  /**
   * `sentToken` is the token of the request: it may have been replaced since. `ownKey` is the only key that it may read,
   * as `POLICY/KEY`.
   */
  constructor(status, detail, sentToken, ownKey) {
    super(detail);
    this.status = status;
    this.sentToken = sentToken;
    this.ownKey = ownKey;
  }
}

const headers = (sentToken, more) => (sentToken ? { ...more, Authorization: `Bearer ${sentToken}` } : more);

async function httpError(response, sentToken) {
  const fallback = `the service returned ${response.status} ${response.statusText}`.trim();
  try {
    const { detail, own_key: ownKey } = await response.json();
    return new HttpError(response.status, typeof detail === 'string' ? detail : fallback, sentToken, ownKey);
  } catch {
    return new HttpError(response.status, fallback, sentToken);
  }
}

/** Requests JSON. Throws `Unavailable` or `HttpError`. */
export async function request(path, { method = 'GET', body } = {}) {
  const sentToken = token.get();
  const more = { Accept: 'application/json', ...(body !== undefined && { 'Content-Type': 'application/json' }) };
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: headers(sentToken, more),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: 'no-store',
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch (error) {
    throw new Unavailable(`the service is unreachable: ${error.message}`);
  }
  if (!response.ok) throw await httpError(response, sentToken);
  try {
    return await response.json();
  } catch (error) {
    throw new Unavailable(`invalid response: ${error.message}`);
  }
}

/** The path of a key. Browsers resolve a segment `..`, so its dots use the escape of keys. */
export const keyPath = (policy, key) =>
  `/v1/keys/${encodeURIComponent(policy)}/${encodeURIComponent(/^\.\.?$/.test(key) ? key.replaceAll('.', '%2E') : key)}`;

/** Parses server-sent events from chunks of text. */
export async function* events(chunks) {
  let rest = '';
  for await (const chunk of chunks) {
    rest += chunk;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    if (rest.length > MAX_EVENT) throw new Unavailable('an event of the stream is too long');
    for (const block of blocks) {
      let name = 'message';
      const data = [];
      for (const line of block.split(/\r?\n/)) {
        const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (field === 'event') name = value;
        if (field === 'data') data.push(value);
      }
      // A comment is a keep-alive without data.
      yield { name, data: data.length ? JSON.parse(data.join('\n')) : null };
    }
  }
}

/** Decodes the bytes of a reader as text. */
async function* textChunks(reader, heard) {
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    yield decoder.decode(value, { stream: true });
  }
}

/**
 * Reads the stream `/v1/live` and reconnects with exponential backoff.
 * Calls `on.open()`, `on.event(name, data)`, `on.lost(error, pauseMs)`. Returns `retry()`, which ends a pause. Gives up
 * with a token of one key, which may not read it.
 */
export function live(on) {
  let endPause = () => {};
  const pause = (ms) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      endPause = () => {
        clearTimeout(timer);
        resolve();
      };
    });

  const once = async (opened) => {
    const abort = new AbortController();
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), STREAM_TIMEOUT_MS);
    };
    heard();
    const sentToken = token.get();
    try {
      const response = await fetch('/v1/live', {
        headers: headers(sentToken, { Accept: 'text/event-stream' }),
        cache: 'no-store',
        signal: abort.signal,
      });
      if (!response.ok) throw await httpError(response, sentToken);
      opened();
      for await (const event of events(textChunks(response.body.getReader(), heard))) on.event(event.name, event.data);
      throw new Unavailable('the service ended the stream');
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  };

  (async () => {
    let failures = 0;
    for (;;) {
      let error;
      try {
        await once(() => {
          failures = 0;
          on.open();
        });
      } catch (caught) {
        error = caught instanceof HttpError ? caught : new Unavailable('the service is unreachable');
      }
      // Jitter: half of the pause is random, so that many pages do not reconnect at once.
      const longest = Math.min(MAX_BACKOFF_MS, MIN_BACKOFF_MS * 2 ** failures++);
      const ms = longest / 2 + (Math.random() * longest) / 2;
      on.lost(error, ms);
      if (error.ownKey) return;
      await pause(ms);
    }
  })();
  return { retry: () => endPause() };
}
