// Where we are, as the address says it: #/runs/six4/group?key=... A hash works below any path and from a file.
import { useSyncExternalStore } from 'react';

export interface Route {
  path: string[];
  query: URLSearchParams;
}

const listen = (changed: () => void): (() => void) => {
  window.addEventListener('hashchange', changed);
  return () => window.removeEventListener('hashchange', changed);
};

export function parse(hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?');
  return { path: path.split('/').filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

export const useRoute = (): Route => parse(useSyncExternalStore(listen, () => location.hash));

export function link(path: readonly string[], query: Record<string, string | number | null | undefined> = {}): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    if (value !== null && value !== undefined && value !== '') parameters.set(name, String(value));
  const text = parameters.toString();
  return `#/${path.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}

export const go = (path: readonly string[], query: Record<string, string | number | null | undefined> = {}): void => {
  location.hash = link(path, query);
};
