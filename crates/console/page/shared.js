// One stream for all tabs of a browser: the tab that holds the lock reads it and passes it on. A browser opens only six
// connections to a server, so eight tabs with a stream each would wait for each other for ever.

const scope = new URL(".", document.baseURI).href;
const channel = new BroadcastChannel(scope);
const hearers = new Map();

channel.onmessage = ({ data: { name, message } }) => hearers.get(name)?.forEach((hear) => hear(message));

const seen = (signal) =>
  new Promise((resolve) => {
    if (document.visibilityState === "visible" || signal.aborted) return resolve();
    const end = () => {
      document.removeEventListener("visibilitychange", end);
      signal.removeEventListener("abort", end);
      resolve();
    };
    document.addEventListener("visibilitychange", end);
    signal.addEventListener("abort", end);
    return undefined;
  });

/** A pause that `signal` ends. */
export const pause = (ms, signal) =>
  new Promise((resolve) => {
    const end = () => (clearTimeout(timer), signal.removeEventListener("abort", end), resolve());
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
    if (signal.aborted) end();
  });

/** Holds one of `names` while `work` runs; without one, `work(false)` runs. */
export async function holdAny(names, work) {
  if (!navigator.locks) return work(true);
  for (const name of names) {
    const done = await navigator.locks.request(`${scope} ${name}`, { ifAvailable: true }, async (lock) =>
      lock && { value: await work(true) });
    if (done) return done.value;
  }
  return work(false);
}

/**
 * Takes part in what the tabs share under a name, until `signal`. Whenever the tab comes into sight, `join(signal, pass)`
 * reads what it lacks; in one tab `lead(pass, signal)` reads on and passes messages to the others, where `hear` gets them. A tab that
 * nobody sees leads nothing.
 */
export async function share(name, signal, { join, hear, lead }) {
  const all = hearers.get(name) ?? new Set();
  hearers.set(name, all.add(hear));
  signal.addEventListener("abort", () => all.delete(hear));
  const pass = (message) => channel.postMessage({ name, message });
  while (!signal.aborted) {
    await seen(signal);
    const hidden = new AbortController();
    const stop = () => (signal.aborted || document.visibilityState !== "visible") && hidden.abort();
    document.addEventListener("visibilitychange", stop);
    signal.addEventListener("abort", stop);
    try {
      stop();
      await join(hidden.signal, pass);
      if (hidden.signal.aborted) continue;
      const work = () => lead(pass, hidden.signal);
      // A page that came without encryption from another machine has no locks: then each tab reads for itself.
      await (navigator.locks ? navigator.locks.request(`${scope} ${name}`, { signal: hidden.signal }, work) : work());
    } catch (failure) {
      if (failure.name !== "AbortError") throw failure;
    } finally {
      document.removeEventListener("visibilitychange", stop);
      signal.removeEventListener("abort", stop);
    }
  }
}
