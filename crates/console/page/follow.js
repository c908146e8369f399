// Follows sessions and their list without a gap: pages up to now, then a stream, and pages again after every loss.

import { Failure, get, stream } from "./api.js";
import { holdAny, pause, share } from "./shared.js";

const RETRY_MS = [300, 1000, 2000, 5000];
const PAGE = 1000;
const SESSIONS_MAX = 20000;
/** Sessions that the tabs of a browser stream at once; the others are read in pages as the list says that they changed. */
const SLOTS = ["slot 1", "slot 2", "slot 3"];
const WITHOUT_SLOT_MS = 5000;

/** Events after which a streamed text is whole, or will not be. */
const ENDS_TEXT = /^(assistant_message|partial_text|turn_)/;

const isFinal = ({ status }) => status >= 400 && status < 500 && status !== 429;

/** Does `work` until it succeeds or `signal` ends it; `onState` hears of losses. A refusal is thrown. */
async function persist(signal, onState, work) {
  for (let attempt = 0; !signal.aborted; attempt += 1) {
    try {
      return await work(() => (attempt = 0));
    } catch (failure) {
      if (signal.aborted || failure.name === "AbortError") return undefined;
      if (isFinal(failure)) throw failure;
      onState("waiting");
    }
    await pause(RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)], signal);
  }
  return undefined;
}

/** The sessions of the list, by id. */
export const sessions = new Map();
export const list = { isCurrent: false, state: "waiting" };
const listeners = new Set();
let fresh = null;
let cursor;

/** Calls `changed(ids)` after every change of the list. */
export function onList(signal, changed) {
  listeners.add(changed);
  signal.addEventListener("abort", () => listeners.delete(changed));
}
const notify = (ids) => listeners.forEach((changed) => changed(ids));

function setState(state) {
  if (list.state === state) return;
  list.state = state;
  notify([]);
}

function take(page) {
  // A list that begins again is shown when it is whole, unless nothing is shown yet.
  if (page.restarts) fresh = sessions.size > 0 ? new Map() : null;
  const into = fresh ?? sessions;
  for (const { session_id: id, session } of page.items) {
    if (!session) into.delete(id);
    else if (!(into.get(id)?.last_seq > session.last_seq) && (into.has(id) || into.size < SESSIONS_MAX)) into.set(id, session);
  }
  cursor = page.next_cursor;
  if (fresh && page.is_current) {
    sessions.clear();
    fresh.forEach((session, id) => sessions.set(id, session));
    fresh = null;
  }
  list.isCurrent ||= page.is_current;
  list.isCut = sessions.size >= SESSIONS_MAX;
  notify(page.items.map(({ session_id: id }) => id));
}

/** Forgets the list, as nobody is signed in any more. */
export function forgetList() {
  sessions.clear();
  Object.assign(list, { isCurrent: false, state: "waiting", failure: null });
  [fresh, cursor] = [null, undefined];
}

/** Keeps the list as it is on the server, until `signal`. A refusal is in `list.failure`. */
export function followList(signal) {
  const load = async (stop) => {
    for (let page = null; !page?.is_current && !stop.aborted; take(page)) {
      page = await get("session-changes", { cursor, limit: PAGE }, stop);
    }
    setState("live");
  };
  const hear = ({ page, state }) => (page ? take(page) : setState(state));
  const lead = (pass, stop) => {
    const tell = (state) => (setState(state), pass({ state }));
    return persist(stop, tell, async (succeeded) => {
      for await (const { kind, data } of stream("session-changes", { cursor }, stop, () => tell("live"))) {
        succeeded();
        if (kind === "failure") throw new Failure(data, 0);
        take(data);
        pass({ page: data });
      }
      throw new Failure({}, 0);
    });
  };
  return share("list", signal, { join: (stop) => persist(stop, setState, () => load(stop)), hear, lead }).catch((failure) => {
    list.failure = failure;
    notify([]);
  });
}

/** Waits until the list says that a session changed. */
function changeOf(session, signal) {
  const waiting = new AbortController();
  const end = () => waiting.abort();
  signal.addEventListener("abort", end);
  onList(waiting.signal, (ids) => ids.includes(session) && end());
  return pause(WITHOUT_SLOT_MS, waiting.signal).finally(() => (signal.removeEventListener("abort", end), end()));
}

/**
 * Follows a session from behind `since` until `signal`: `onEvent` gets every durable event once, and live ones as they
 * come; `onState` "live", "waiting" or a failure.
 */
export function follow(session, since, signal, onEvent, onState) {
  const path = `sessions/${session}/events`;
  let reading = null;
  let isBehind = false;
  let tellAll = () => {};
  let sendTexts = () => {};
  const accept = (event) => {
    if (event.seq !== undefined && event.seq <= since) return;
    since = event.seq ?? since;
    onEvent(event);
  };
  const read = async (stop) => {
    do {
      isBehind = false;
      for (let more = true; more && !stop.aborted; ) {
        const page = await get(path, { since_seq: since, limit: PAGE }, stop);
        page.items.forEach(accept);
        more = page.items.length > 0;
        since = Math.max(since, page.next_seq);
      }
    } while (isBehind && !stop.aborted);
  };
  const catchUp = (stop) => {
    isBehind = true;
    reading ??= persist(stop, onState, () => read(stop)).then(() => {
      onState("live");
      // What was streamed meanwhile, or before, is in no page: the tab that leads has it.
      tellAll({ asks: true });
    }).finally(() => (reading = null));
    return reading;
  };
  const refused = (failure) => onState(failure);
  const hear = ({ event, state, failure, asks }) => {
    if (asks) sendTexts();
    else if (failure) onState(new Failure(failure, failure.status));
    else if (state) onState(state);
    // While this tab reads, it has no place for a piece of a text; it asks for the whole afterwards.
    else if (event && event.seq === undefined) {
      if (!reading) accept(event);
    }
    // Events may have passed before this tab listened, or while it read.
    else if (!event || reading || event.seq > since + 1) catchUp(signal).catch(refused);
    else accept(event);
  };
  const lead = (pass, stop) => {
    const texts = new Map();
    const keep = (event) => {
      if (ENDS_TEXT.test(event.type)) texts.clear();
      if (!/^(text|reasoning)_delta$/.test(event.type)) return;
      const key = `${event.step} ${event.block} ${event.type}`;
      const text = event.offset === 0 ? "" : texts.get(key)?.text ?? "";
      texts.set(key, { ...event, offset: 0, text: text + event.text });
    };
    sendTexts = () => texts.forEach((event) => pass({ event }));
    const tell = (state) => (onState(state), pass({ state }));
    const work = (succeeded) => holdAny(SLOTS, async (hasSlot) => {
      if (!hasSlot) {
        await changeOf(session, stop);
        await read(stop);
        tell("live");
        return pass({});
      }
      for await (const { kind, data } of stream(path, { since_seq: since }, stop, () => tell("live"))) {
        succeeded();
        if (kind === "failure") throw new Failure(data, 0);
        accept(data);
        keep(data);
        pass({ event: data });
      }
      throw new Failure({}, 0);
    });
    const endlessly = async () => {
      while (!stop.aborted) await persist(stop, tell, work);
    };
    return endlessly().finally(() => (sendTexts = () => {})).catch((failure) => {
      pass({ failure: { code: failure.code, message: failure.message, status: failure.status } });
      throw failure;
    });
  };
  const join = (stop, pass) => {
    tellAll = pass;
    return catchUp(stop);
  };
  return share(session, signal, { join, hear, lead }).catch(refused);
}
