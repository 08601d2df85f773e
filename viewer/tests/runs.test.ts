import { describe, expect, it } from 'vitest';
import type { RunInfo } from '../src/api/client';
import { baselineOf, found, listed, modelName, newestJudged, NO_BASELINE, refused, tagsOf } from '../src/lib/runs';

const run = (name: string, more: Partial<RunInfo> = {}): RunInfo => ({
  name,
  status: 'ended',
  roles: ['sales'],
  model: '/models/smollm2-135m',
  seconds: 60,
  outcome: null,
  notes: { tags: [], note: '', star: false },
  env: 'office',
  created_at: '2026-11-30T10:00:00',
  last_iteration: 3,
  groups: 1,
  episodes: 1,
  turns: 1,
  adapters: 1,
  size_bytes: 1,
  unverified: 0,
  damaged: 0,
  error: null,
  ...more,
});
const outcome = (word: string): RunInfo['outcome'] => ({ word, against: 'against start', text: '', metric: '', comparison: '' });

describe('the list of runs', () => {
  it('finds every word in name, environment, roles, model, status, outcome, tags and note', () => {
    const one = run('six', {
      env: 'guess.py',
      notes: { tags: ['Talk'], note: 'low rate', star: false },
      outcome: outcome('better'),
    });
    for (const search of ['', 'six', 'GUESS talk', 'sales smollm2', 'rate ended', 'better'])
      expect(found(one, search)).toBe(true);
    expect(found(one, 'six claw')).toBe(false);
  });
  it('is sorted by what is asked, starred runs first, and by name among equals', () => {
    const runs = [
      run('r10', { outcome: outcome('worse'), seconds: 5 }),
      run('r9', { outcome: outcome('better'), seconds: 900 }),
      run('r2', { outcome: outcome('no difference shown'), seconds: 50, last_iteration: null }),
      run('old', { notes: { tags: [], note: '', star: true } }),
    ];
    const names = (order: Parameters<typeof listed>[2], turned = false) =>
      listed(runs, '', order, turned).map(({ name }) => name);
    expect(names('name')).toEqual(['old', 'r2', 'r9', 'r10']);
    expect(names('name', true)).toEqual(['old', 'r10', 'r9', 'r2']);
    expect(names('outcome')).toEqual(['old', 'r9', 'r2', 'r10']);
    expect(names('seconds')).toEqual(['old', 'r9', 'r2', 'r10']);
    expect(names('iteration').at(-1)).toBe('r2');
  });
  it('has the baseline of its address, or the only starred run', () => {
    const starred = (name: string) => run(name, { notes: { tags: [], note: '', star: true } });
    const one = [run('a'), starred('b'), run('c')];
    expect(baselineOf(one, '')).toBe('b');
    expect(baselineOf(one, 'c')).toBe('c');
    expect(baselineOf(one, NO_BASELINE)).toBe('');
    expect(baselineOf(one, 'gone')).toBe('');
    expect(baselineOf([starred('a'), starred('b')], '')).toBe('');
  });
  it('names the run that began last among those with an outcome', () => {
    const at = (name: string, created_at: string, word = '') => run(name, { created_at, outcome: word ? outcome(word) : null });
    const runs = [at('a', '2026-11-30T10', 'worse'), at('b', '2026-11-30T12', 'better'), at('c', '2026-11-30T13')];
    expect(newestJudged(runs)?.name).toBe('b');
    expect(newestJudged([run('d')])).toBeUndefined();
  });
  it('says before it asks what would be refused', () => {
    expect(refused(['a', 'x'.repeat(40)], 'n'.repeat(4000))).toBe('');
    expect(refused(['x'.repeat(41)], '')).toMatch(/at most 40 characters.*41/);
    expect(refused(Array.from({ length: 21 }, String), '')).toMatch(/at most 20 tags/);
    expect(refused([], 'n'.repeat(4001))).toMatch(/4,000/);
  });
  it('reads tags and names of models', () => {
    expect(tagsOf(' a, b ,, a,c d ')).toEqual(['a', 'b', 'c d']);
    expect([modelName('/models/x'), modelName('Qwen/Qwen3-0.6B')]).toEqual(['x', 'Qwen/Qwen3-0.6B']);
  });
});
