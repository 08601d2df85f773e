import { describe, expect, it } from 'vitest';
import type { Seats, WorldName } from '../src/api/client';
import { chartKey, FIRST_FORM, formOf, racing, SEATED, settled, suggestions } from '../src/lib/race';
import { extend, type World } from '../src/lib/world';
import { frame } from './frames';

const seatsOf = (world: WorldName, patch: Partial<Seats> = {}): Seats =>
  ({ world, epoch: 0, length: 0, first: 0, turns: 28, seats: {}, playing: false, done: '', ...patch }) as Seats;

/** A lane of which `count` frames have arrived. */
const lane = (seats: Seats, count: number): World =>
  extend(null, {
    seats,
    start: 0,
    base: { accounts: [], features: [], floor: null },
    frames: Array.from({ length: count }, (_, seq) => frame(seq)),
  })!;

describe('charts of a race', () => {
  it('are drawn anew with every chunk of a race that is over, and with its last frame', () => {
    const over = seatsOf('race-1', { done: 'horizon', length: 451 });
    const keys = [60, 120, 450, 451].map((count) => chartKey([lane(over, count)]));
    expect(new Set(keys).size).toBe(keys.length);
  });
  it('are drawn anew every twentieth frame while it is played', () => {
    const played = (count: number) => chartKey([lane(seatsOf('race-1', { playing: true, length: count }), count)]);
    expect(played(41)).toBe(played(59));
    expect(played(59)).not.toBe(played(60));
  });
});

describe('a race is over', () => {
  const done = seatsOf('race-1', { done: 'horizon', length: 31 });
  it('not before its worlds have arrived', () => expect(settled(['race-1', 'race-2'], [])).toBe(false));
  it('not while one of them has frames to come', () => {
    const playing = seatsOf('race-2', { playing: true, length: 5 });
    expect(settled(['race-1', 'race-2'], [lane(done, 31), lane(playing, 5)])).toBe(false);
    expect(settled(['race-1'], [lane(done, 30)])).toBe(false);
  });
  it('when all are done, or one was stopped', () => {
    const stopped = seatsOf('race-2', { error: 'no such model', length: 5 });
    expect(settled(['race-1', 'race-2'], [lane(done, 31), lane(stopped, 5)])).toBe(true);
  });
});

describe('the form', () => {
  const team = (player: string, odd?: string) =>
    Object.fromEntries(SEATED.map((role) => [role, odd && role === 'dev' ? odd : player]));
  it('begins with the race that runs', () => {
    const running = racing([
      seatsOf('live', { scenario: 'baseline', seed: 1, days: 30 }),
      seatsOf('race-2', { scenario: 'churn', seed: 1007, days: 12, seats: team('expert', 'random') }),
      seatsOf('race-1', { scenario: 'churn', seed: 1007, days: 12, seats: team('heuristic') }),
    ]);
    expect(running.map(({ world }) => world)).toEqual(['race-1', 'race-2']);
    expect(formOf(running)).toEqual({ teams: ['heuristic', 'expert', ''], scenario: 'churn', seed: '1007', days: '12' });
  });
  it('begins with two teams where none runs', () => expect(formOf([])).toEqual(FIRST_FORM));
});

describe('suggested races', () => {
  const scripted = ['expert', 'heuristic', 'random', 'do-nothing'].map((name) => ({
    name,
    kind: 'scripted' as const,
    ready: true,
  }));
  const teams = (players: Parameters<typeof suggestions>[0]) => suggestions(players).map(({ form }) => form.teams);
  it('are of players who can be seated', () => {
    expect(teams(scripted)).toHaveLength(3);
    expect(teams(scripted.slice(0, 2))).toEqual([['heuristic', 'expert', '']]);
    expect(teams([])).toEqual([]);
  });
  it('begin with a trained team, which is no base and not one that lacks something', () => {
    const model = (name: string, ready = true) => ({ name, kind: 'model' as const, ready });
    expect(teams([...scripted, model('base'), model('base:x'), model('gone', false), model('mine')])[0]).toEqual([
      'mine',
      'heuristic',
      'random',
    ]);
  });
});
