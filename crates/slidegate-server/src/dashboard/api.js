// The service's answers: one place for the token, for what can go wrong, and for the live stream.
//
// The stream is read with fetch, since an EventSource cannot send the token.

const TOKEN = 'slidegate-token';
/** An answer takes longer than this only if the service hangs. */
const PATIENCE_MS = 10_000;
/** The stream says something every second; after this much silence it is dead, whatever the socket says. */
const SILENCE_MS = 6000;
const FIRST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 30_000;
/** Longest event that is kept together. */
const MAX_EVENT = 1 << 20;

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/** No answer at all. */
export class Away extends Error {}

/** An answer that is no success; `detail` is the service's own sentence. */
export class Refusal extends Error {
  /** `held` is the token that was sent: another may be there by now. */
  constructor(status, detail, held) {
    super(detail);
    this.status = status;
    this.held = held;
  }
}

const headers = (held, more) => (held ? { ...more, Authorization: `Bearer ${held}` } : more);

async function refusal(response, held) {
  const fallback = `the service answered ${response.status} ${response.statusText}`.trim();
  try {
    const problem = await response.json();
    return new Refusal(response.status, typeof problem.detail === 'string' ? problem.detail : fallback, held);
  } catch {
    return new Refusal(response.status, fallback, held);
  }
}

/** Asks for JSON. Gives the answer, or throws `Away` or `Refusal`. */
export async function ask(path, { method = 'GET', body } = {}) {
  const held = token.get();
  const more = { Accept: 'application/json', ...(body !== undefined && { 'Content-Type': 'application/json' }) };
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: headers(held, more),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: 'no-store',
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
  } catch (error) {
    throw new Away(`the service does not answer: ${error.message}`);
  }
  if (!response.ok) throw await refusal(response, held);
  try {
    return await response.json();
  } catch (error) {
    throw new Away(`the answer broke off: ${error.message}`);
  }
}

/** The path of a key. A part that is `..` would be a step up to every browser, so its dots are escaped as keys escape. */
export const keyPath = (policy, key) =>
  `/v1/keys/${encodeURIComponent(policy)}/${encodeURIComponent(/^\.\.?$/.test(key) ? key.replaceAll('.', '%2E') : key)}`;

/** The events of a stream's text, which comes in any pieces. */
export async function* events(chunks) {
  let rest = '';
  for await (const chunk of chunks) {
    rest += chunk;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    if (rest.length > MAX_EVENT) throw new Away('an event of the stream is too long');
    for (const block of blocks) {
      let name = 'message';
      const data = [];
      for (const line of block.split(/\r?\n/)) {
        const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (field === 'event') name = value;
        if (field === 'data') data.push(value);
      }
      // A comment keeps the stream alive and says nothing else.
      yield { name, data: data.length ? JSON.parse(data.join('\n')) : null };
    }
  }
}

/** What a reader of bytes gives, as text; a silence ends it. */
async function* pieces(reader, heard) {
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    yield decoder.decode(value, { stream: true });
  }
}

/**
 * The stream `/v1/live`, for ever: after a failure it is opened again, with growing pauses.
 * `on.open()`, `on.event(name, data)`, `on.lost(error, pauseMs)`. Gives `retry()`, which ends a pause.
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
    let silence;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    heard();
    const held = token.get();
    try {
      const response = await fetch('/v1/live', {
        headers: headers(held, { Accept: 'text/event-stream' }),
        cache: 'no-store',
        signal: abort.signal,
      });
      if (!response.ok) throw await refusal(response, held);
      opened();
      for await (const event of events(pieces(response.body.getReader(), heard))) on.event(event.name, event.data);
      throw new Away('the service ended the stream');
    } finally {
      clearTimeout(silence);
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
        error = caught instanceof Refusal ? caught : new Away('the service does not answer');
      }
      // Half the pause is by chance, so that the pages of a whole team do not come back at once.
      const longest = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures++);
      const ms = longest / 2 + (Math.random() * longest) / 2;
      on.lost(error, ms);
      await pause(ms);
    }
  })();
  return { retry: () => endPause() };
}
