// A value that the server has, asked for again when the question changes.
import { useEffect, useState } from 'react';
import { get } from '../api/client';

export interface Fetched<T> {
  value: T | null;
  error: string;
  loading: boolean;
}

type Query = Record<string, string | number | null | undefined | string[]>;

export function useFetched<T>(path: string | null, query: Query = {}): Fetched<T> {
  const [state, setState] = useState<Fetched<T> & { asked: string }>({ value: null, error: '', loading: true, asked: '' });
  const asked = path === null ? '' : `${path}?${JSON.stringify(query)}`;
  useEffect(() => {
    if (!asked || path === null) return;
    const control = new AbortController();
    get<T>(path, query, control.signal).then(
      (value) => setState({ value, error: '', loading: false, asked }),
      (error: unknown) => {
        if (!control.signal.aborted) setState({ value: null, error: error instanceof Error ? error.message : String(error), loading: false, asked });
      },
    );
    return () => control.abort();
    // The question as text stands for path and query.
    // eslint-disable-next-line
  }, [asked]);
  return state.asked === asked ? state : { value: state.value, error: '', loading: Boolean(asked) };
}
