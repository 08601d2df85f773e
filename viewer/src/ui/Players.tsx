// Who can be seated, as the options of a select and as a list with what each model needs.
import type { PlayerInfo } from '../api/client';
import { lacking } from '../lib/players';
import { Scroll } from './small';

/** Scripted players that most people want; the others probe for ways to be paid without doing the work. */
const USUAL = new Set(['expert', 'heuristic', 'random', 'do-nothing']);
const KINDS: readonly (readonly [string, (player: PlayerInfo) => boolean])[] = [
  ['usual', ({ kind, name }) => kind === 'scripted' && USUAL.has(name)],
  ['models of this machine', ({ kind }) => kind === 'model'],
  ['hosted models', ({ kind }) => kind === 'hosted'],
  ['experts of one scenario, and stress tests', ({ kind, name }) => kind === 'scripted' && !USUAL.has(name)],
];

export function PlayerOptions({ players }: { players: readonly PlayerInfo[] | null }) {
  return (
    <>
      {KINDS.map(([label, belongs]) => {
        const found = players?.filter(belongs) ?? [];
        return found.length ? (
          <optgroup key={label} label={label}>
            {found.map((player) => (
              <option key={player.name} value={player.name} title={player.note} disabled={!player.ready}>
                {player.ready ? player.name : `${player.name} (needs ${lacking(player)})`}
              </option>
            ))}
          </optgroup>
        ) : null;
      })}
    </>
  );
}

/** The models of the catalogue and of this machine: what each needs, and whether it is there. */
export function ModelList({ players }: { players: readonly PlayerInfo[] | null }) {
  const models = players?.filter(({ kind }) => kind !== 'scripted') ?? [];
  if (!models.length) return null;
  return (
    <details className="small models-needs">
      <summary>Models, and what they need ({models.length})</summary>
      <Scroll label="Models" max={300}>
        <table className="models">
          <thead>
            <tr>
              <th scope="col">model</th>
              <th scope="col">needs</th>
            </tr>
          </thead>
          <tbody>
            {models.map((model) => (
              <tr key={model.name} data-ready={model.ready}>
                <td>
                  <span className="mono">{model.name}</span>
                  {model.note && <div className="dim">{model.note}</div>}
                </td>
                <td>
                  {!model.needs.length && <span className="dim">nothing</span>}
                  {model.needs.map(({ what, there }) => (
                    <div key={what} className={there ? 'good' : there === false && !model.ready ? 'bad' : 'dim'}>
                      {what}: {there ? 'there' : there === false ? 'missing' : 'not known'}
                    </div>
                  ))}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </details>
  );
}
