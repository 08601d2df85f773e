// The company in numbers at the turn where the timeline stands.
import { useDeferredValue, useEffect, useMemo, useState } from 'react';
import { get, type Kpis, type MemoryView } from '../api/client';
import { dollars, fixed, paid, percent, whole } from '../lib/format';
import { ROLES } from '../lib/roles';
import { isExport } from '../lib/exported';
import { current, setRole, useStore } from '../lib/store';
import { boardColumns, cumulative, FRAMES_PER_DAY, isLoss, moved, type World } from '../lib/world';
import { Feed } from '../ui/Feed';
import { Journey, Payers } from '../ui/Moments';
import { PartMeanings } from '../ui/Reasons';
import { Panel, PART_COLORS, Pay, RoleBadge, Scroll, Sparkline } from '../ui/small';

interface Kpi {
  key: keyof Kpis;
  name: string;
  show: (value: number) => string;
  change: (value: number) => string;
  color: string;
}
const KPIS: readonly Kpi[] = [
  { key: 'value', name: 'Company value', show: dollars, change: dollars, color: '#f2b84b' },
  { key: 'cash', name: 'Cash', show: dollars, change: dollars, color: '#9bcf5c' },
  { key: 'mrr', name: 'MRR', show: dollars, change: dollars, color: '#58c4a7' },
  { key: 'revenue', name: 'Revenue so far', show: dollars, change: dollars, color: '#58c4a7' },
  { key: 'pipeline', name: 'Pipeline value', show: dollars, change: dollars, color: '#5aa2f0' },
  { key: 'traffic', name: 'Visits a day', show: whole, change: whole, color: '#ee6fa3' },
  { key: 'nps', name: 'NPS', show: (v) => fixed(v, 0), change: (v) => fixed(v, 1), color: '#f08a4b' },
  { key: 'stability', name: 'Stability', show: (v) => percent(v), change: (v) => percent(v, 1), color: '#7db8ff' },
  { key: 'velocity', name: 'Team velocity', show: (v) => `${fixed(v)}×`, change: (v) => fixed(v), color: '#b48cf0' },
  { key: 'satisfaction', name: 'Satisfaction', show: (v) => percent(v), change: (v) => percent(v, 1), color: '#f08a4b' },
];
const STAGES = ['lead', 'qualified', 'demo', 'proposal', 'negotiation', 'won'] as const;
const SHOWN_DEALS = 7;

export function Dashboard() {
  const world = useStore(current);
  const recorded = useStore((state) => state.recorded !== null);
  const seq = useDeferredValue(useStore((state) => state.seq));
  if (!world || !world.frames[seq]) return <p className="empty">Waiting for the company…</p>;
  return (
    <div className="stack">
      <h1 className="sr">Dashboard</h1>
      <KpiRow world={world} seq={seq} />
      <div className="grid dash">
        <div className="stack">
          <Rewards world={world} seq={seq} />
          <Pipeline world={world} seq={seq} />
          <Product world={world} seq={seq} />
        </div>
        <div className="stack">
          <Feed world={world} seq={seq} />
          {!isExport && !recorded && <Memories seq={seq} epoch={world.seats.epoch} />}
        </div>
      </div>
    </div>
  );
}

function KpiRow({ world, seq }: { world: World; seq: number }) {
  const lanes = useMemo(
    () => Object.fromEntries(KPIS.map(({ key }) => [key, world.frames.map((frame) => frame.kpis[key])])),
    [world.frames],
  );
  const now = world.frames[seq]!.kpis;
  const before = world.frames[Math.max(0, seq - FRAMES_PER_DAY)]!.kpis;
  return (
    <dl className="kpis">
      {KPIS.map(({ key, name, show, change, color }) => {
        const moved = now[key] - before[key];
        const still = Math.abs(moved) < 1e-9;
        return (
          <div className="kpi" key={key}>
            <dt>{name}</dt>
            <dd>
              {show(now[key])}
              <small className={still ? 'faint' : moved > 0 ? 'good' : 'bad'} title="Change in a day">
                {still ? '·' : `${moved > 0 ? '▲' : '▼'} ${change(Math.abs(moved))}`}
              </small>
            </dd>
            <dd>
              <Sparkline values={lanes[key] ?? []} at={seq} color={color} label={name} />
            </dd>
          </div>
        );
      })}
    </dl>
  );
}

function Rewards({ world, seq }: { world: World; seq: number }) {
  const parts = useStore((state) => state.config?.parts) ?? [];
  const meanings = useStore((state) => state.config?.part_meanings) ?? {};
  const chosen = useStore((state) => state.role);
  const [cell, setCell] = useState<{ role: string; part: number } | null>(null);
  const sums = useMemo(
    () =>
      cumulative(
        world.frames,
        ROLES.map((role) => role.id),
        parts.length,
      ),
    [world.frames, parts.length],
  );
  return (
    <Panel
      title="Reward so far, by part"
      tools={<span className="small dim">sum of all turns up to here; the lines show how it grew</span>}
    >
      <Scroll label="Reward parts by role">
        <table className="rewards">
          <thead>
            <tr>
              <th scope="col">role</th>
              {parts.map((part) => (
                <th scope="col" key={part} title={meanings[part]}>
                  {part}
                </th>
              ))}
              <th scope="col" className="num">
                sum
              </th>
            </tr>
          </thead>
          <tbody>
            {ROLES.map((role) => {
              const lanes = sums[role.id] ?? [];
              const total = lanes.reduce((sum, lane) => sum + (lane[seq] ?? 0), 0);
              return (
                <tr key={role.id} className={role.id === chosen ? 'selected' : ''}>
                  <th scope="row">
                    <RoleBadge role={role.id} />
                  </th>
                  {lanes.map((lane, index) => (
                    <td key={parts[index]}>
                      <span className="cell">
                        <button
                          type="button"
                          className="figure num small"
                          aria-label={`${paid(lane[seq] ?? 0, 1)} ${role.title}, ${parts[index]}: what paid it`}
                          aria-pressed={cell?.role === role.id && cell.part === index}
                          disabled={!lane[seq]}
                          onClick={() =>
                            setCell(cell?.role === role.id && cell.part === index ? null : { role: role.id, part: index })
                          }
                        >
                          <Pay value={lane[seq] ?? 0} digits={1} />
                        </button>
                        <Sparkline
                          values={lane}
                          at={seq}
                          color={PART_COLORS[index] ?? ''}
                          label={`${role.title}, ${parts[index]}`}
                          zero
                        />
                      </span>
                    </td>
                  ))}
                  <td className="num">
                    <b>
                      <Pay value={total} digits={1} />
                    </b>
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Scroll>
      {cell && <Payers world={world} seq={seq} role={cell.role} part={cell.part} name={parts[cell.part] ?? ''} />}
      <PartMeanings brief />
    </Panel>
  );
}

function Pipeline({ world, seq }: { world: World; seq: number }) {
  const accounts = world.accounts[seq] ?? [];
  const frame = world.frames[seq]!;
  const [open, setOpen] = useState<number | null>(null);
  const fresh = new Set(frame.moves.map((move) => move.id));
  const gone = frame.moves.filter(isLoss);
  return (
    <Panel
      title="Deals"
      tools={
        <span className="small dim">
          lost {frame.kpis.lost} · churned {frame.kpis.churned}
        </span>
      }
    >
      {gone.map((move) => (
        <p className="small bad" key={move.id}>
          {moved(move)}, {dollars(move.price)}/mo
        </p>
      ))}
      <div
        className="board"
        role="region"
        aria-label="Deals by stage"
        tabIndex={0}
        style={{ gridTemplateColumns: boardColumns(STAGES.map((stage) => accounts.filter((one) => one.stage === stage).length)) }}
      >
        {STAGES.map((stage) => {
          const here = accounts.filter((account) => account.stage === stage).sort((a, b) => b.price - a.price);
          return (
            <section key={stage} aria-label={stage} className={here.length ? '' : 'none'}>
              <h3>
                {stage === 'won' ? 'customer' : stage} <span>{here.length}</span>
              </h3>
              <div className="deals">
                {here.slice(0, SHOWN_DEALS).map((account) => (
                  <div className={`deal ${fresh.has(account.id) ? 'moved' : ''}`} key={account.id}>
                    <button
                      type="button"
                      className="figure"
                      aria-pressed={open === account.id}
                      aria-label={`Journey of ${account.name}`}
                      onClick={() => setOpen(open === account.id ? null : account.id)}
                    >
                      <b>{account.name}</b>
                    </button>
                    <span className="dim">
                      {account.known ? `${account.size} · ${account.pain}` : 'not qualified'}
                      <br />
                      {dollars(account.price)}/mo
                      {stage === 'won' && <> · {percent(account.satisfaction)}</>}
                      {stage !== 'won' && account.objections > 0 && <> · {account.objections} obj.</>}
                    </span>
                  </div>
                ))}
              </div>
              {here.length > SHOWN_DEALS && <p className="small dim">and {here.length - SHOWN_DEALS} more</p>}
            </section>
          );
        })}
      </div>
      {open !== null && <Journey world={world} seq={seq} account={open} />}
    </Panel>
  );
}

function Product({ world, seq }: { world: World; seq: number }) {
  const features = world.features[seq] ?? [];
  const floor = world.floors[seq];
  return (
    <Panel title="Product and team">
      <div className="grid" style={{ gridTemplateColumns: 'repeat(auto-fit, minmax(230px, 1fr))' }}>
        <ul className="bars" aria-label="Features">
          {features.map((feature) => {
            const share = feature.shipped >= 0 ? 1 : 1 - feature.left / feature.effort;
            return (
              <li key={feature.name} className="row small" style={{ flexWrap: 'nowrap' }}>
                <span style={{ width: 74 }}>{feature.name}</span>
                <svg
                  viewBox="0 0 100 8"
                  preserveAspectRatio="none"
                  style={{ flex: 1, height: 8, minWidth: 40 }}
                  aria-hidden="true"
                >
                  <rect width="100" height="8" rx="2" fill="var(--panel-2)" />
                  <rect width={100 * share} height="8" rx="2" fill={feature.shipped >= 0 ? 'var(--good)' : 'var(--info)'} />
                </svg>
                <span className="dim nowrap" style={{ width: 92 }}>
                  {feature.shipped >= 0
                    ? `shipped day ${feature.shipped + 1}`
                    : share > 0
                      ? `${fixed(feature.left, 1)} turns left`
                      : 'not begun'}
                </span>
              </li>
            );
          })}
        </ul>
        {floor && (
          <dl className="facts">
            <dt>Focus</dt>
            <dd>{floor.focus ? `${floor.focus}, ${floor.focus_left} day${floor.focus_left === 1 ? '' : 's'} left` : 'none'}</dd>
            <dt>Directive</dt>
            <dd>{floor.directive || 'none'}</dd>
            <dt>Blocked</dt>
            <dd className={Object.keys(floor.blockers).length ? 'bad' : ''}>
              {Object.keys(floor.blockers).join(', ') || 'no one'}
            </dd>
            <dt>Contractors</dt>
            <dd>
              {Object.entries(floor.contractors)
                .map(([role, days]) => `${role} ${days}d`)
                .join(', ') || 'none'}
            </dd>
            <dt>Bugs</dt>
            <dd>
              {floor.bugs.critical} critical, {floor.bugs.major} major, {floor.bugs.minor} minor
            </dd>
            <dt>Content</dt>
            <dd>
              {floor.published} published, {floor.drafts} drafts
            </dd>
            <dt>Envelopes</dt>
            <dd>
              {Object.entries(floor.envelopes)
                .map(([name, sum]) => `${name} ${dollars(sum)}`)
                .join(', ') || 'none'}
            </dd>
            <dt>Competitor</dt>
            <dd>{percent(floor.competitor)}</dd>
          </dl>
        )}
      </div>
    </Panel>
  );
}

function Memories({ seq, epoch }: { seq: number; epoch: number }) {
  const role = useStore((state) => state.role);
  const seat = role === 'customer' ? 'sales' : role;
  const [held, setHeld] = useState<MemoryView[] | null>(null);
  useEffect(() => {
    const control = new AbortController();
    // While the timeline moves, only where it stays for a moment is asked for.
    const timer = window.setTimeout(() => {
      get<MemoryView[]>('memory', { role: seat, seq }, control.signal).then(setHeld, () => undefined);
    }, 250);
    return () => {
      window.clearTimeout(timer);
      control.abort();
    };
  }, [seat, seq, epoch]);
  const newest = held ? [...held].reverse().slice(0, 40) : [];
  return (
    <Panel title={`Memory · ${held?.length ?? 0}`}>
      <div className="rolebar" role="group" aria-label="Whose memory" style={{ marginBottom: 8 }}>
        {ROLES.filter((one) => one.id !== 'customer').map((one) => (
          <button type="button" key={one.id} aria-pressed={one.id === seat} onClick={() => setRole(one.id)}>
            {one.title}
          </button>
        ))}
      </div>
      <Scroll label={`Memories of ${seat}`} max={280}>
        <table>
          <tbody>
            {newest.map((memory) => (
              <tr key={memory.id}>
                <td className="small faint nowrap">turn {memory.turn}</td>
                <td className="small">
                  {memory.kind !== 'observation' && <span className="tag accent">{memory.kind}</span>} {memory.text}
                </td>
                <td className="small num dim" title="Importance, 1 to 10">
                  {memory.importance}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
        {held && !held.length && <p className="empty">Nothing yet.</p>}
      </Scroll>
    </Panel>
  );
}
