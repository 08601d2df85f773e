import { describe, expect, it } from 'vitest';
import type { EpisodeRow, GroupRow } from '../src/api/client';
import { words } from '../src/lib/format';
import {
  bestOf,
  columnsOf,
  EPISODE_FACETS,
  episodeSorts,
  episodeText,
  episodeTitle,
  GROUP_FACETS,
  GROUP_SORTS,
  groupText,
  invalidOf,
  listed,
  playedIn,
  regretOf,
  valueOf,
  whereOf,
} from '../src/lib/listing';

const group = (patch: Partial<GroupRow> = {}): GroupRow => ({
  key: 'it0001/s00/office-churn-1-d30/t095/sales',
  iteration: 1,
  actor: 'sales',
  size: 4,
  distinct: 3,
  invalid: 1,
  day: 7,
  turn: 95,
  origin: 'library',
  spread: 0.5,
  best: 'RUN_DEMO Dune',
  trained: true,
  episode: 's00/office-churn-1-d30',
  chosen: 1,
  actions: ['RUN_DEMO Dune', 'QUALIFY_LEAD Echo', 'invalid', 'QUALIFY_LEAD Echo'],
  returns: [2, 0.5, 9, 0.5],
  valid: [true, true, false, true],
  ...patch,
});
const rows = [
  group(),
  group({
    key: 'it0002/s00/a/t003/dev',
    iteration: 2,
    actor: 'dev',
    day: 1,
    turn: 3,
    invalid: 0,
    trained: false,
    chosen: null,
    spread: 0.1,
  }),
  group({
    key: 'it0010/s00/a/t004/dev',
    iteration: 10,
    actor: 'dev',
    returns: [null, 1, 1, 3],
    valid: [true, true, true, true],
    invalid: 0,
    chosen: 3,
    spread: 0.9,
  }),
];
const list = (options: { search?: string; chosen?: Record<string, string>; sort?: string } = {}) =>
  listed(rows, {
    search: options.search ?? '',
    chosen: options.chosen ?? {},
    facets: GROUP_FACETS,
    sort: GROUP_SORTS.find(({ name }) => name === (options.sort ?? 'order')),
    text: groupText,
  });

describe('a group in a list', () => {
  it('is measured by its legal replies', () => {
    expect(bestOf(rows[0]!)).toBe(0);
    expect(valueOf(rows[0]!)).toBe(1);
    // The invalid reply's 9 is no value that could have been had.
    expect(regretOf(rows[0]!)).toBe(1.5);
    expect(invalidOf(rows[0]!)).toBe(0.25);
    expect(playedIn(rows[0]!)).toBe('QUALIFY_LEAD Echo');
    expect(regretOf(rows[1]!)).toBeNull();
    expect(regretOf(rows[2]!)).toBe(0);
    expect(bestOf(group({ valid: [false, false, false, false] }))).toBeNull();
  });
  it('says where it was decided, in turns counted from 1', () => {
    expect(whereOf(rows[0]!)).toBe('Sales, day 7, turn 96');
    expect(whereOf(group({ actor: 'agent', day: null, turn: null, key: 'it0001/synth-author-04/agent' }))).toBe(
      'agent, synth-author-04',
    );
  });
});

describe('a list', () => {
  it('finds every word, whatever its case and order', () => {
    expect(list({ search: 'dune SALES' }).rows).toEqual([rows[0]]);
    expect(list({ search: 'run demo' }).rows).toHaveLength(3);
    expect(list({ search: 'sales nothing' }).rows).toEqual([]);
  });
  it('counts what each filter would leave, the others given', () => {
    const found = list({ chosen: { actor: 'dev' } });
    expect(found.rows.map(({ iteration }) => iteration)).toEqual([2, 10]);
    expect(found.counts.actor).toEqual([
      ['dev', 2],
      ['sales', 1],
    ]);
    expect(found.counts.iteration).toEqual([
      ['1', 0],
      ['2', 1],
      ['10', 1],
    ]);
    expect(found.counts.signal).toEqual([
      ['no signal', 1],
      ['trained on', 1],
    ]);
    expect(list({ chosen: { actor: 'dev' }, search: 't004' }).counts.actor).toEqual([
      ['dev', 1],
      ['sales', 0],
    ]);
  });
  it('is sorted with what has no value last, and leaves the rows it was given alone', () => {
    const order = (sort: string) => list({ sort }).rows.map(({ iteration }) => iteration);
    expect(order('spread')).toEqual([10, 1, 2]);
    expect(order('regret')).toEqual([1, 10, 2]);
    expect(order('')).toEqual([10, 2, 1]);
    expect(order('order')).toEqual([1, 2, 10]);
    expect(rows.map(({ iteration }) => iteration)).toEqual([1, 2, 10]);
  });
});

const episode = (metrics: EpisodeRow['metrics'], patch: Partial<EpisodeRow> = {}): EpisodeRow => ({
  iteration: 1,
  name: 's00/x',
  policies: {},
  metrics,
  stop: 'done',
  error: null,
  turns: 3,
  ...patch,
});

describe('episodes', () => {
  it('have the columns of their environment', () => {
    const claw = episode({
      'passed/file': 4,
      assertion_rate: 1,
      clean_stop: 1,
      commands: 2,
      passed: 1,
      reward: 0.95,
      timeouts: 0,
    });
    expect(columnsOf([claw])).toEqual(['passed', 'reward', 'assertion_rate', 'commands', 'timeouts']);
    expect(columnsOf([episode({ company_value: 1, team_reward: 2, nps: 3, invalid: 0, reward_dev: 1 })])).toEqual([
      'company_value',
      'team_reward',
      'invalid',
    ]);
    expect(columnsOf([episode({ 'reward/buyer': 1, 'reward/seller': 2, price: 3, turns: 9 })])).toEqual([
      'reward/buyer',
      'reward/seller',
      'price',
    ]);
    expect(columnsOf([])).toEqual([]);
  });
  it('are named by their company', () => {
    expect(episodeTitle('s01/office-competitor-100001-d30')).toBe('competitor · seed 100001 · 30 days');
    expect(episodeTitle('s01/synth-author-04')).toBe('synth-author-04');
  });
  it('are filtered by how they ended and sorted by a metric', () => {
    const all = [episode({ reward: 1 }), episode({ reward: 3 }, { error: 'no memory' }), episode({}, { stop: 'max_turns' })];
    const options = { search: '', facets: EPISODE_FACETS, text: episodeText };
    const sorted = listed(all, { ...options, chosen: {}, sort: episodeSorts(['reward']).find(({ name }) => name === 'reward') });
    expect(sorted.rows.map(({ metrics }) => metrics.reward)).toEqual([3, 1, undefined]);
    expect(sorted.counts.end).toEqual([
      ['done', 1],
      ['failed', 1],
      ['turn limit', 1],
    ]);
    expect(listed(all, { ...options, chosen: { end: 'failed' }, sort: undefined }).rows).toEqual([all[1]]);
  });
});

describe('actions in words', () => {
  it('keep their own capitals', () => {
    expect(['SET_OKRS', 'REVIEW_PR Cache', 'A_B_TEST', 'RUN_DEMO'].map(words)).toEqual([
      'Set OKRs',
      'Review PR Cache',
      'A/B test',
      'Run demo',
    ]);
  });
});
