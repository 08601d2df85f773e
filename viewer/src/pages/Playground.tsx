// Take a seat: what a role sees exactly, what it may do, what it paid, and what the alternatives would have led to.
import { useEffect, useMemo, useState, type CSSProperties } from 'react';
import {
  get,
  post,
  type Legal,
  type Mode,
  type PlayerInfo,
  type PromptView,
  type ScenarioInfo,
  type SeatName,
  type Seats,
} from '../api/client';
import { dollars, words } from '../lib/format';
import { GROWING_MS, useFetched } from '../lib/fetching';
import { isModelName, playsCustomer } from '../lib/players';
import { ROLES } from '../lib/roles';
import { act, seek, showLive, useStore } from '../lib/store';
import { deed, paid, type World } from '../lib/world';
import { ModelList, PlayerOptions } from '../ui/Players';
import { PartMeanings, Reasons } from '../ui/Reasons';
import { Panel, Pay, RoleBadge, Waterfall } from '../ui/small';
import { Alternatives } from './Alternatives';

const SEATED = ROLES.filter((role) => role.id !== 'customer').map((role) => role.id as SeatName);
/** Plays the customer unless a model does. */
const SCRIPT = 'script';
/** Modes between which a model of this machine may change. */
const LOCAL: readonly Mode[] = ['inference', 'training'];
/** Stands for a model that is not in the list yet. */
const OTHER = '+';
const TIERS = ['#f0686f', '#f2b84b', '#9bcf5c', '#58c4a7', '#5aa2f0', '#7f88f0', '#b48cf0', '#ee6fa3', '#9aa3ba'];

export default function Playground() {
  const world = useStore((state) => state.worlds.live);
  const seq = useStore((state) => state.seq);
  const chosen = useStore((state) => state.role);
  const [profile, setProfile] = useState<'compact' | 'full'>('full');
  const [budget, setBudget] = useState('');
  const [view, setView] = useState<PromptView | null>(null);
  const [problem, setProblem] = useState('');
  const frame = world?.frames[seq];
  const mine = world?.seats.human ?? '';
  // The server answers for the moment after the reply, when night and customer have acted too.
  const asked = world?.frames.findLast((one) => one.step === frame?.step)?.waiting ?? '';
  const role = (SEATED.includes(chosen as SeatName) ? chosen : 'sales') as SeatName;
  const epoch = world?.seats.epoch ?? 0;
  const limit = /^\d+$/.test(budget) && Number(budget) > 0 ? Number(budget) : null;

  const over = frame !== undefined && asked === '';
  useEffect(() => {
    if (over) return;
    const control = new AbortController();
    const timer = window.setTimeout(() => {
      get<PromptView>('prompt', { role, seq, profile, budget: limit }, control.signal).then(
        (value) => {
          setView(value);
          setProblem('');
        },
        (error: unknown) => {
          if (!control.signal.aborted) setProblem(error instanceof Error ? error.message : String(error));
        },
      );
    }, 120);
    return () => {
      window.clearTimeout(timer);
      control.abort();
    };
  }, [role, seq, epoch, profile, limit, over]);

  // A recorded episode is over and cannot be continued.
  useEffect(showLive, []);
  // Whose turn it is, is shown: a person who plays is taken to their own seat.
  useEffect(() => {
    if (mine && asked === mine) useStore.setState({ role: mine });
  }, [mine, asked]);

  if (!world || !frame) return <p className="empty">Waiting for the company…</p>;
  const shown = view && view.role === role && !over ? view : null;
  return (
    <div className="grid play">
      <h1 className="sr">Playground</h1>
      <div className="stack">
        <Table world={world} />
        <Founding world={world} />
      </div>
      <Panel
        title={
          <span className="row">
            What <RoleBadge role={role} /> sees
          </span>
        }
        tools={
          <span className="row">
            <select
              value={profile}
              onChange={(event) => setProfile(event.target.value as 'compact' | 'full')}
              aria-label="Prompt profile"
            >
              <option value="full">full prompt</option>
              <option value="compact">compact prompt</option>
            </select>
            <label className="row small">
              budget
              <input
                value={budget}
                onChange={(event) => setBudget(event.target.value)}
                inputMode="numeric"
                placeholder="none"
                style={{ width: 72 }}
                aria-label="Budget in tokens"
              />
            </label>
          </span>
        }
      >
        <div className="rolebar" role="group" aria-label="Whose view" style={{ marginBottom: 10 }}>
          {SEATED.map((one) => (
            <button type="button" key={one} aria-pressed={one === role} onClick={() => useStore.setState({ role: one })}>
              {ROLES.find((info) => info.id === one)?.title}
              {one === asked ? ' ●' : ''}
            </button>
          ))}
        </div>
        {over && <p className="empty">The episode ended here: no role has another turn.</p>}
        {problem && !over && <p className="bad">{problem}</p>}
        {shown && <Sections view={shown} />}
      </Panel>
      <div className="stack">
        <Move world={world} seq={seq} view={shown} role={role} />
        <Outcome world={world} seq={seq} />
        <Alternatives seq={seq} view={shown} asked={asked} />
      </div>
    </div>
  );
}

function Table({ world }: { world: World }) {
  const { value: players } = useFetched<PlayerInfo[]>('models', {}, GROWING_MS);
  const canChange = useStore((state) => state.canChange);
  const [busy, setBusy] = useState('');
  const [asking, setAsking] = useState<SeatName | ''>('');
  const [spec, setSpec] = useState('');
  const { seats } = world;
  const collect = useStore((state) => state.config?.collect) ?? '';
  const spent = players?.find((player) => player.kind === 'hosted')?.spent;
  const take = async (role: SeatName, mode: Mode): Promise<void> => {
    setBusy(role);
    await act(post<'reconfigure', Seats>('reconfigure', { modes: { [role]: mode } }));
    setBusy('');
  };
  const change = async (role: SeatName, name: string): Promise<void> => {
    setAsking(name === OTHER ? role : '');
    if (name === OTHER) return;
    setBusy(role);
    if (name === 'you') await act(post<'reconfigure', Seats>('reconfigure', { human: role }));
    else
      await act(
        post<'reconfigure', Seats>('reconfigure', {
          seats: { [role]: name },
          ...(seats.human === role ? { human: '' as const } : {}),
        }),
      );
    setBusy('');
  };
  return (
    <Panel title="Team" tools={<span className="small dim">changes apply from the next reply on</span>}>
      <div className="seatgrid">
        {SEATED.map((role) => (
          <div key={role} style={{ display: 'contents' }}>
            <div>
              <label htmlFor={`seat-${role}`}>
                <RoleBadge role={role} />
              </label>
              <SeatMode
                role={role}
                mode={seats.human === role ? undefined : seats.modes[role]}
                choice={collect !== ''}
                disabled={!canChange || busy !== ''}
                onChange={(mode) => void take(role, mode)}
              />
            </div>
            <select
              id={`seat-${role}`}
              value={asking === role ? OTHER : seats.human === role ? 'you' : seats.seats[role]}
              disabled={!canChange || busy !== ''}
              onChange={(event) => void change(role, event.target.value)}
            >
              <option value="you">you</option>
              {players && !players.some((player) => player.name === seats.seats[role]) && (
                <option value={seats.seats[role]}>{seats.seats[role]}</option>
              )}
              <PlayerOptions players={players} />
              <option value={OTHER}>another model…</option>
            </select>
          </div>
        ))}
      </div>
      {asking && (
        <form
          className="stack"
          style={{ marginTop: 8 }}
          onSubmit={(event) => {
            event.preventDefault();
            void change(asking, spec.trim());
          }}
        >
          <label className="field">
            model for {ROLES.find((info) => info.id === asking)?.title}
            <input
              value={spec}
              onChange={(event) => setSpec(event.target.value)}
              className="mono"
              placeholder="openai:http://127.0.0.1:8001/v1"
              maxLength={200}
              spellCheck={false}
            />
          </label>
          <p className="small dim">
            openai:URL, openai:MODEL, anthropic:MODEL or bedrock:MODEL, with keys from the server&apos;s environment; base:MODEL
            for a hub id or a folder of this machine.
          </p>
          <div className="row">
            <button type="submit" className="primary" disabled={!isModelName(spec)}>
              Add to the team
            </button>
            <button type="button" onClick={() => setAsking('')}>
              Cancel
            </button>
          </div>
        </form>
      )}
      {collect && (
        <p className="small dim" style={{ marginTop: 8 }}>
          Turns of seats in training are kept in the run <span className="mono">{collect}</span>.
        </p>
      )}
      <ModelList players={players} />
      {spent && <p className="small dim">Hosted models so far: {spent}</p>}
      {busy && <p className="small dim">Loading… a model takes a while the first time.</p>}
      {!canChange && <p className="small dim">Read-only: open the address that `onthejob view` printed to play.</p>}
    </Panel>
  );
}

/** How a seat is taken; a model of this machine may collect its turns to be trained on. */
function SeatMode({
  role,
  mode,
  choice,
  disabled,
  onChange,
}: {
  role: SeatName;
  mode: Mode | undefined;
  choice: boolean;
  disabled: boolean;
  onChange: (mode: Mode) => void;
}) {
  if (!mode) return null;
  if (!choice || !LOCAL.includes(mode)) return <div className="small dim">{mode}</div>;
  return (
    <select
      aria-label={`Mode of ${ROLES.find((info) => info.id === role)?.title}`}
      className="small"
      value={mode}
      disabled={disabled}
      onChange={(event) => onChange(event.target.value as Mode)}
    >
      {LOCAL.map((one) => (
        <option key={one} value={one}>
          {one}
        </option>
      ))}
    </select>
  );
}

function Founding({ world }: { world: World }) {
  const { value: scenarios } = useFetched<ScenarioInfo[]>('scenarios');
  const { value: players } = useFetched<PlayerInfo[]>('models', {}, GROWING_MS);
  const canChange = useStore((state) => state.canChange);
  const [scenario, setScenario] = useState(world.seats.scenario);
  const [seed, setSeed] = useState(String(world.seats.seed));
  const [days, setDays] = useState(String(world.seats.days));
  const [customer, setCustomer] = useState(world.seats.seats.customer ?? SCRIPT);
  const [busy, setBusy] = useState(false);
  const models = players?.filter(playsCustomer) ?? [];
  const chosen = scenarios?.find((one) => one.name === scenario);
  const found = async (): Promise<void> => {
    const { human } = world.seats;
    setBusy(true);
    await act(
      post<'reset', Seats>('reset', {
        scenario,
        seed: Number(seed),
        days: Number(days),
        seats: { customer },
        human: human as SeatName | '',
        playing: Boolean(human),
        pace_s: world.seats.pace_s,
      }),
    );
    setBusy(false);
  };
  const usable = /^\d+$/.test(seed) && /^\d+$/.test(days) && Number(days) >= 1 && Number(days) <= 90;
  return (
    <Panel title="New company">
      <div className="stack">
        <label className="field">
          scenario
          <select value={scenario} onChange={(event) => setScenario(event.target.value)}>
            {(scenarios ?? []).map((one) => (
              <option key={one.name} value={one.name}>
                {one.name}
              </option>
            ))}
          </select>
        </label>
        {chosen && (
          <p className="small dim">
            {chosen.title}; pressure {chosen.pressure}, {dollars(chosen.cash)}, {chosen.events} scheduled events
          </p>
        )}
        <div className="row" style={{ flexWrap: 'nowrap' }}>
          <label className="field grow">
            seed
            <input value={seed} onChange={(event) => setSeed(event.target.value)} inputMode="numeric" />
          </label>
          <label className="field grow">
            days
            <input value={days} onChange={(event) => setDays(event.target.value)} inputMode="numeric" />
          </label>
        </div>
        <label className="field">
          customer
          <select value={customer} onChange={(event) => setCustomer(event.target.value)}>
            <option value={SCRIPT}>{SCRIPT}</option>
            {customer !== SCRIPT && !models.some(({ name }) => name === customer) && <option value={customer}>{customer}</option>}
            <PlayerOptions players={models} />
          </select>
        </label>
        <button type="button" onClick={() => void found()} disabled={!canChange || !usable || busy}>
          Start this company
        </button>
        {busy && customer !== SCRIPT && <p className="small dim">Loading… a model takes a while the first time.</p>}
      </div>
    </Panel>
  );
}

function Sections({ view }: { view: PromptView }) {
  return (
    <div className="stack" style={{ gap: 8 }}>
      <p className="row small dim">
        {view.tokens !== null ? `${view.tokens} tokens kept` : 'no tokenizer on this machine: sizes unknown'}
        {view.budget !== null && ` of a budget of ${view.budget}`}
        {view.system_tokens !== null && ` · system message ${view.system_tokens}`}
      </p>
      <details>
        <summary className="small">System message</summary>
        <pre className="block">{view.system}</pre>
      </details>
      {view.sections.map((section) => (
        <div
          key={section.key}
          className={`section ${section.kept ? '' : 'gone'}`}
          style={{ '--tier': TIERS[section.priority] } as CSSProperties}
        >
          <div className="row small">
            <b>P{section.priority}</b> {section.key}
            {section.pinned && <span className="tag">pinned</span>}
            {!section.kept && <span className="tag bad">pruned</span>}
            {section.cut && <span className="tag accent">shortened</span>}
            <span className="grow" />
            <span className="dim">{section.tokens === null ? '' : `${section.tokens} tokens`}</span>
          </div>
          <pre>{section.text}</pre>
        </div>
      ))}
    </div>
  );
}

/** The legal actions as a form: an action, one of its targets, and a message to a colleague. */
function Move({ world, seq, view, role }: { world: World; seq: number; view: PromptView | null; role: SeatName }) {
  const canChange = useStore((state) => state.canChange);
  const [action, setAction] = useState('');
  const [text, setText] = useState('');
  const [to, setTo] = useState('');
  const [message, setMessage] = useState('');
  const [raw, setRaw] = useState('');
  const [busy, setBusy] = useState(false);
  const groups = useMemo(() => {
    const found = new Map<string, Legal[]>();
    for (const legal of view?.legal ?? []) found.set(legal.action, [...(found.get(legal.action) ?? []), legal]);
    return found;
  }, [view]);
  const kind = groups.has(action) ? action : ([...groups.keys()][0] ?? '');
  const targets = groups.get(kind) ?? [];
  const pick = targets.find((legal) => legal.text === text) ?? targets[0];
  const newest = seq === world.frames.length - 1;
  const seated = world.seats.human === role;
  const mine = seated && Boolean(view?.asked) && newest;
  const reply = useMemo(() => {
    if (!pick) return '';
    if (!to || !message) return pick.text;
    return JSON.stringify({ ...(JSON.parse(pick.text) as object), message: `${to}: ${message}` });
  }, [pick, to, message]);
  const send = async (what: string): Promise<void> => {
    setBusy(true);
    const status = await act(post<'step', Seats>('step', { text: what }));
    setBusy(false);
    if (!status) return;
    setMessage('');
    setRaw('');
    seek(status.length - 1);
    useStore.setState({ follow: true });
  };
  const sit = (): void => void act(post<'reconfigure', Seats>('reconfigure', { human: role, playing: true }));
  const parameters = (legal: Legal): string => {
    const fields = JSON.parse(legal.text) as { parameters?: Record<string, unknown> };
    return fields.parameters ? ` (${Object.values(fields.parameters).join(', ')})` : '';
  };
  return (
    <Panel
      title="Your move"
      tools={
        <button
          type="button"
          disabled={!canChange || world.frames.length < 2}
          onClick={() => void act(post<'undo', Seats>('undo', {}))}
        >
          ↶ Undo
        </button>
      }
    >
      <div className="stack">
        {!seated && (
          <button type="button" className="primary" onClick={sit} disabled={!canChange || Boolean(world.seats.done)}>
            Play this role
          </button>
        )}
        {!seated && world.seats.done && <p className="small dim">This episode is over. Start a new company to play.</p>}
        {seated && !mine && (
          <p className="small dim">
            {world.seats.done
              ? 'The episode is over.'
              : newest
                ? 'The other roles are playing; press Space if they have stopped.'
                : 'This is an earlier turn: press End to play at the newest one.'}
          </p>
        )}
        <div className="row" style={{ alignItems: 'end' }}>
          <label className="field grow">
            action
            <select value={kind} onChange={(event) => setAction(event.target.value)}>
              {[...groups.keys()].map((one) => (
                <option key={one} value={one}>
                  {words(one)}
                </option>
              ))}
            </select>
          </label>
          <label className="field grow">
            target
            <select value={pick?.text ?? ''} onChange={(event) => setText(event.target.value)} disabled={targets.length < 2}>
              {targets.map((legal) => (
                <option key={legal.text} value={legal.text}>
                  {(legal.target || 'none') + parameters(legal)}
                </option>
              ))}
            </select>
          </label>
        </div>
        <div className="row" style={{ alignItems: 'end', flexWrap: 'nowrap' }}>
          <label className="field">
            message to
            <select value={to} onChange={(event) => setTo(event.target.value)}>
              <option value="">no one</option>
              {[...SEATED.filter((one) => one !== role), 'all'].map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
            </select>
          </label>
          <label className="field grow">
            text
            <input
              value={message}
              maxLength={240}
              onChange={(event) => setMessage(event.target.value)}
              disabled={!to}
              placeholder="need sync"
            />
          </label>
        </div>
        <pre className="block" aria-label="The reply that will be sent">
          {reply || '–'}
        </pre>
        <button
          type="button"
          className="primary"
          disabled={!mine || busy || !reply}
          onClick={() => void send(reply)}
          data-testid="submit"
        >
          Submit
        </button>
        <details>
          <summary className="small dim">write the reply by hand</summary>
          <div className="stack" style={{ marginTop: 6 }}>
            <textarea
              rows={3}
              value={raw}
              onChange={(event) => setRaw(event.target.value)}
              className="mono"
              aria-label="Reply as a model would write it"
              maxLength={8000}
            />
            <button type="button" disabled={!mine || busy || !raw.trim()} onClick={() => void send(raw)}>
              Submit as written
            </button>
          </div>
        </details>
      </div>
    </Panel>
  );
}

/** What the person's last turn paid. */
function Outcome({ world, seq }: { world: World; seq: number }) {
  const parts = useStore((state) => state.config?.parts) ?? [];
  const role = useStore((state) => state.role);
  let place = seq;
  while (place > 0 && world.frames[place]?.actor !== role) place--;
  const frame = place > 0 ? world.frames[place] : undefined;
  return (
    <Panel title="Reward of the last turn" tools={frame && <span className="small dim">turn {frame.turn + 1}</span>}>
      {!frame && <p className="dim small">This role has not acted yet.</p>}
      {frame && (
        <div className="stack" data-testid="outcome">
          <p className="row spread">
            <span className="row">
              <RoleBadge role={frame.actor} /> <span className={frame.valid ? '' : 'bad'}>{deed(frame)}</span>
            </span>
            <Pay value={paid(frame)} />
          </p>
          {frame.why && <p className="small bad">{frame.why}</p>}
          {!frame.changed && frame.valid && <p className="small dim">It changed nothing.</p>}
          <Waterfall parts={frame.parts[frame.actor] ?? []} names={parts} />
          <Reasons frame={frame} whose={frame.actor} />
          <PartMeanings />
        </div>
      )}
    </Panel>
  );
}
