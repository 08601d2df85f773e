// What the page of an environment makes of a table: the conversation in order, and sums.
import type { EnvView, TableView, TurnPlayed } from '../api/client';

export const HUMAN = 'human';
/** Legal replies that are buttons; more of them are a list to search. */
export const MOST_BUTTONS = 24;

/** The players at first: the person takes the first role, the usual player the rest; without one the person takes them all. */
export function firstSeats(env: EnvView): Record<string, string> {
  return Object.fromEntries(env.roles.map((role, index) => [role, index === 0 ? HUMAN : env.partner || HUMAN]));
}

/** The roles of a record of payments that were paid something, with the one that acted first. */
export function payments(turn: TurnPlayed): [string, number][] {
  const rest = Object.entries(turn.rewards).filter(([role, amount]) => role !== turn.role && amount !== 0);
  return [[turn.role, turn.rewards[turn.role] ?? 0], ...rest];
}

/** What the person is to do, or how it ended, in words. */
export function standing(table: TableView): string {
  if (table.asked) return `Turn of ${table.asked.role}`;
  if (table.error) return 'The episode failed';
  return table.stop === 'max_turns' ? 'The episode is over: no turns are left' : 'The episode is over';
}

/** Legal replies that hold what was typed, those that begin with it first. */
export function matching(legal: readonly string[], typed: string): string[] {
  const wanted = typed.trim().toLowerCase();
  if (!wanted) return [...legal];
  const begins = legal.filter((reply) => reply.toLowerCase().startsWith(wanted));
  return [...begins, ...legal.filter((reply) => !begins.includes(reply) && reply.toLowerCase().includes(wanted))];
}
