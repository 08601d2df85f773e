// The episodes of a run as rows: the task, how it ended, what was reached, and who played; any environment's figures.
import { useMemo } from 'react';
import { type EpisodeRow, type RunView } from '../api/client';
import { holdsEpisode } from '../lib/exported';
import { GROWING_MS, useFetched } from '../lib/fetching';
import { compact, dollars, percent } from '../lib/format';
import { columnsOf, EPISODE_FACETS, episodeSorts, episodeText, episodeTitle, endOf, listed } from '../lib/listing';
import { link } from '../lib/route';
import { ListTools, Pages } from '../ui/Listing';
import { Panel, Scroll } from '../ui/small';

const PAGE = 100;

export function Episodes({ name, query }: { name: string; run: RunView; query: URLSearchParams }) {
  const { value: found, error } = useFetched<EpisodeRow[]>(`runs/${encodeURIComponent(name)}/episodes`, {}, GROWING_MS);
  const columns = useMemo(() => columnsOf(found ?? []), [found]);
  const sorts = useMemo(() => episodeSorts(columns), [columns]);
  const start = Number(query.get('start') ?? 0) || 0;
  const key = query.toString();
  const { rows, counts } = useMemo(
    () =>
      listed(found ?? [], {
        search: query.get('q') ?? '',
        chosen: Object.fromEntries(EPISODE_FACETS.map((facet) => [facet.name, query.get(facet.name) ?? ''])),
        facets: EPISODE_FACETS,
        sort: sorts.find((sort) => sort.name === (query.get('sort') ?? '')),
        text: episodeText,
      }),
    [found, sorts, key],
  );
  const shown = rows.slice(start, start + PAGE);
  return (
    <Panel
      title={`Episodes · ${found ? rows.length : '…'}${found && rows.length < found.length ? ` of ${found.length}` : ''}`}
      tools={<span className="small dim">j k move, Enter opens</span>}
    >
      <div className="stack">
        <ListTools query={query} facets={EPISODE_FACETS} sorts={sorts} counts={counts} hint="task, player" />
        {error && <p className="bad">{error}</p>}
        {found && !rows.length && (
          <p className="empty">{found.length ? 'No episode is like this. Choose fewer filters.' : 'No episode was recorded.'}</p>
        )}
        {shown.length > 0 && (
          <Scroll label="Episodes">
            <table className="cards episodes">
              <thead>
                <tr>
                  <th scope="col">episode</th>
                  <th scope="col">ended</th>
                  <th scope="col" className="num">
                    turns
                  </th>
                  {columns.map((column) => (
                    <th scope="col" className="num" key={column}>
                      {column.replaceAll('_', ' ')}
                    </th>
                  ))}
                  <th scope="col">players</th>
                </tr>
              </thead>
              <tbody>
                {shown.map((row) => (
                  <tr key={`${row.iteration} ${row.name}`}>
                    <td>
                      {holdsEpisode(row.iteration, row.name) ? (
                        <a
                          data-row
                          title={row.name}
                          href={link(['runs', name, 'episode'], { iteration: row.iteration, episode: row.name })}
                        >
                          {episodeTitle(row.name)}
                        </a>
                      ) : (
                        <span className="dim" title="Not in this file; the viewer shows it">
                          {episodeTitle(row.name)}
                        </span>
                      )}
                      <span className="small dim move">
                        iteration {row.iteration} · {row.name.split('/')[0]}
                      </span>
                    </td>
                    <td>{row.error ? <span className="bad">{row.error}</span> : endOf(row)}</td>
                    <td className="num">{row.turns || '–'}</td>
                    {columns.map((column) => (
                      <td className="num" key={column}>
                        <Figure name={column} value={row.metrics[column]} />
                      </td>
                    ))}
                    <td className="small dim mono">{[...new Set(Object.values(row.policies))].join(', ')}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        )}
        <Pages start={start} size={PAGE} total={rows.length} />
      </div>
    </Panel>
  );
}

function Figure({ name, value }: { name: string; value: number | null | undefined }) {
  if (value === null || value === undefined) return '–';
  if (name === 'passed')
    return value >= 1 ? (
      <span className="good">✓ passed</span>
    ) : (
      <span className="bad">✗ {value > 0 ? percent(value) : 'not passed'}</span>
    );
  if (name === 'company_value') return dollars(value);
  return name.endsWith('_rate') ? percent(value) : compact(value);
}
