// Two or three teams on the same company, the same seed and the same luck, side by side on one timeline.
import { useEffect, useMemo, useRef, useState } from 'react';
import { post, type Frame, type PlayerInfo, type ScenarioInfo, type Seats, type WorldName } from '../api/client';
import { useFetched } from '../lib/fetching';
import { dollars, fixed, percent } from '../lib/format';
import { NIGHT, ROLES } from '../lib/roles';
import { seqOf, whenOf } from '../lib/address';
import {
  chartKey,
  FIRST_FORM,
  formOf,
  LANES,
  NOBODY,
  plays,
  queryOfRace,
  raceOf,
  racing,
  SEATED,
  settled,
  suggestions,
  type Form,
} from '../lib/race';
import { settle } from '../lib/route';
import { act, loadConfig, useStore, watch } from '../lib/store';
import { deed, paid, perTurn, type World } from '../lib/world';
import { bake, H, ITEMS, W } from '../office/layout';
import { Motion } from '../office/motion';
import { character, CH, CW, FRAMES, furniture, mk, T } from '../office/pix';
import { Plot, type Line } from '../ui/Plot';
import { Ideas } from '../ui/Ideas';
import { PlayerOptions } from '../ui/Players';
import { Panel, Pay, RoleBadge } from '../ui/small';

const COLORS = ['#5aa2f0', '#f2b84b', '#58c4a7'];
const CHARTS = [
  ['value', 'company value, $'],
  ['mrr', 'monthly revenue, $'],
] as const;

export default function Race({ query }: { query: URLSearchParams }) {
  const worlds = useStore((state) => state.worlds);
  const config = useStore((state) => state.config);
  const canChange = useStore((state) => state.canChange);
  const { value: players } = useFetched<PlayerInfo[]>('models');
  const { value: scenarios } = useFetched<ScenarioInfo[]>('scenarios');
  const [linked] = useState(() => raceOf(query));
  const [form, setForm] = useState(linked?.form ?? FIRST_FORM);
  const { teams, scenario, seed, days } = form;
  const ideas = useMemo(() => suggestions(players ?? []), [players]);
  const [busy, setBusy] = useState(false);
  const [watched, setWatched] = useState<readonly WorldName[]>([]);
  const [turn, setTurn] = useState(0);
  const [moving, setMoving] = useState(false);

  // A race that was run before this page was opened is shown again, and the form begins with it.
  useEffect(() => void loadConfig(), []);
  useEffect(() => {
    const running = racing(config?.worlds ?? []);
    if (!running.length || (linked && !plays(running, linked.form))) return;
    setForm(formOf(running));
    setWatched(running.map(({ world }) => world as WorldName));
    setTurn((linked && seqOf(linked.when, running[0]!)) ?? Infinity);
  }, [config, linked]);
  useEffect(() => {
    const ends = watched.map(watch);
    return () => ends.forEach((end) => end());
  }, [watched]);

  const lanes = watched.flatMap((name) => (worlds[name] ? [{ name, world: worlds[name] }] : []));
  const longest = Math.max(1, ...lanes.map(({ world }) => world.frames.length)) - 1;
  const over = settled(
    watched,
    lanes.map(({ world }) => world),
  );
  // The clock reads where it ends: frames that arrive must not start it anew.
  const end = useRef(longest);
  end.current = longest;
  useEffect(() => {
    if (!moving) return;
    const timer = window.setInterval(() => setTurn((before) => Math.min(before + 1, end.current)), 120);
    return () => window.clearInterval(timer);
  }, [moving]);
  useEffect(() => {
    if (moving && over && turn >= longest) setMoving(false);
  }, [moving, over, turn, longest]);

  const change = (part: Partial<typeof FIRST_FORM>): void => setForm((before) => ({ ...before, ...part }));
  const start = async ({ teams, scenario, seed, days }: Form = form): Promise<void> => {
    setBusy(true);
    const names: WorldName[] = [];
    for (const [index, team] of teams.entries()) {
      const world = LANES[index]!;
      if (team === NOBODY) continue;
      const seats = Object.fromEntries(SEATED.map((role) => [role, team]));
      const made = await act(
        post<'reset', Seats>('reset', {
          world,
          scenario,
          seed: Number(seed),
          days: Number(days),
          seats,
          human: '',
          playing: true,
          pace_s: 0,
        }),
      );
      if (!made) break;
      names.push(world);
    }
    setWatched(names);
    setTurn(0);
    setMoving(true);
    setBusy(false);
  };
  const usable =
    /^\d+$/.test(seed) && /^\d+$/.test(days) && Number(days) >= 1 && Number(days) <= 90 && teams.filter(Boolean).length >= 2;
  const split = useMemo(() => divergence(lanes.map(({ world }) => world)), [lanes]);
  const charts = useMemo(
    () =>
      CHARTS.map(([key, title]) => ({
        title,
        lines: lanes.map(({ name, world }): Line => {
          const place = LANES.indexOf(name);
          return {
            name: teamName(world),
            color: COLORS[place]!,
            x: perTurn(world.frames).map((frame) => frame.turn + 1),
            y: perTurn(world.frames).map((frame) => frame.kpis[key]),
          };
        }),
      })),
    [chartKey(lanes.map(({ world }) => world))],
  );
  const shown = lanes.map(({ world }) => world.frames[Math.min(turn, longest)]).find(Boolean);
  // A link that was followed starts what it names; an address that was typed or sent does not.
  const wantsRace = useStore((state) => state.wantsRace);
  useEffect(() => {
    if (!wantsRace || !config) return;
    useStore.setState({ wantsRace: false });
    if (canChange && !plays(racing(config.worlds), form)) void start();
  }, [wantsRace, config]);
  const played = racing(lanes.map(({ world }) => world.seats));
  useEffect(() => {
    if (moving || !played.length || !shown || (turn > longest && !over)) return;
    const timer = window.setTimeout(() => settle(['race'], queryOfRace(formOf(played), whenOf(shown))), 400);
    return () => window.clearTimeout(timer);
  }, [moving, played.length, shown, over]);
  return (
    <div className="stack">
      <h1 className="sr">Race</h1>
      <Panel
        title="Race"
        tools={<span className="small dim">same company, same seed, same luck: what differs is what they did</span>}
      >
        <div className="row" style={{ alignItems: 'end' }}>
          {teams.map((team, index) => (
            <label className="field" key={index}>
              <span>
                <i className="dot" style={{ background: COLORS[index], display: 'inline-block' }} /> team {index + 1}
              </span>
              <select
                value={team}
                onChange={(event) => change({ teams: teams.map((one, place) => (place === index ? event.target.value : one)) })}
              >
                {index === 2 && <option value={NOBODY}>no team</option>}
                <PlayerOptions players={players} />
              </select>
            </label>
          ))}
          <label className="field">
            scenario
            <select value={scenario} onChange={(event) => change({ scenario: event.target.value })}>
              {(scenarios ?? []).map((one) => (
                <option key={one.name} value={one.name}>
                  {one.name}
                </option>
              ))}
            </select>
          </label>
          <label className="field">
            seed
            <input
              value={seed}
              onChange={(event) => change({ seed: event.target.value })}
              inputMode="numeric"
              style={{ width: 92 }}
            />
          </label>
          <label className="field">
            days
            <input
              value={days}
              onChange={(event) => change({ days: event.target.value })}
              inputMode="numeric"
              style={{ width: 64 }}
            />
          </label>
          <button type="button" className="primary" onClick={() => void start()} disabled={!canChange || !usable || busy}>
            {busy ? 'Starting…' : 'Start'}
          </button>
        </div>
      </Panel>
      {lanes.length === 0 && linked && <p className="empty">The race of this link is not being played here. Start plays it.</p>}
      {lanes.length === 0 && !linked && ideas.length > 0 && (
        <Ideas
          ideas={ideas}
          disabled={!canChange || busy}
          run={(wanted) => {
            setForm(wanted);
            void start(wanted);
          }}
        />
      )}
      {lanes.length > 0 && (
        <>
          <div className="row">
            <button
              type="button"
              onClick={() => (turn >= longest ? (setTurn(0), setMoving(true)) : setMoving(!moving))}
              aria-label={moving ? 'Pause' : 'Play'}
            >
              {moving ? '❚❚' : '▶'}
            </button>
            <input
              type="range"
              className="grow"
              min={0}
              max={longest}
              value={Math.min(turn, longest)}
              onChange={(event) => setTurn(Number(event.target.value))}
              aria-label="Turn of the race"
              aria-valuetext={where(shown)}
            />
            <span className="nowrap small dim">
              {where(shown)} of {(lanes[0]?.world.seats.turns ?? 0).toLocaleString('en')}
            </span>
            {split !== null && (
              <button type="button" onClick={() => setTurn(split)} title="The first turn in which the teams acted differently">
                first difference: turn {(lanes[0]?.world.frames[split]?.turn ?? 0) + 1}
              </button>
            )}
          </div>
          <div className="lanes">
            {lanes.map(({ name, world }) => (
              <Lane
                key={name}
                world={world}
                seq={Math.min(turn, world.frames.length - 1)}
                color={COLORS[LANES.indexOf(name)]!}
                leads={
                  leader(
                    lanes.map((lane) => lane.world),
                    turn,
                  ) === world
                }
              />
            ))}
          </div>
          <div className="curves">
            {charts.map((chart) => (
              <Plot key={chart.title} title={chart.title} lines={chart.lines} weight={0} log={false} height={230} />
            ))}
          </div>
        </>
      )}
    </div>
  );
}

/** Where a race stands, in words. */
const where = (frame: Frame | undefined): string =>
  !frame?.actor
    ? 'day 1 · turn 0'
    : frame.actor === NIGHT
      ? `night after day ${frame.day + 1} · turn ${frame.turn + 1}`
      : `day ${frame.day + 1} · turn ${frame.turn + 1}`;

const teamName = (world: World): string => [...new Set(Object.values(world.seats.seats))].join(', ');

/** The first frame in which the teams' replies differ; null while there is none. */
export function divergence(worlds: readonly World[]): number | null {
  if (worlds.length < 2) return null;
  const count = Math.min(...worlds.map((world) => world.frames.length));
  for (let index = 1; index < count; index++)
    if (new Set(worlds.map((world) => world.frames[index]!.text)).size > 1) return index;
  return null;
}

function leader(worlds: readonly World[], turn: number): World | undefined {
  const value = (world: World): number => world.frames[Math.min(turn, world.frames.length - 1)]?.kpis.value ?? -Infinity;
  const [first, second] = [...worlds].sort((a, b) => value(b) - value(a));
  return first && second && value(first) > value(second) ? first : undefined;
}

function Lane({ world, seq, color, leads }: { world: World; seq: number; color: string; leads: boolean }) {
  const frame = world.frames[seq];
  if (!frame) return null;
  const facts = [
    ['MRR', dollars(frame.kpis.mrr)],
    ['cash', dollars(frame.kpis.cash)],
    ['customers', String(frame.kpis.customers)],
    ['satisfaction', percent(frame.kpis.satisfaction)],
    ['stability', percent(frame.kpis.stability)],
    ['team velocity', `${fixed(frame.kpis.velocity)}×`],
  ];
  return (
    <section className="panel lane" style={{ borderTop: `4px solid ${color}` }} aria-label={teamName(world)}>
      <header>
        <h2>
          {teamName(world)} {leads && <span className="tag good">ahead</span>}
        </h2>
        <b>{dollars(frame.kpis.value)}</b>
      </header>
      <Miniature world={world} seq={seq} />
      <p className="row small" style={{ margin: '8px 0', flexWrap: 'nowrap' }}>
        {!frame.actor ? (
          <span className="dim">Day 0</span>
        ) : (
          <>
            <RoleBadge role={frame.actor} />
            <span className="ellipsis grow">{deed(frame)}</span>
            <Pay value={paid(frame)} />
          </>
        )}
      </p>
      <dl className="facts">
        {facts.map(([name, value]) => (
          <div key={name} style={{ display: 'contents' }}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {world.seats.error && <p className="small bad">{world.seats.error}</p>}
    </section>
  );
}

function furnished(): HTMLCanvasElement {
  const [canvas, pen] = mk(W * T, H * T);
  const pieces = furniture();
  pen.drawImage(bake(), 0, 0);
  for (const item of [...ITEMS].sort((a, b) => Number(!a.flat) - Number(!b.flat) || a.y - b.y)) {
    const piece = pieces[item.k];
    if (piece)
      pen.drawImage(
        piece,
        Math.round(item.x * T - piece.width / 2),
        Math.round(item.y * T - (item.flat ? piece.height / 2 : piece.height)),
      );
  }
  return canvas;
}

/** The office small, on a plain canvas: three engines at once would be too much for most machines. */
function Miniature({ world, seq }: { world: World; seq: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const art = useRef<{ floor: HTMLCanvasElement; people: Record<string, HTMLCanvasElement> } | null>(null);
  const motion = useRef(new Motion());
  useEffect(() => {
    const pen = canvas.current?.getContext('2d');
    if (!pen) return;
    art.current ??= { floor: furnished(), people: Object.fromEntries(ROLES.map((role) => [role.id, character(role.look)])) };
    const { floor, people } = art.current;
    motion.current.follow(world.frames);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(floor, 0, 0);
    const poses = ROLES.map((role) => ({ role, pose: motion.current.pose(role.id, seq + 0.9) })).sort(
      (a, b) => a.pose.y - b.pose.y,
    );
    for (const { role, pose } of poses) {
      const view =
        pose.activity === 'WALKING'
          ? pose.facing === 'left' || pose.facing === 'right'
            ? 'side0'
            : `${pose.facing}0`
          : pose.activity === 'WORKING'
            ? 'type0'
            : 'down0';
      const x = Math.round(pose.x * T);
      const y = Math.round((pose.y + 0.4) * T);
      pen.strokeStyle = role.color;
      pen.lineWidth = world.frames[seq]?.actor === role.id ? 3 : 1;
      pen.beginPath();
      pen.ellipse(x, y - 2, 10, 4, 0, 0, 7);
      pen.stroke();
      pen.drawImage(people[role.id]!, FRAMES.indexOf(view) * CW, 0, CW, CH, x - CW / 2, y - CH, CW, CH);
    }
  }, [world, seq]);
  return (
    <canvas ref={canvas} width={W * T} height={H * T} role="img" aria-label={`Office of ${teamName(world)} at turn ${seq}`} />
  );
}
