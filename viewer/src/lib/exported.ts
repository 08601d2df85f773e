// What a file that was exported holds: an episode, a run with the answers that its pages would ask the server for, or a report.
import type {
  ActionShare,
  ComparisonView,
  Config,
  EpisodeRow,
  EpisodeView,
  FindingsView,
  Frames,
  GroupRow,
  GroupView,
  OverviewView,
  RunInfo,
  RunView,
  Series,
} from '../api/client';

interface HeldRun {
  name: string;
  info: RunInfo;
  view: RunView;
  overview: OverviewView;
  metrics: Series[];
  drift: ActionShare[];
  /** All groups in short; the whole ones are some of them. */
  rows: GroupRow[];
  groups: Record<string, GroupView>;
  listed: EpisodeRow[];
  episodes: EpisodeView[];
  offices: { iteration: number; episode: string; part: Frames }[];
}
interface HeldReport {
  title: string;
  lead: string;
  version: string;
  /** The result in words, and what limits it. */
  verdict: FindingsView | null;
  notes: string[];
  pictures: {
    title: string;
    unit: string;
    rows: { name: string; mean: number | null; low: number | null; high: number | null; text: string }[];
  }[];
  tables: { title: string; columns: string[]; rows: string[][] }[];
  comparison: ComparisonView | null;
  metric: string;
  featured: string;
}
interface Held {
  config: Config;
  part?: Frames;
  run?: HeldRun | null;
  report?: HeldReport;
}

/** This page is a file on disk: there is no server. */
export const isExport = import.meta.env.VITE_REPLAY === 'true' || import.meta.env.VITE_REPLAY === true;

export const held: Held | null = isExport
  ? (JSON.parse(document.getElementById('onthejob-episode')?.textContent ?? 'null') as Held | null)
  : null;

/** Whether the file holds a group whole, with tokens; always true with a server. */
export const holdsGroup = (key: string): boolean => !isExport || Boolean(held?.run?.groups[key]);
export const holdsEpisode = (iteration: number, name: string): boolean =>
  !isExport || Boolean(held?.run?.episodes.some(({ row }) => row.iteration === iteration && row.name === name));

type Query = Record<string, string | number | null | undefined | string[]>;

/** What the server would have answered.
 * @throws Error where the file does not hold it. */
export function answer(path: string, query: Query): unknown {
  const run = held?.run;
  if (path === 'comparisons') return [];
  if (path === 'runs') return run ? [run.info] : [];
  const what = run && path.startsWith(`runs/${encodeURIComponent(run.name)}`) ? path.split('/')[2] : null;
  if (!run || what === null) throw new Error('This file does not hold that. Open it in the viewer: onthejob view.');
  const iteration = query.iteration === null || query.iteration === undefined ? null : Number(query.iteration);
  const ofIteration = <T extends { iteration: number }>(rows: readonly T[]): T[] =>
    rows.filter((row) => iteration === null || row.iteration === iteration);
  switch (what) {
    case undefined:
      return run.view;
    case 'overview':
      return run.overview;
    case 'metrics':
      return run.metrics;
    case 'drift':
      return run.drift;
    case 'groups': {
      const rows = ofIteration(run.rows).filter((row) => !query.actor || row.actor === query.actor);
      const start = Number(query.start ?? 0);
      return { total: rows.length, rows: rows.slice(start, start + Number(query.count ?? 100)) };
    }
    case 'episodes':
      return ofIteration(run.listed);
    case 'group':
      if (run.groups[String(query.key)]) return run.groups[String(query.key)];
      break;
    case 'episode': {
      const found = ofIteration(run.episodes.map((one) => ({ ...one, iteration: one.row.iteration })));
      const episode = found.find(({ row }) => row.name === query.episode);
      if (episode) return episode;
      break;
    }
    case 'office': {
      const office = run.offices.find((one) => one.iteration === iteration && one.episode === query.episode);
      if (office) return office.part;
      break;
    }
  }
  throw new Error('This file holds only some of the groups and episodes. The viewer shows all: onthejob view.');
}
