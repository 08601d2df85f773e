// A value that the server has, asked for again when the question changes.
import { useEffect, useRef, useState } from 'react';
import { get, type RunView } from '../api/client';
import { meet } from './roles';

export interface Fetched<T> {
  value: T | null;
  error: string;
  loading: boolean;
}

type Query = Record<string, string | number | null | undefined | string[]>;

/** How often what may still grow is asked for again: a run that is being written. */
export const GROWING_MS = 15_000;

export function useFetched<T>(path: string | null, query: Query = {}, everyMs = 0): Fetched<T> {
  const [state, setState] = useState<Fetched<T> & { asked: string }>({ value: null, error: '', loading: true, asked: '' });
  const asked = path === null ? '' : `${path}?${JSON.stringify(query)}`;
  const [round, setRound] = useState(0);
  const pending = useRef(false);
  useEffect(() => {
    if (!everyMs) return;
    const timer = window.setInterval(() => {
      // An answer that takes longer than a round is waited for: asking anew would never get one.
      if (!document.hidden && !pending.current) setRound((before) => before + 1);
    }, everyMs);
    return () => window.clearInterval(timer);
  }, [everyMs]);
  useEffect(() => {
    if (!asked || path === null) return;
    const control = new AbortController();
    pending.current = true;
    get<T>(path, query, control.signal).then(
      (value) => {
        pending.current = false;
        setState((before) =>
          // What has not changed keeps its identity, so that nothing is drawn anew for it.
          before.asked === asked && !before.error && JSON.stringify(before.value) === JSON.stringify(value)
            ? before
            : { value, error: '', loading: false, asked },
        );
      },
      (error: unknown) => {
        if (control.signal.aborted) return;
        pending.current = false;
        setState({ value: null, error: error instanceof Error ? error.message : String(error), loading: false, asked });
      },
    );
    return () => control.abort();
    // The question as text stands for path and query.
  }, [asked, round]);
  return state.asked === asked ? state : { value: state.value, error: '', loading: Boolean(asked) };
}

/** Lets the roles of a run take their colours in one order on all of its pages; true once they have, or cannot be known. */
export function useRoles(run: string): boolean {
  const { value, error } = useFetched<RunView>(`runs/${encodeURIComponent(run)}`);
  if (value) meet(value.actors);
  return value !== null || error !== '';
}
