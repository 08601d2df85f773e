// One turn of a shell agent: the command, what it printed, the files it changed, and at the end what was checked.
import type { EpisodeTurn } from '../api/client';
import { Panel, Scroll } from '../ui/small';
import { WhatChanged, type RecordedTurn } from './WhatChanged';

interface Verdict {
  kind: string;
  path: string;
  passed: boolean;
  reason: string;
}
interface Change {
  path: string;
  what: 'created' | 'changed' | 'removed';
  bytes: number | null;
}
interface Facts {
  command?: string;
  exit_code?: number;
  timed_out?: boolean;
  restarted?: boolean;
  ignored_blocks?: number;
  observation?: string;
  problem?: string;
  files?: Change[];
  files_left_out?: number;
  verdicts?: Verdict[];
  sentinel?: string;
}

/** Whether these facts are of a shell's turn. */
export const isCommand = (facts: Record<string, unknown>): boolean => 'observation' in facts && 'turn' in facts;

const TONE = { created: 'good', changed: 'accent', removed: 'bad' } as const;

export function Command({ turn, place }: { turn: EpisodeTurn; place: Omit<RecordedTurn, 'turn'> }) {
  const facts = turn.facts as Facts;
  return (
    <div className="stack" data-testid="command">
      {facts.command !== undefined ? (
        <div>
          <div className="row spread">
            <h3>Command</h3>
            <span className={`tag ${facts.exit_code === 0 ? 'good' : 'bad'}`}>
              {facts.timed_out ? 'timed out' : `exit ${facts.exit_code ?? '?'}`}
            </span>
          </div>
          <pre className="block shell" tabIndex={0} aria-label="Command">
            {facts.command}
          </pre>
        </div>
      ) : (
        <p className="small">
          No command was run{facts.problem ? <span className="bad">: {facts.problem.replaceAll('_', ' ')}</span> : '.'}
        </p>
      )}
      {facts.restarted && <p className="small bad">The sandbox died and was started again.</p>}
      {Boolean(facts.ignored_blocks) && (
        <p className="small dim">{facts.ignored_blocks} further blocks of the reply were not run.</p>
      )}
      {facts.observation && (
        <div>
          <h3>What it read</h3>
          <pre className="block" tabIndex={0} aria-label="What the agent read">
            {facts.observation}
          </pre>
        </div>
      )}
      {facts.files && (
        <div>
          <h3>Files changed</h3>
          {!facts.files.length && <p className="small dim">None.</p>}
          <ul className="changes">
            {facts.files.map((change) => (
              <li key={change.path} className="row small">
                <span className={`tag ${TONE[change.what]}`}>{change.what}</span>
                <span className="mono">{change.path}</span>
                {change.bytes !== null && <span className="dim">{change.bytes} bytes</span>}
              </li>
            ))}
          </ul>
          {Boolean(facts.files_left_out) && <p className="small dim">and {facts.files_left_out} more</p>}
          {facts.files.length > 0 && (
            <WhatChanged key={`${place.iteration} ${place.episode} ${turn.index}`} at={{ ...place, turn: turn.index }} />
          )}
        </div>
      )}
      {facts.sentinel && <p className="small">It said that it is done (stop sign: {facts.sentinel}).</p>}
      {facts.verdicts && (
        <p className="small">
          Then its work was checked: {facts.verdicts.filter((verdict) => verdict.passed).length} of {facts.verdicts.length} hold.
        </p>
      )}
    </div>
  );
}

/** What was asked for, next to what was checked of it in the end. */
export function Checked({ turns }: { turns: readonly EpisodeTurn[] }) {
  const request = turns[0]?.prompt ?? '';
  const verdicts = (turns.at(-1)?.facts as Facts | undefined)?.verdicts;
  return (
    <div className="grid checked">
      <Panel title="Request">
        {request ? (
          <pre className="block" tabIndex={0} aria-label="Request">
            {request}
          </pre>
        ) : (
          <p className="small dim">
            The tokenizer of this run&apos;s model is not on this machine, so the request cannot be read.{' '}
            <code className="mono">onthejob model fetch</code> brings it.
          </p>
        )}
      </Panel>
      <Panel title="Assertions">
        {verdicts ? <Verdicts verdicts={verdicts} /> : <p className="small dim">The episode ended without being checked.</p>}
      </Panel>
    </div>
  );
}

function Verdicts({ verdicts }: { verdicts: readonly Verdict[] }) {
  const passed = verdicts.filter((verdict) => verdict.passed).length;
  return (
    <div>
      <div className="row spread">
        <span className="dim small">
          {verdicts.every((verdict) => verdict.passed) ? 'The task is passed.' : 'The task is not passed.'}
        </span>
        <span className={`tag ${passed === verdicts.length ? 'good' : 'bad'}`}>
          {passed} of {verdicts.length} hold
        </span>
      </div>
      <Scroll label="Assertions">
        <table>
          <tbody>
            {verdicts.map((verdict, index) => (
              <tr key={index}>
                <td className={verdict.passed ? 'good' : 'bad'}>
                  <span aria-hidden="true">{verdict.passed ? '✓' : '✗'}</span>
                  <span className="sr">{verdict.passed ? 'holds' : 'does not hold'}</span>
                </td>
                <td className="nowrap">{verdict.kind.replaceAll('_', ' ')}</td>
                <td>
                  <span className="mono">{verdict.path}</span>
                  {verdict.reason && <span className="small bad move">{verdict.reason}</span>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </div>
  );
}
