// The office: a stage in 2D or 3D, and next to it the selected person. What the canvas shows also stands in the text.
import { useEffect, useMemo, useRef, useState } from 'react';
import { compact, dollars, fixed, percent } from '../lib/format';
import { NIGHT, titleOf, turnOf } from '../lib/roles';
import { link } from '../lib/route';
import { isExport } from '../lib/exported';
import { atWork, clock, current, setPhoto, setRole, setStage, toggleFollowActor, useStore } from '../lib/store';
import { captionOf } from '../lib/photo';
import { deed, type World } from '../lib/world';
import { Labels, type LabelsHandle } from '../office/Labels';
import { Motion } from '../office/motion';
import type { Stage, StageHost } from '../office/stage';
import { Panel, Pay, RoleBadge, Sparkline, Waited } from '../ui/small';
import { Feed } from '../ui/Feed';
import { PartMeanings, Reasons } from '../ui/Reasons';
import { Tour } from '../ui/Tour';
import { describe } from '../ui/Timeline';

export default function Office() {
  const world = useStore(current);
  const seq = useStore((state) => state.seq);
  const stage = useStore((state) => state.stage);
  const loading = useStore((state) => state.loading);
  if (loading)
    return (
      <p className="empty">
        Playing the episode again… <Waited />
      </p>
    );
  if (!world)
    return (
      <p className="empty">
        Waiting for the company… <Waited />
      </p>
    );
  return (
    <div className="office">
      <h1 className="sr">Office</h1>
      <StageView kind={stage} key={stage} />
      <aside className="side stack" aria-label="Inspector">
        <Feed world={world} seq={seq} limit={20} max={340} />
        <Inspector world={world} seq={seq} />
        <Figures world={world} seq={seq} />
      </aside>
    </div>
  );
}

/** A reader who wants 3D as slow as it is says so once. */
let staysSlow = false;

function StageView({ kind }: { kind: '2d' | '3d' }) {
  const box = useRef<HTMLDivElement>(null);
  const labels = useRef<LabelsHandle>(null);
  const stage = useRef<Stage | null>(null);
  const [problem, setProblem] = useState('');
  const [ready, setReady] = useState(false);
  const [slow, setSlow] = useState<number | null>(null);
  const frame = useStore((state) => current(state)?.frames[state.seq]);
  const seats = useStore((state) => current(state)?.seats);
  const photo = useStore((state) => state.photo);

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    let gone = false;
    const reduced = matchMedia('(prefers-reduced-motion: reduce)');
    const host: StageHost = {
      world: () => current(useStore.getState()),
      seq: () => useStore.getState().seq,
      time: () => clock.t,
      selected: () => useStore.getState().role,
      select: setRole,
      place: (role, at) => labels.current?.place(role, at),
      calm: () => reduced.matches,
      lively: () => atWork(useStore.getState()),
      slow: (fps) => setSlow(staysSlow ? null : fps),
    };
    const create = async (): Promise<Stage | null> =>
      kind === '2d' || import.meta.env.VITE_REPLAY
        ? (await import('../office/Stage2D')).createStage2D(element, host, () => gone)
        : (await import('../office/Stage3D')).createStage3D(element, host, () => gone);
    create().then(
      (made) => {
        if (gone) made?.destroy();
        else {
          stage.current = made;
          setReady(true);
        }
      },
      (error: unknown) => {
        if (!gone) setProblem(error instanceof Error ? error.message : String(error));
      },
    );
    return () => {
      gone = true;
      stage.current?.destroy();
      stage.current = null;
    };
  }, [kind]);

  return (
    <section className="stage" aria-label={`The office in ${kind.toUpperCase()}`} data-ready={ready}>
      <div className="hud">
        {frame && (
          <>
            <span>
              <b>Day {frame.day + 1}</b> <span className="extra">· {frame.phase}</span>
            </span>
            <span>
              <small>value</small>
              <b>{dollars(frame.kpis.value)}</b>
            </span>
            <span>
              <small>MRR</small>
              <b>{dollars(frame.kpis.mrr)}</b>
            </span>
            <span className="extra">
              <small>cash</small>
              <b>{dollars(frame.kpis.cash)}</b>
            </span>
            <span className="extra">
              <small>stability</small>
              <b>{percent(frame.kpis.stability)}</b>
            </span>
            <span className="extra">
              <small>customers</small>
              <b>{frame.kpis.customers}</b>
            </span>
            {seats && (
              <span className="extra">
                <small>{seats.scenario}</small>seed {seats.seed}
              </span>
            )}
          </>
        )}
        <div className="stagetools" role="group" aria-label="View">
          <button type="button" aria-pressed={kind === '2d'} onClick={() => setStage('2d')}>
            2D
          </button>
          <button type="button" aria-pressed={kind === '3d'} onClick={() => setStage('3d')} hidden={isExport}>
            3D
          </button>
          <button type="button" onClick={() => stage.current?.zoom(1.25)} aria-label="Zoom in">
            +
          </button>
          <button type="button" onClick={() => stage.current?.zoom(0.8)} aria-label="Zoom out">
            −
          </button>
          <button type="button" onClick={() => stage.current?.reset()} aria-label="Show the whole office">
            ⤢
          </button>
        </div>
      </div>
      <div className="scene">
        <div className="canvas" ref={box} role="img" aria-label={`Picture of the office. ${describe(frame)}`} />
        {problem && (
          <p className="empty bad" role="alert">
            This browser could not draw the office ({problem}). The <a href={link(['dashboard'])}>dashboard</a> shows everything
            it shows.
          </p>
        )}
        <Labels ref={labels} />
        {slow !== null && (
          <div className="offer" role="status">
            <span>3D draws {fixed(slow, 1)} frames a second here.</span>
            <button type="button" onClick={() => setStage('2d')}>
              Show 2D
            </button>
            <button
              type="button"
              className="quiet"
              onClick={() => {
                staysSlow = true;
                setSlow(null);
              }}
            >
              Stay
            </button>
          </div>
        )}
      </div>
      {photo && frame && <Caption frame={frame} />}
      {/* Another stage starts anew; what was read is remembered. */}
      <Tour />
    </section>
  );
}

/** What stands under the picture in photo mode; a click leaves it. */
function Caption({ frame }: { frame: World['frames'][number] }) {
  const { when, what, value } = captionOf(frame);
  return (
    <button type="button" className="caption" onClick={() => setPhoto(false)} title="Back to the controls (p or Esc)">
      <span>{when}</span>
      <b>{what}</b>
      <span>
        company value <b>{value}</b>
      </span>
      <small>onthejob</small>
    </button>
  );
}

function Inspector({ world, seq }: { world: World; seq: number }) {
  const role = useStore((state) => state.role);
  const follows = useStore((state) => state.followActor);
  const duties = useStore((state) => state.config?.duties) ?? {};
  const mine = useMemo(() => {
    for (let index = seq; index > 0; index--) if (world.frames[index]?.actor === role) return world.frames[index];
    return undefined;
  }, [world.frames, seq, role]);
  const total = useMemo(() => {
    let sum = 0;
    for (let index = 1; index <= seq; index++) sum += world.frames[index]?.rewards[role] ?? 0;
    return sum;
  }, [world.frames, seq, role]);
  const floor = world.floors[seq];
  const now = world.frames[seq];
  return (
    <Panel
      title={<RoleBadge role={role} person />}
      tools={
        <span className="row small dim">
          <button
            type="button"
            className="quiet"
            aria-pressed={follows}
            onClick={toggleFollowActor}
            aria-label={follows ? 'follows who acts' : 'stays with this role'}
            title={follows ? 'Stay with this role (f)' : 'Follow who acts (f)'}
          >
            {follows ? 'follows' : 'stays'}
          </button>
          <span className="mono">{world.seats.seats[role] ?? 'world'}</span>
          {world.seats.modes[role] && world.seats.human !== role && <span data-testid="mode">{world.seats.modes[role]}</span>}
        </span>
      }
    >
      <div className="stack">
        <p className="small dim">{duties[role]}</p>
        <dl className="facts">
          <dt>Reward so far</dt>
          <dd>
            <b>
              <Pay value={total} digits={1} />
            </b>
          </dd>
          <dt>Now</dt>
          <dd>
            {now?.waiting === role
              ? 'next to act'
              : now?.actor === role
                ? 'has just acted'
                : now?.waiting === NIGHT
                  ? 'the day is over'
                  : turnOf(now?.waiting ?? '')}
            {floor?.blockers[role] !== undefined && <span className="bad"> · blocked</span>}
            {floor?.directive === role && <span className="good"> · CEO directive</span>}
          </dd>
          <dt>State</dt>
          <dd>
            <Activity world={world} role={role} />
          </dd>
        </dl>
        <Reflection texts={now?.reflections[role]} />
        {now?.actor === NIGHT && (
          <>
            <h3 className="row spread">
              Night after day {now.day + 1} <Pay value={now.rewards[role] ?? 0} />
            </h3>
            <Reasons frame={now} whose={role} />
            <Others frame={now} role={role} />
          </>
        )}
        {mine ? (
          <>
            <h3 className="row spread">
              <span>
                Last turn ({mine.turn + 1}): {deed(mine)}
              </span>
              <Pay value={mine.rewards[role] ?? 0} />
            </h3>
            {mine.reasoning && <p className="said">{mine.reasoning}</p>}
            {mine.talk && (
              <p className="said">
                to {mine.talk.to}: “{mine.talk.text}”
              </p>
            )}
            {mine.why && <p className="small bad">{mine.why}</p>}
            {(role !== 'customer' || mine.text) && <pre className="block">{mine.text}</pre>}
            <Reasons frame={mine} whose={role} />
            <Others frame={mine} role={role} />
          </>
        ) : (
          <p className="dim small">Has not acted yet.</p>
        )}
        <PartMeanings />
        {!isExport && (
          <p className="row small">
            <a href={link(['play'])}>prompt and actions</a>
            <a href={link(['dashboard'])}>memory and figures</a>
          </p>
        )}
        <p className="sr">{`Company value ${dollars(world.frames[seq]?.kpis.value ?? 0)}, NPS ${fixed(world.frames[seq]?.kpis.nps ?? 0, 0)}`}</p>
      </div>
    </Panel>
  );
}

const BEAT_MS = 200;

/** What the stage shows `role` doing, by the name of the state, and with whom. */
function Activity({ world, role }: { world: World; role: string }) {
  const motion = useRef(new Motion());
  const [shown, setShown] = useState('');
  useEffect(() => {
    const look = (): void => {
      motion.current.follow(world.frames);
      const { activity, with: partner } = motion.current.pose(role, clock.t);
      setShown(partner ? `${activity} with ${titleOf(partner)}` : activity);
    };
    look();
    const timer = window.setInterval(look, BEAT_MS);
    return () => window.clearInterval(timer);
  }, [world, role]);
  const [name, ...others] = shown.split(' ');
  return (
    <>
      <span className="tag" data-testid="activity">
        {name}
      </span>
      {others.length > 0 && ` ${others.join(' ')}`}
    </>
  );
}

function Reflection({ texts }: { texts: readonly string[] | undefined }) {
  if (!texts) return null;
  return (
    <>
      <h3>
        Reflection <span className="tag reflect">the last 70 turns</span>
      </h3>
      {texts.map((text) => (
        <p key={text} className="said reflect">
          {text}
        </p>
      ))}
    </>
  );
}

const FIGURES = [
  ['traffic', 'Traffic', 'visits yesterday', (value: number) => compact(value)],
  ['nps', 'NPS', 'net promoter score', (value: number) => fixed(value, 0)],
  ['pipeline', 'Pipeline', 'price a month of the open deals, from the demo on', dollars],
  ['velocity', 'Velocity', 'of development, 1 at the founding', (value: number) => `${fixed(value)}×`],
] as const;

/** Figures of the company next to the stage, with their history. */
function Figures({ world, seq }: { world: World; seq: number }) {
  const lines = useMemo(
    () => FIGURES.map(([key]) => Float64Array.from(world.frames, (frame) => frame.kpis[key])),
    [world.frames],
  );
  const now = world.frames[seq]?.kpis;
  if (!now) return null;
  return (
    <Panel title="Company">
      <dl className="figures">
        {FIGURES.map(([key, title, meaning, shown], index) => (
          <div key={key} title={meaning}>
            <dt>{title}</dt>
            <dd>
              <b data-testid={key}>{shown(now[key])}</b>
              <Sparkline values={lines[index]!} at={seq} label={title} />
            </dd>
          </div>
        ))}
      </dl>
    </Panel>
  );
}

/** What the turn or the night paid to the others. */
function Others({ frame, role }: { frame: World['frames'][number]; role: string }) {
  const others = Object.entries(frame.rewards).filter(([other, value]) => other !== role && Math.abs(value) >= 0.005);
  if (!others.length) return null;
  return (
    <p className="row small">
      <span className="dim">effect on others</span>
      {others.map(([other, value]) => (
        <span key={other} className="row" style={{ gap: 4 }}>
          <RoleBadge role={other} /> <Pay value={value} />
        </span>
      ))}
    </p>
  );
}
