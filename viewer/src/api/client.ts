// Typed calls to the server. The types come from its OpenAPI document: `npm run types`.
import { answer as heldAnswer, isExport } from '../lib/exported';
import type { components } from './schema';

type Schemas = components['schemas'];
export type Account = Schemas['AccountView'];
export type AgainstView = Schemas['AgainstView'];
export type Base = Schemas['Base'];
export type Branches = Schemas['Branches'];
export type BranchTrace = Schemas['BranchTrace'];
export type BranchTerms = Schemas['BranchTerms'];
export type ChangedFiles = Schemas['ChangedFiles'];
export type ComparedTask = Schemas['ComparedTask'];
export type ComparisonInfo = Schemas['ComparisonInfo'];
export type ComparisonView = Schemas['ComparisonView'];
export type Config = Schemas['Config'];
export type EnvView = Schemas['EnvView'];
export type EpisodeRow = Schemas['EpisodeRow'];
export type EpisodeTurn = Schemas['EpisodeTurn'];
export type EpisodeView = Schemas['EpisodeView'];
export type ActionShare = Schemas['ActionShare'];
export type Feature = Schemas['Feature'];
export type FileDiff = Schemas['FileDiff'];
export type FindingsView = Schemas['FindingsView'];
export type Floor = Schemas['Floor'];
export type Frame = Schemas['Frame'];
export type Frames = Schemas['Frames'];
export type GroupPage = Schemas['GroupPage'];
export type GroupRow = Schemas['GroupRow'];
export type GroupView = Schemas['GroupView'];
export type Kpis = Schemas['Kpis'];
export type Legal = Schemas['Legal'];
export type Move = Schemas['AccountMove'];
export type NotesView = Schemas['NotesView'];
export type OutcomeView = Schemas['OutcomeView'];
export type OverviewView = Schemas['OverviewView'];
export type MemoryView = Schemas['MemoryView'];
export type Mode = Schemas['Mode'];
export type PlayerInfo = Schemas['PlayerInfo'];
export type PromptView = Schemas['PromptView'];
export type Reason = Schemas['ReasonView'];
export type ReplyView = Schemas['ReplyView'];
export type RunInfo = Schemas['RunRow'];
export type RunView = Schemas['RunView'];
export type ScenarioInfo = Schemas['ScenarioInfo'];
export type Seats = Schemas['SeatsView'];
export type Series = Schemas['MetricSeries'];
export type Suggestions = Schemas['Suggestions'];
export type TableView = Schemas['TableView'];
export type TaskPage = Schemas['TaskPage'];
export type Traces = Schemas['Traces'];
export type TraceTurn = Schemas['TraceTurn'];
export type TurnPlayed = Schemas['TurnPlayed'];
export type WorldName = NonNullable<Schemas['Reset']['world']>;
export type SeatName = NonNullable<Schemas['Reset']['human']> extends infer T ? Exclude<T, ''> : never;

const TOKEN_KEY = 'onthejob-token';

/** The token stands in the address that `onthejob view` prints; it is kept for this tab and taken out of the address. */
export function takeToken(): void {
  const found = /[#&]token=([\w-]+)/.exec(location.hash);
  if (!found?.[1]) return;
  sessionStorage.setItem(TOKEN_KEY, found[1]);
  const rest = location.hash.replace(found[0], '').replace(/^#?&?/, '');
  history.replaceState(null, '', `${location.pathname}${location.search}${rest ? `#${rest}` : ''}`);
}

const token = (): string => {
  try {
    return sessionStorage.getItem(TOKEN_KEY) ?? '';
  } catch {
    // A file that was opened from disk may have no storage.
    return '';
  }
};
export const hasToken = (): boolean => Boolean(token());

/** What the server said when it refused. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

async function read<T>(response: Response): Promise<T> {
  if (response.ok) return (await response.json()) as T;
  let detail = response.statusText;
  try {
    const body: unknown = await response.json();
    if (body && typeof body === 'object' && 'detail' in body)
      detail = typeof body.detail === 'string' ? body.detail : JSON.stringify(body.detail);
  } catch {
    // The status line has to do.
  }
  throw new Refused(response.status, detail);
}

type Query = Record<string, string | number | null | undefined | string[]>;

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  if (isExport) return heldAnswer(path, query) as T;
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (Array.isArray(value)) for (const one of value) parameters.append(name, one);
    else if (value !== undefined && value !== null) parameters.set(name, String(value));
  }
  const text = parameters.toString();
  return read<T>(await fetch(`./api/${path}${text ? `?${text}` : ''}`, signal ? { signal } : {}));
}

export const post = <K extends keyof Bodies, T>(path: K, body: Bodies[K]): Promise<T> => change<T>(path, body);

export const openTable = (body: Partial<Schemas['OpenTable']>): Promise<TableView> => change('tables', body);
export const replyAt = (table: string, body: Schemas['TableReply']): Promise<TableView> => change(`tables/${table}/reply`, body);

export const writeNotes = (run: string, body: Schemas['NotesAsk']): Promise<NotesView> =>
  change(`runs/${encodeURIComponent(run)}/notes`, body);

async function change<T>(path: string, body: unknown): Promise<T> {
  const headers = { 'content-type': 'application/json', 'x-onthejob-token': token() };
  return read<T>(await fetch(`./api/${path}`, { method: 'POST', headers, body: JSON.stringify(body) }));
}

interface Bodies {
  reset: Partial<Schemas['Reset']>;
  step: Partial<Schemas['StepAsk']>;
  undo: Partial<Schemas['UndoAsk']>;
  reconfigure: Partial<Schemas['Reconfigure']>;
  branches: Partial<Schemas['BranchAsk']> & { replies: string[] };
  suggest: Partial<Schemas['SuggestAsk']>;
}
