// What the race page decides from its worlds: what its form begins with, when its charts are stale, and when it is over.
import type { PlayerInfo, Seats, WorldName } from '../api/client';
import { whenIn, type When } from './address';
import { ROLES } from './roles';
import type { Query } from './route';
import type { World } from './world';

export const LANES: readonly WorldName[] = ['race-1', 'race-2', 'race-3'];
export const SEATED = ROLES.filter((role) => role.id !== 'customer').map((role) => role.id);
export const NOBODY = '';

export interface Form {
  teams: string[];
  scenario: string;
  seed: string;
  days: string;
}
export const FIRST_FORM: Form = { teams: ['heuristic', 'expert', NOBODY], scenario: 'baseline', seed: '1000', days: '30' };

export interface Suggestion {
  title: string;
  /** What it shows. */
  why: string;
  form: Form;
}

/** Races worth a first look, of the players that can be seated: a trained team among them where there is one. */
export function suggestions(players: readonly Pick<PlayerInfo, 'name' | 'kind' | 'ready'>[]): Suggestion[] {
  const ready = players.filter((player) => player.ready);
  const has = (name: string): boolean => ready.some((player) => player.name === name);
  const trained = ready.find(({ kind, name }) => kind === 'model' && !/^base(:|$)/.test(name))?.name;
  const all: (Suggestion | null)[] = [
    trained
      ? {
          title: `${trained}, heuristic and random`,
          why: 'What training bought: the trained team between rules of thumb and any legal action.',
          form: { teams: [trained, 'heuristic', 'random'], scenario: 'baseline', seed: '1000', days: '30' },
        }
      : null,
    {
      title: 'heuristic and expert',
      why: 'The same company under rules of thumb and under the best scripted player: how much play can change.',
      form: { teams: ['heuristic', 'expert', NOBODY], scenario: 'baseline', seed: '1000', days: '30' },
    },
    {
      title: 'random, heuristic and expert · churn',
      why: 'Customers leave early here. Who keeps them is ahead after ten days.',
      form: { teams: ['random', 'heuristic', 'expert'], scenario: 'churn', seed: '1001', days: '30' },
    },
    {
      title: 'do-nothing and random · five days',
      why: 'Is acting at random better than not acting at all? A short one.',
      form: { teams: ['do-nothing', 'random', NOBODY], scenario: 'baseline', seed: '1002', days: '5' },
    },
  ];
  return all.filter((one) => one !== null).filter(({ form }) => form.teams.filter(Boolean).every(has));
}

/** The company of a task of the office, by its name; null for tasks of other environments. */
export function companyOf(task: string): Omit<Form, 'teams'> | null {
  const found = /^office-(.+)-(\d+)-d(\d+)$/.exec(task);
  return found ? { scenario: found[1]!, seed: found[2]!, days: found[3]! } : null;
}

/** The races among a server's worlds, in the order of their lanes. */
export const racing = (worlds: readonly Seats[]): Seats[] =>
  LANES.flatMap((name) => worlds.filter(({ world }) => world === name));

/** The form that would start what runs: who sits in most seats of a lane is its team. */
export function formOf(running: readonly Seats[]): Form {
  const [first] = running;
  if (!first) return FIRST_FORM;
  const team = (seats: Seats | undefined): string => {
    const players = SEATED.map((role) => seats?.seats[role] ?? NOBODY);
    const count = (player: string): number => players.filter((one) => one === player).length;
    return [...players].sort((a, b) => count(b) - count(a))[0] ?? NOBODY;
  };
  return {
    teams: LANES.map((name) => team(running.find(({ world }) => world === name))),
    scenario: first.scenario,
    seed: String(first.seed),
    days: String(first.days),
  };
}

/** The race of an address, and its moment; null where it names none. Parameters that cannot be are the form's first ones. */
export function raceOf(query: URLSearchParams): { form: Form; when: When } | null {
  const named = (query.get('teams') ?? '').split(',').filter(Boolean).slice(0, LANES.length);
  if (named.length < 2) return null;
  const number = (name: 'seed' | 'days'): string =>
    /^\d{1,9}$/.test(query.get(name) ?? '') ? query.get(name)! : FIRST_FORM[name];
  const form: Form = {
    teams: LANES.map((_, place) => named[place] ?? NOBODY),
    scenario: query.get('scenario') || FIRST_FORM.scenario,
    seed: number('seed'),
    days: number('days'),
  };
  return { form, when: whenIn(query) };
}

export const queryOfRace = (form: Form, when: When): Query => ({
  teams: form.teams.filter(Boolean).join(','),
  scenario: form.scenario,
  seed: form.seed,
  days: form.days,
  ...when,
});

/** True when these worlds play this race; a lane that is left empty does not count. */
export const plays = (running: readonly Seats[], form: Form): boolean =>
  JSON.stringify(queryOfRace(formOf(running), {})) === JSON.stringify(queryOfRace(form, {}));

/** Changes when charts must be drawn anew: every twentieth frame while frames come in, and with the last one. */
export const chartKey = (lanes: readonly World[]): string =>
  lanes
    .map(({ seats, frames }) => {
      const whole = Boolean(seats.done) && frames.length >= seats.length;
      return `${seats.world} ${seats.epoch} ${whole ? `end ${frames.length}` : Math.floor(frames.length / 20)}`;
    })
    .join();

/** True when no lane of the `watched` ones can grow: each is here with all its frames, and is not continued. */
export const settled = (watched: readonly WorldName[], lanes: readonly World[]): boolean =>
  lanes.length === watched.length &&
  lanes.every(({ seats, frames }) => frames.length >= seats.length && (Boolean(seats.done) || !seats.playing));
