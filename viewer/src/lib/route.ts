// Where we are, as the address says it: #/runs/six4/group?key=... A hash works below any path and from a file.
import { useSyncExternalStore } from 'react';

export interface Route {
  path: string[];
  query: URLSearchParams;
}
export type Query = Record<string, string | number | null | undefined>;

/** Event of an address that a page refined without a navigation; the browser has one for all others. */
const REPLACED = 'onthejob-address';

const listen = (changed: () => void): (() => void) => {
  for (const name of ['hashchange', REPLACED]) window.addEventListener(name, changed);
  return () => {
    for (const name of ['hashchange', REPLACED]) window.removeEventListener(name, changed);
  };
};

export function parse(hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?');
  return { path: path.split('/').filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

export const useRoute = (): Route => parse(useSyncExternalStore(listen, () => location.hash));

export function link(path: readonly string[], query: Query = {}): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    if (value !== null && value !== undefined && value !== '') parameters.set(name, String(value));
  const text = parameters.toString();
  return `#/${path.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}

export const go = (path: readonly string[], query: Query = {}): void => {
  location.hash = link(path, query);
};

/** Set the address to what is shown already; `anew` makes it a step of its own for the back button. */
export function settle(path: readonly string[], query: Query, anew = false): void {
  const to = link(path, query);
  if (to === location.hash) return;
  if (anew) history.pushState(null, '', to);
  else history.replaceState(null, '', to);
}

/** Change some parameters of the present address, for choices within a page; no step of their own for the back button. */
export function refine(change: Query): void {
  const { path, query } = parse(location.hash);
  settle(path, { ...Object.fromEntries(query), ...change });
  window.dispatchEvent(new Event(REPLACED));
}
