// Small parts that every page uses. Everything that is drawn also exists as text.
import { useEffect, useId, useMemo, useState, type CSSProperties, type ReactNode } from 'react';
import { colorOf, glyphOf, ROLE, titleOf } from '../lib/roles';
import { paid } from '../lib/format';
import type { RunInfo } from '../api/client';

export const PART_COLORS = ['#5aa2f0', '#58c4a7', '#f2b84b', '#b48cf0', '#f0686f', '#9aa3ba'] as const;

export function roleStyle(role: string): CSSProperties {
  return { '--role': colorOf(role) } as CSSProperties;
}

/** `plain` for a role of another environment, which may be called as one of the office's. */
export function RoleBadge({ role, person = false, plain = false }: { role: string; person?: boolean; plain?: boolean }) {
  const info = plain ? undefined : ROLE[role];
  return (
    <span className="badge" style={roleStyle(role)}>
      <span className="glyph" aria-hidden="true">
        {plain ? '›' : glyphOf(role)}
      </span>
      {person && info ? `${info.person} · ${info.title}` : plain ? role : titleOf(role)}
    </span>
  );
}

export function Pay({ value, digits = 2 }: { value: number; digits?: number }) {
  const shown = paid(value, digits);
  return <span className={`pay ${shown === '0' ? 'dim' : value > 0 ? 'good' : 'bad'}`}>{shown}</span>;
}

/** A line over all turns, with where the timeline stands. `values` may be long: it is thinned to what can be seen. */
export function Sparkline({
  values,
  at,
  color = 'var(--info)',
  label,
  zero = false,
}: {
  values: ArrayLike<number>;
  at?: number;
  color?: string;
  label: string;
  zero?: boolean;
}) {
  const id = useId();
  const WIDTH = 120;
  const HEIGHT = 30;
  const { path, area, low, high, base } = useMemo(() => {
    const count = values.length;
    let low = zero ? 0 : Infinity;
    let high = zero ? 0 : -Infinity;
    for (let i = 0; i < count; i++) {
      low = Math.min(low, values[i]!);
      high = Math.max(high, values[i]!);
    }
    const span = high - low || 1;
    const y = (value: number): number => HEIGHT - 3 - ((value - low) / span) * (HEIGHT - 6);
    const stride = Math.max(1, Math.floor(count / 160));
    const points: string[] = [];
    for (let i = 0; i < count; i += stride)
      points.push(`${((i / Math.max(1, count - 1)) * WIDTH).toFixed(1)},${y(values[i]!).toFixed(1)}`);
    const path = points.length ? `M${points.join('L')}` : '';
    const base = y(Math.max(low, Math.min(high, 0)));
    return { path, area: path ? `${path}L${WIDTH},${HEIGHT}L0,${HEIGHT}Z` : '', low, high, base, y };
  }, [values, zero]);
  const x = at === undefined ? null : (at / Math.max(1, values.length - 1)) * WIDTH;
  const shown = Number.isFinite(low) ? `${label}: from ${low.toFixed(2)} to ${high.toFixed(2)}` : label;
  return (
    <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-labelledby={id}>
      <title id={id}>{shown}</title>
      {zero ? (
        <line x1="0" x2={WIDTH} y1={base} y2={base} stroke="var(--line-2)" strokeWidth="1" vectorEffect="non-scaling-stroke" />
      ) : (
        <path d={area} fill={color} opacity="0.12" />
      )}
      <path d={path} fill="none" stroke={color} strokeWidth="1.6" vectorEffect="non-scaling-stroke" strokeLinejoin="round" />
      {x !== null && (
        <line
          x1={x}
          x2={x}
          y1="0"
          y2={HEIGHT}
          stroke="var(--text)"
          strokeWidth="1"
          opacity="0.55"
          vectorEffect="non-scaling-stroke"
        />
      )}
    </svg>
  );
}

/** How a sum comes about: one bar per part, each beginning where the one before ended. */
export function Waterfall({ parts, names }: { parts: readonly number[]; names: readonly string[] }) {
  let at = 0;
  const steps = names.map((name, index) => {
    const from = at;
    at += parts[index] ?? 0;
    return { name, from, to: at, value: parts[index] ?? 0 };
  });
  const low = Math.min(0, ...steps.map((step) => step.to));
  const high = Math.max(0, ...steps.map((step) => step.to));
  const span = high - low || 1;
  const x = (value: number): number => ((value - low) / span) * 100;
  const bar = (from: number, to: number, color: string) => (
    <svg viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">
      <line x1={x(0)} x2={x(0)} y1="0" y2="14" stroke="var(--line-2)" strokeWidth="1" vectorEffect="non-scaling-stroke" />
      <rect x={Math.min(x(from), x(to))} width={Math.max(Math.abs(x(to) - x(from)), 0.4)} y="2" height="10" fill={color} rx="1" />
    </svg>
  );
  return (
    <div className="waterfall" role="table" aria-label="Reward parts">
      {steps.map((step, index) => (
        <div key={step.name} role="row" style={{ display: 'contents' }}>
          <span role="rowheader" className="dim">
            {step.name}
          </span>
          <span role="presentation">{bar(step.from, step.to, PART_COLORS[index] ?? '#888')}</span>
          <span role="cell" className="num">
            <Pay value={step.value} />
          </span>
        </div>
      ))}
      <div role="row" style={{ display: 'contents' }}>
        <b role="rowheader">reward</b>
        <span role="presentation">{bar(0, at, at < 0 ? 'var(--bad)' : 'var(--good)')}</span>
        <b role="cell" className="num">
          <Pay value={at} />
        </b>
      </div>
    </div>
  );
}

/** Whole seconds since `since` (ms of the page's clock), or since this appeared; nothing in the first one. */
export function Waited({ since }: { since?: number }) {
  const [begun] = useState(() => performance.now());
  const [now, setNow] = useState(() => performance.now());
  useEffect(() => {
    const timer = window.setInterval(() => setNow(performance.now()), 500);
    return () => window.clearInterval(timer);
  }, []);
  const seconds = Math.floor((now - (since ?? begun)) / 1000);
  return seconds > 0 ? <span className="waited">{seconds} s</span> : null;
}

export function Panel({ title, tools, children, id }: { title: ReactNode; tools?: ReactNode; children: ReactNode; id?: string }) {
  const made = useId();
  return (
    <section className="panel" aria-labelledby={made} id={id}>
      <header>
        <h2 id={made}>{title}</h2>
        {tools}
      </header>
      {children}
    </section>
  );
}

/** Terms with their meanings, to be read without a pointer. `fold` is the line that opens them; without it they are open. */
export function Meanings({ of, fold }: { of: readonly (readonly [string, string])[]; fold?: string }) {
  const list = (
    <dl className="meanings">
      {of.map(([term, meaning]) => (
        <div key={term}>
          <dt>{term}</dt>
          <dd>{meaning}</dd>
        </div>
      ))}
    </dl>
  );
  if (!fold) return list;
  return (
    <details className="small">
      <summary className="dim">{fold}</summary>
      {list}
    </details>
  );
}

/** A labelled select among a panel's tools; an option is its value, or its value and its text. */
export function Choice<Value extends string | number>({
  label,
  value,
  options,
  onChange,
}: {
  label: string;
  value: Value;
  options: readonly (Value | readonly [Value, string])[];
  onChange: (value: string) => void;
}) {
  return (
    <label className="row small">
      {label}
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        {options.map((option) => {
          const [key, text] = typeof option === 'object' ? option : [option, option];
          return (
            <option key={key} value={key}>
              {text}
            </option>
          );
        })}
      </select>
    </label>
  );
}

/** A region that scrolls must be reachable by keyboard. */
export function Scroll({ label, children, max }: { label: string; children: ReactNode; max?: number }) {
  return (
    <div className="scroll" role="region" aria-label={label} tabIndex={0} style={max ? { maxHeight: max } : undefined}>
      {children}
    </div>
  );
}

/** Whether what is shown of a run has the content that was written; nothing where it has. */
export function Verification({ info }: { info: Pick<RunInfo, 'name' | 'unverified' | 'damaged'> }) {
  if (info.damaged)
    return (
      <span className="tag bad" title={`Damaged parts are not shown. onthejob runs check ${info.name} lists them all.`}>
        damaged
      </span>
    );
  if (info.unverified)
    return (
      <span className="tag" title={`${info.unverified} iterations have no checksums: a changed number is not noticed.`}>
        unverified
      </span>
    );
  return null;
}
