// The sicknesses of GRPO at a glance: groups without signal, drift from the start, clipping, and a sampler that is not the trainer.
import { useEffect, useMemo, useRef } from 'react';
import { type RunView, type Series } from '../api/client';
import { compact } from '../lib/format';
import { worstOf } from '../lib/curves';
import { useStore } from '../lib/store';
import { Meanings, Panel } from '../ui/small';

interface Strip {
  metric: string;
  label: string;
  /** What it is, with its unit. */
  meaning: string;
  tone: string;
  /** Value at which the colour is full. */
  full: number;
}
const STRIPS: readonly Strip[] = [
  {
    metric: 'frac_reward_zero_std',
    label: 'no signal',
    meaning: 'share of groups whose replies are all worth the same: they teach nothing',
    tone: '#f0686f',
    full: 1,
  },
  {
    metric: 'kl',
    label: 'drift',
    meaning: 'KL divergence from the start of training, nats per token',
    tone: '#f2b84b',
    full: 0.5,
  },
  {
    metric: 'clip_ratio/region_mean',
    label: 'clipped',
    meaning: 'share of tokens whose step was cut because the policy had moved too far',
    tone: '#b48cf0',
    full: 0.2,
  },
  {
    metric: 'sampling/kl',
    label: 'sampler off',
    meaning: 'KL divergence of the sampler from the trainer on the same tokens, nats per token',
    tone: '#5aa2f0',
    full: 0.02,
  },
  {
    metric: 'skipped',
    label: 'skipped',
    meaning: '1 where an update was not taken, because a number was not finite',
    tone: '#ee6fa3',
    full: 1,
  },
];

/** No canvas is wider than some 30,000 pixels, and no screen shows as many. */
const MOST_COLUMNS = 2_000;

/** The worst value over roles, per iteration, as colour. */
export function Health({ metrics, run }: { metrics: Map<string, Series[]>; run: RunView }) {
  return (
    <Panel title="Health" tools={<span className="small dim">worst role per iteration; the stronger the colour, the worse</span>}>
      <div className="health">
        {STRIPS.map((strip) => (
          <HealthLine key={strip.metric} strip={strip} series={metrics.get(strip.metric) ?? []} iterations={run.iterations} />
        ))}
      </div>
      <Meanings of={STRIPS.map(({ label, meaning }) => [label, meaning])} />
    </Panel>
  );
}

function HealthLine({ strip, series, iterations }: { strip: Strip; series: readonly Series[]; iterations: readonly number[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useStore((state) => state.theme);
  const worst = useMemo(() => {
    const place = new Map(iterations.map((iteration, index) => [iteration, index]));
    const values: (number | null)[] = iterations.map(() => null);
    for (const one of series)
      one.iterations.forEach((iteration, index) => {
        const at = place.get(iteration);
        const value = one.values[index];
        if (at !== undefined && value !== null && value !== undefined) values[at] = Math.max(values[at] ?? -Infinity, value);
      });
    return worstOf(values, MOST_COLUMNS);
  }, [series, iterations]);
  useEffect(() => {
    const element = canvas.current;
    const pen = element?.getContext('2d');
    if (!element || !pen) return;
    element.width = Math.max(1, worst.length);
    element.height = 1;
    const empty = getComputedStyle(element).getPropertyValue('--panel-2');
    worst.forEach((value, index) => {
      pen.globalAlpha = 1;
      pen.fillStyle = empty;
      pen.fillRect(index, 0, 1, 1);
      if (value === null) return;
      pen.globalAlpha = Math.min(1, Math.max(0, value) / strip.full);
      pen.fillStyle = strip.tone;
      pen.fillRect(index, 0, 1, 1);
    });
  }, [worst, strip, theme]);
  const known = worst.filter((value) => value !== null);
  const high = known.length ? known.reduce((most, value) => Math.max(most, value), -Infinity) : null;
  const text = `${strip.label}: newest ${compact(known.at(-1))}, highest ${compact(high)}`;
  return (
    <div className="line small">
      <span className="dim" title={`${strip.metric}: ${strip.meaning}`}>
        {strip.label} <b>{compact(known.at(-1))}</b>
      </span>
      <canvas ref={canvas} role="img" aria-label={text} title={text} style={{ imageRendering: 'pixelated' }} />
    </div>
  );
}
