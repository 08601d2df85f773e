// A list of a run with search, filters with counts, and an order; all of it stands in the address.
import { type ReactNode, useEffect, useMemo, useState } from 'react';
import { refine } from '../lib/route';
import { type Facet, type Listed, listed, type Sort } from '../lib/listing';
import { Choice, Panel, Scroll } from './small';

const TYPED_MS = 250;

function ListTools<Row>({
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
function Pages({ start, size, total }: { start: number; size: number; total: number }) {
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

/** A list with its tools and pages; `children` draws the rows of the page that is shown as a table. */
export function ListPanel<Row>({
  title,
  one,
  found,
  error,
  query,
  facets,
  sorts,
  text,
  hint,
  size,
  note,
  children,
}: {
  title: string;
  /** One row in words, e.g. `group`. */
  one: string;
  /** All rows; null until they are there. */
  found: readonly Row[] | null;
  error: string;
  query: URLSearchParams;
  facets: readonly Facet<Row>[];
  sorts: readonly Sort<Row>[];
  /** What the search looks in. */
  text: (row: Row) => string;
  hint: string;
  /** Rows of a page. */
  size: number;
  note?: ReactNode;
  children: (shown: readonly Row[]) => ReactNode;
}) {
  const start = Number(query.get('start') ?? 0) || 0;
  const key = query.toString();
  const { rows, counts } = useMemo(
    () =>
      listed(found ?? [], {
        search: query.get('q') ?? '',
        chosen: Object.fromEntries(facets.map((facet) => [facet.name, query.get(facet.name) ?? ''])),
        facets,
        sort: sorts.find((sort) => sort.name === (query.get('sort') ?? '')),
        text,
      }),
    [found, facets, sorts, text, key],
  );
  const shown = rows.slice(start, start + size);
  return (
    <Panel
      title={`${title} · ${found ? rows.length : '…'}${found && rows.length < found.length ? ` of ${found.length}` : ''}`}
      tools={<span className="small dim">j k move, Enter opens</span>}
    >
      <div className="stack">
        <ListTools query={query} facets={facets} sorts={sorts} counts={counts} hint={hint} />
        {note}
        {error && <p className="bad">{error}</p>}
        {found && !rows.length && (
          <p className="empty">{found.length ? `No ${one} is like this. Choose fewer filters.` : `No ${one} was recorded.`}</p>
        )}
        {shown.length > 0 && <Scroll label={title}>{children(shown)}</Scroll>}
        <Pages start={start} size={size} total={rows.length} />
      </div>
    </Panel>
  );
}
