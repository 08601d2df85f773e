// Who can be seated: what a model lacks, and which names the server understands.
import type { PlayerInfo } from '../api/client';

/** What keeps a model from being seated, in words; empty when nothing is known to. */
export const lacking = ({ ready, needs }: Pick<PlayerInfo, 'ready' | 'needs'>): string =>
  ready
    ? ''
    : needs
        .filter(({ there }) => there === false)
        .map(({ what }) => what)
        .join(', ');

/** Whether a typed name may be a model: of a provider, or of this machine. */
export const isModelName = (name: string): boolean => /^(openai|anthropic|bedrock|base):\S/.test(name.trim());

/** Whether a player can take the customer's seat: hosted models and bases without adapters. */
export const playsCustomer = ({ kind, name }: Pick<PlayerInfo, 'kind' | 'name'>): boolean =>
  kind === 'hosted' || (kind === 'model' && (name === 'base' || name.startsWith('base:')));
