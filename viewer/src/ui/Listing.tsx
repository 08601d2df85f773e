// The tools above a list: search, filters with counts, and the order; all of it stands in the address.
import { useEffect, useState } from 'react';
import { refine } from '../lib/route';
import type { Facet, Listed, Sort } from '../lib/listing';
import { Choice } from './small';

const TYPED_MS = 250;

export function ListTools<Row>({
  query,
  facets,
  sorts,
  counts,
  hint,
}: {
  query: URLSearchParams;
  facets: readonly Facet<Row>[];
  sorts: readonly Sort<Row>[];
  counts: Listed<Row>['counts'];
  hint: string;
}) {
  const [typed, setTyped] = useState(query.get('q') ?? '');
  const held = query.get('q') ?? '';
  useEffect(() => setTyped(held), [held]);
  useEffect(() => {
    if (typed === held) return;
    const timer = window.setTimeout(() => refine({ q: typed, start: null }), TYPED_MS);
    return () => window.clearTimeout(timer);
  }, [typed, held]);
  return (
    <div className="row listtools">
      <label className="row small">
        <span className="sr">Search</span>
        <input
          type="search"
          value={typed}
          placeholder={hint}
          onChange={(event) => setTyped(event.target.value)}
          aria-label="Search"
        />
      </label>
      {facets.map(({ name, label, shown }) => {
        const values = counts[name] ?? [];
        const chosen = query.get(name) ?? '';
        if (values.length < 2 && !chosen) return null;
        const all = values.reduce((sum, [, count]) => sum + count, 0);
        const known = values.some(([value]) => value === chosen);
        return (
          <Choice
            key={name}
            label={label}
            value={chosen}
            options={[
              ['', `all · ${all}`] as const,
              ...values.map(([value, count]) => [value, `${shown ? shown(value) : value} · ${count}`] as const),
              ...(chosen && !known ? [[chosen, `${chosen} · 0`] as const] : []),
            ]}
            onChange={(value) => refine({ [name]: value, start: null })}
          />
        );
      })}
      <Choice
        label="order"
        value={query.get('sort') ?? ''}
        options={sorts.map(({ name, label }) => [name, label] as const)}
        onChange={(value) => refine({ sort: value, start: null })}
      />
    </div>
  );
}

/** Which part of a long list is shown. */
export function Pages({ start, size, total }: { start: number; size: number; total: number }) {
  if (total <= size) return null;
  return (
    <p className="row" style={{ marginTop: 8 }}>
      <button type="button" disabled={start === 0} onClick={() => refine({ start: Math.max(0, start - size) || null })}>
        ‹ before
      </button>
      <span className="dim small">
        {start + 1}–{Math.min(start + size, total)} of {total}
      </span>
      <button type="button" disabled={start + size >= total} onClick={() => refine({ start: start + size })}>
        after ›
      </button>
    </p>
  );
}
