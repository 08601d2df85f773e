// A person plays an environment of the user's own, in any of its seats: what the seat reads, its reply, and what that paid.
import { useEffect, useRef, useState } from 'react';
import { get, openTable, replyAt, type EnvView, type TableView, type TaskPage } from '../api/client';
import { useFetched } from '../lib/fetching';
import { compact } from '../lib/format';
import { go } from '../lib/route';
import { meet } from '../lib/roles';
import { act, useStore } from '../lib/store';
import { firstSeats, HUMAN, matching, MOST_BUTTONS, payments, standing } from '../lib/table';
import { Panel, Pay, RoleBadge } from '../ui/small';

export default function Play({ query }: { query: URLSearchParams }) {
  const env = useStore((state) => state.config?.env);
  const loaded = useStore((state) => state.config !== null);
  if (!loaded) return <p className="empty">Loading…</p>;
  if (!env)
    return (
      <p className="empty">
        This viewer was started without an environment of your own. <code className="mono">onthejob view --env REF</code> names
        one.
      </p>
    );
  meet(env.roles);
  return <Room env={env} id={query.get('table') ?? ''} />;
}

function Room({ env, id }: { env: EnvView; id: string }) {
  const [table, setTable] = useState<TableView | null>(null);
  const [gone, setGone] = useState('');
  useEffect(() => {
    if (!id || table?.id === id) return;
    const control = new AbortController();
    get<TableView>(`tables/${encodeURIComponent(id)}`, {}, control.signal).then(setTable, (error: unknown) => {
      if (!control.signal.aborted) setGone(error instanceof Error ? error.message : String(error));
    });
    return () => control.abort();
  }, [id, table]);
  const take = (next: TableView): void => {
    setGone('');
    setTable(next);
    if (next.id !== id) go(['env'], { table: next.id });
  };
  const shown = id && table?.id === id ? table : null;
  return (
    <div className="grid seatplay">
      <div className="stack">
        <About env={env} />
        <Begin env={env} before={shown} take={take} />
      </div>
      <div className="stack">
        {!shown && <p className="empty">{gone || (id ? 'Loading…' : 'Choose a task and your seat, and begin.')}</p>}
        {shown && <Conversation table={shown} />}
        {shown?.asked && <Answer key={`${shown.id} ${shown.replies}`} table={shown} env={env} take={take} />}
        {shown && !shown.asked && <End table={shown} take={take} />}
      </div>
    </div>
  );
}

function About({ env }: { env: EnvView }) {
  const options = Object.entries(env.options);
  return (
    <Panel title={env.name}>
      <div className="stack">
        <p>{env.description}</p>
        <p className="small dim">
          At most {env.max_turns} turns of all roles together; a reply of a model has up to {env.max_new_tokens} tokens.
        </p>
        {options.length > 0 && (
          <dl className="facts">
            {options.map(([name, value]) => (
              <div key={name} style={{ display: 'contents' }}>
                <dt className="mono">--env.{name.replaceAll('_', '-')}</dt>
                <dd className="mono">{typeof value === 'string' ? value : JSON.stringify(value)}</dd>
              </div>
            ))}
          </dl>
        )}
      </div>
    </Panel>
  );
}

function Begin({ env, before, take }: { env: EnvView; before: TableView | null; take: (next: TableView) => void }) {
  const canChange = useStore((state) => state.canChange);
  const [split, setSplit] = useState(before?.split ?? Object.keys(env.tasks)[0] ?? 'train');
  const [number, setNumber] = useState(String((before?.task.index ?? 0) + 1));
  const [seed, setSeed] = useState(String(before?.seed ?? 0));
  const [seats, setSeats] = useState(before?.seats ?? firstSeats(env));
  const [busy, setBusy] = useState(false);
  // A page that was loaded again learns of its table later.
  useEffect(() => {
    if (!before) return;
    setSplit(before.split);
    setNumber(String(before.task.index + 1));
    setSeed(String(before.seed));
    setSeats(before.seats);
  }, [before?.id]);
  const count = env.tasks[split] ?? 0;
  const index = Number(number) - 1;
  const known = /^\d{1,9}$/.test(number) && index >= 0 && index < count;
  const seated = Object.values(seats).includes(HUMAN);
  const usable = known && seated && /^\d{1,9}$/.test(seed);
  const { value: page } = useFetched<TaskPage>(known ? 'tasks' : null, { split, start: index, count: 1 });
  const task = known ? page?.rows[0] : undefined;
  const begin = async (at: number): Promise<void> => {
    setBusy(true);
    setNumber(String(at + 1));
    const next = await act(openTable({ split: split as TableView['split'], index: at, seed: Number(seed), seats }));
    setBusy(false);
    if (next) take(next);
  };
  return (
    <Panel title="New episode">
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void begin(index);
        }}
      >
        <div className="row" style={{ flexWrap: 'nowrap' }}>
          <label className="field grow">
            split
            <select value={split} onChange={(event) => setSplit(event.target.value as TableView['split'])}>
              {Object.entries(env.tasks).map(([name, tasks]) => (
                <option key={name} value={name}>
                  {name} ({tasks} tasks)
                </option>
              ))}
            </select>
          </label>
          <label className="field" style={{ width: 84 }}>
            task
            <input value={number} onChange={(event) => setNumber(event.target.value.trim())} inputMode="numeric" />
          </label>
        </div>
        <p className={`small ${known ? 'dim' : 'bad'}`}>
          {known ? (
            <>
              <span className="mono">{task?.id ?? '…'}</span>
              {task && task.family !== 'all' && <> · {task.family}</>}
            </>
          ) : (
            `The task is a number from 1 to ${count}.`
          )}
        </p>
        <div className="seatgrid">
          {env.roles.map((role) => (
            <div key={role} style={{ display: 'contents' }}>
              <label htmlFor={`seat-${role}`}>
                <RoleBadge role={role} plain />
              </label>
              <select
                id={`seat-${role}`}
                value={seats[role]}
                onChange={(event) => setSeats({ ...seats, [role]: event.target.value })}
              >
                <option value={HUMAN}>you</option>
                {env.players.map((player) => (
                  <option key={player} value={player}>
                    {player}
                  </option>
                ))}
              </select>
            </div>
          ))}
        </div>
        {!seated && <p className="small bad">Take at least one seat yourself.</p>}
        {!env.players.length && env.roles.length > 1 && (
          <p className="small dim">This environment has no scripted players, so you play all roles in turn.</p>
        )}
        {Object.values(seats).some((player) => player !== HUMAN) && (
          <label className="field">
            seed of the scripted players
            <input value={seed} onChange={(event) => setSeed(event.target.value.trim())} inputMode="numeric" />
          </label>
        )}
        <div className="row">
          <button type="submit" className="primary" disabled={!canChange || busy || !usable}>
            Begin
          </button>
          {before && index + 1 < count && (
            <button type="button" disabled={!canChange || busy || !usable} onClick={() => void begin(index + 1)}>
              Next task
            </button>
          )}
        </div>
        {!canChange && <p className="small dim">Read-only: open the address that `onthejob view` printed to play.</p>}
      </form>
    </Panel>
  );
}

function Conversation({ table }: { table: TableView }) {
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // The newest browsers return a promise here, which is no clean-up.
    void end.current?.scrollIntoView({ block: 'nearest' });
  }, [table.id, table.turns.length]);
  const others = Object.entries(table.seats).filter(([, player]) => player !== HUMAN);
  const early = Object.entries(table.before).filter(([, amount]) => amount !== 0);
  return (
    <Panel
      title={
        <>
          {table.split} task {table.task.index + 1}
        </>
      }
      tools={
        <span className="row small">
          {Object.entries(table.paid).map(([role, amount]) => (
            <span className="row" key={role} style={{ gap: 5 }}>
              <RoleBadge role={role} plain /> <Pay value={amount} />
            </span>
          ))}
        </span>
      }
    >
      {others.length > 0 && (
        <p className="small dim">
          {others.map(([role, player]) => `${player} plays ${role}`).join(', ')}
          {table.revealed ? '.' : '. Their turns are private.'}
        </p>
      )}
      {early.map(([role, amount]) => (
        <p key={role} className="small dim">
          Before your first turn {role} was paid <Pay value={amount} />.
        </p>
      ))}
      <ol className="talk" aria-label="Turns so far">
        {table.turns.map((turn, place) => (
          <li key={place}>
            <Read role={turn.role} messages={turn.messages} />
            <div className={`reply-line ${turn.player === HUMAN ? 'mine' : ''}`}>
              <span className="row spread">
                <span className="row">
                  <RoleBadge role={turn.role} plain />{' '}
                  <span className="small dim">{turn.player === HUMAN ? 'you' : turn.player}</span>
                  {!turn.valid && <span className="tag bad">invalid</span>}
                </span>
                <span className="row small">
                  {payments(turn).map(([role, amount]) => (
                    <span key={role} className="row" style={{ gap: 4 }} title={`paid to ${role}`}>
                      {role !== turn.role && <span className="dim">{role}</span>}
                      <Pay value={amount} />
                    </span>
                  ))}
                </span>
              </span>
              <pre>{turn.reply || ' '}</pre>
            </div>
          </li>
        ))}
      </ol>
      {!table.turns.length && !table.asked && <p className="empty">Your seat was not asked in this episode.</p>}
      <div ref={end} />
    </Panel>
  );
}

/** What a role reads: its own messages, and no other's. */
function Read({ role, messages }: { role: string; messages: readonly { role: string; content: string }[] }) {
  return (
    <div className="read" role="group" aria-label={`${role} reads`}>
      {messages.map((message, place) => (
        <div key={place}>
          {(message.role !== 'user' || messages.length > 1) && <span className="small faint">{message.role}</span>}
          <pre>{message.content}</pre>
        </div>
      ))}
    </div>
  );
}

function Answer({ table, env, take }: { table: TableView; env: EnvView; take: (next: TableView) => void }) {
  const canChange = useStore((state) => state.canChange);
  const [text, setText] = useState('');
  const [busy, setBusy] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const asked = table.asked!;
  useEffect(() => {
    field.current?.focus({ preventScroll: true });
  }, []);
  const send = async (reply: string): Promise<void> => {
    setBusy(true);
    const next = await act(replyAt(table.id, { text: reply, replies: table.replies }));
    setBusy(false);
    if (next) take(next);
  };
  const many = asked.legal.length > MOST_BUTTONS;
  const found = many ? matching(asked.legal, text).slice(0, MOST_BUTTONS) : asked.legal;
  return (
    <Panel
      title={
        <span className="row">
          <RoleBadge role={asked.role} plain /> reads
        </span>
      }
      tools={
        asked.fresh && table.turns.some((turn) => turn.role === asked.role) && <span className="tag">a new conversation</span>
      }
    >
      <form
        className="stack"
        data-testid="asked"
        data-role={asked.role}
        onSubmit={(event) => {
          event.preventDefault();
          void send(text);
        }}
      >
        <Read role={asked.role} messages={asked.messages} />
        {asked.legal.length > 0 && (
          <div className="rolebar" role="group" aria-label="Legal replies">
            {found.map((reply) => (
              <button type="button" key={reply} disabled={!canChange || busy} onClick={() => void send(reply)}>
                {reply}
              </button>
            ))}
          </div>
        )}
        {many && (
          <p className="small dim">
            {found.length} of {asked.legal_count} legal replies; type to find others.
          </p>
        )}
        <label className="field">
          reply as {asked.role}
          <textarea
            ref={field}
            rows={env.max_new_tokens > 40 ? 4 : 1}
            value={text}
            maxLength={16_384}
            className="mono"
            spellCheck={false}
            onChange={(event) => setText(event.target.value)}
            onKeyDown={(event) => {
              if (event.key === 'Enter' && !event.shiftKey && !event.nativeEvent.isComposing) {
                event.preventDefault();
                if (!busy && canChange) void send(text);
              }
            }}
          />
        </label>
        <div className="row">
          <button type="submit" className="primary" disabled={!canChange || busy}>
            {busy ? 'Playing…' : 'Reply'}
          </button>
          <span className="small dim">Enter sends, Shift Enter begins a line.</span>
        </div>
      </form>
    </Panel>
  );
}

function End({ table, take }: { table: TableView; take: (next: TableView) => void }) {
  const reveal = async (): Promise<void> => {
    const all = await act(get<TableView>(`tables/${encodeURIComponent(table.id)}/everything`));
    if (all) take(all);
  };
  return (
    <Panel title={standing(table)} tools={<span className="small dim">ended: {table.stop}</span>}>
      <div className="stack" data-testid="end">
        {table.error && <p className="bad">{table.error}</p>}
        <dl className="facts">
          {Object.entries(table.metrics).map(([metric, value]) => (
            <div key={metric} style={{ display: 'contents' }}>
              <dt className="mono">{metric}</dt>
              <dd>{compact(value)}</dd>
            </div>
          ))}
        </dl>
        {!table.revealed && (
          <div className="row">
            <button type="button" onClick={() => void reveal()}>
              Show what all roles read and replied
            </button>
          </div>
        )}
      </div>
    </Panel>
  );
}
