// The episodes of a run as rows: the task, how it ended, what was reached, and who played; any environment's figures.
import { useMemo } from 'react';
import { type EpisodeRow, type RunView } from '../api/client';
import { holdsEpisode } from '../lib/exported';
import { GROWING_MS, useFetched } from '../lib/fetching';
import { compact, dollars, percent } from '../lib/format';
import { columnsOf, EPISODE_FACETS, episodeSorts, episodeText, episodeTitle, endOf } from '../lib/listing';
import { link } from '../lib/route';
import { ListPanel } from '../ui/Listing';

const PAGE = 100;

export function Episodes({ name, query }: { name: string; run: RunView; query: URLSearchParams }) {
  const { value: found, error } = useFetched<EpisodeRow[]>(`runs/${encodeURIComponent(name)}/episodes`, {}, GROWING_MS);
  const columns = useMemo(() => columnsOf(found ?? []), [found]);
  const sorts = useMemo(() => episodeSorts(columns), [columns]);
  return (
    <ListPanel
      title="Episodes"
      one="episode"
      found={found}
      error={error}
      query={query}
      facets={EPISODE_FACETS}
      sorts={sorts}
      text={episodeText}
      hint="task, player"
      size={PAGE}
    >
      {(shown) => (
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
      )}
    </ListPanel>
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
