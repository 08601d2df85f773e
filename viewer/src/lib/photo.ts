// What stands under a picture of the office that is passed on: when it is, what happened, and what the company is worth.
import type { Frame } from '../api/client';
import { dollars } from './format';
import { NIGHT, titleOf } from './roles';
import { deed, moved } from './world';

export interface Caption {
  when: string;
  what: string;
  value: string;
}

const ENDS = new Set(['won', 'lost', 'churned']);

export function captionOf(frame: Frame): Caption {
  const value = dollars(frame.kpis.value);
  if (!frame.actor)
    return { when: `Day ${frame.day + 1}`, what: frame.turn < 0 ? 'The company starts' : 'The record begins', value };
  const ended = frame.moves.find(({ after }) => ENDS.has(after));
  const night = frame.actor === NIGHT;
  const what = ended ? moved(ended) : night ? 'The day is over' : `${titleOf(frame.actor)}: ${deed(frame)}`;
  return { when: `Day ${frame.day + 1}, ${night ? 'night' : frame.phase}`, what, value };
}
