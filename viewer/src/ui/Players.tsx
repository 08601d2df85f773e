// Who can be seated, as the options of a select.
import type { PlayerInfo } from '../api/client';

const KINDS = [
  ['scripted', 'scripted'],
  ['model', 'models of this machine'],
  ['hosted', 'hosted models'],
] as const;

export function PlayerOptions({ players }: { players: readonly PlayerInfo[] | null }) {
  return (
    <>
      {KINDS.map(([kind, label]) => {
        const found = players?.filter((player) => player.kind === kind) ?? [];
        return found.length ? (
          <optgroup key={kind} label={label}>
            {found.map((player) => (
              <option key={player.name} value={player.name} title={player.note}>
                {player.name}
              </option>
            ))}
          </optgroup>
        ) : null;
      })}
    </>
  );
}
