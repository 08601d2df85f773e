import { describe, expect, it } from 'vitest';
import { momentOf, queryOf, seqOf, whenOf } from '../src/lib/address';
import { FIRST_FORM, plays, queryOfRace, raceOf, SEATED } from '../src/lib/race';
import { link, parse } from '../src/lib/route';
import type { Seats, WorldName } from '../src/api/client';
import { frame } from './frames';

const back = (query: ReturnType<typeof queryOf>) => momentOf(parse(link(['office'], query)).query);

describe('a moment in the address', () => {
  it('is the same when it is read again', () => {
    const recorded = { run: 'a run/ü', iteration: 3, episode: 's00/office-churn-100001-d30' };
    for (const when of [{ turn: 0 }, { turn: 96 }, { night: 7 }, {}])
      for (const [role, jump] of [
        ['hr', 'penalty'],
        [null, null],
        ['sales', 'deal'],
      ] as const)
        for (const one of [recorded, null]) {
          const moment = { recorded: one, when, role, jump };
          // The first kind of jump is not written.
          const read = back(queryOf(moment));
          if (read) expect({ ...read, jump: read.jump ?? 'deal' }).toEqual({ ...moment, jump: jump ?? 'deal' });
          else expect(queryOf(moment)).toEqual(expect.objectContaining({ run: undefined, turn: undefined, role: null }));
        }
  });
  it('leaves everything as it is where the address has no parameters', () => {
    expect(momentOf(new URLSearchParams(''))).toBeNull();
  });
  it('takes nothing that cannot be', () => {
    const read = momentOf(new URLSearchParams('run=r&it=x&ep=e&turn=-3&role=boss&jump=__proto__&night='));
    expect(read).toEqual({ recorded: null, when: {}, role: null, jump: null });
  });
  it('finds the frame it was written for, in worlds that begin on any turn', () => {
    for (const first of [0, 1, 13, 14, 96]) {
      // The beginning, then turns, and the night after each fourteenth turn of the company.
      const frames = [frame(0, { actor: '', turn: first - 1 })];
      for (let turn = first; turn < first + 60; turn++) {
        const day = Math.floor(turn / 14);
        frames.push(frame(frames.length, { turn, day }));
        if (turn % 14 === 13) frames.push(frame(frames.length, { turn, day, actor: 'night' }));
      }
      for (const one of frames) expect(seqOf(whenOf(one), { first })).toBe(one.seq);
    }
  });
});

describe('a race in the address', () => {
  const form = { ...FIRST_FORM, teams: ['heuristic', 'expert', ''], scenario: 'churn', seed: '1007', days: '5' };
  const lane = (world: WorldName, player: string, patch: Partial<Seats> = {}): Seats =>
    ({
      world,
      scenario: 'churn',
      seed: 1007,
      days: 5,
      seats: Object.fromEntries(SEATED.map((role) => [role, player])),
      ...patch,
    }) as Seats;

  it('is the same when it is read again', () => {
    const query = parse(link(['race'], queryOfRace(form, { turn: 12 }))).query;
    expect(raceOf(query)).toEqual({ form, when: { turn: 12 } });
    expect(raceOf(new URLSearchParams('teams=one'))).toBeNull();
    expect(raceOf(new URLSearchParams('teams=a,b&seed=1e9&days=x'))?.form).toMatchObject({ seed: '1000', days: '30' });
  });
  it('is known among the worlds that are played', () => {
    const running = [lane('race-1', 'heuristic'), lane('race-2', 'expert')];
    expect(plays(running, form)).toBe(true);
    expect(plays([running[0]!, lane('race-2', 'random')], form)).toBe(false);
    expect(
      plays(
        running.map((one) => ({ ...one, seed: 1 })),
        form,
      ),
    ).toBe(false);
    expect(plays([], form)).toBe(false);
  });
});
