// One chart of learning curves on uPlot: raw values faint, smoothed ones strong, the envelope where points were thinned.
import { useEffect, useId, useRef, useState } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { compact } from '../lib/format';
import { align, smooth, thin } from '../lib/curves';

export interface Line {
  name: string;
  color: string;
  dash?: number[];
  x: number[];
  y: (number | null)[];
}

const MOST_POINTS = 1500;

export function Plot({
  title,
  lines,
  weight,
  log,
  height = 190,
}: {
  title: string;
  lines: readonly Line[];
  weight: number;
  log: boolean;
  height?: number;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState<string>('');
  const id = useId();

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const style = getComputedStyle(document.documentElement);
    const ink = (name: string): string => style.getPropertyValue(name).trim();
    const columns = lines.map((line) => thin(line.x, line.y, MOST_POINTS));
    const { x, ys } = align(columns.flatMap((c) => [c.y, c.low, c.high, smooth(c.y, weight)].map((y) => ({ x: c.x, y }))));
    const useLog = log && ys.some((lane) => lane.some((value) => value !== null && value > 0));
    const fit = (lane: (number | null)[]): (number | null)[] =>
      useLog ? lane.map((value) => (value !== null && value > 0 ? value : null)) : lane;
    const series: uPlot.Series[] = [{}];
    const data: (number | null)[][] = [x];
    const bands: uPlot.Band[] = [];
    const soft = lines.map((_, index) => ys[4 * index + 3]!);
    lines.forEach((line, index) => {
      const [raw, low, high] = ys.slice(4 * index, 4 * index + 3);
      if (line.x.length > MOST_POINTS) {
        bands.push({ series: [series.length + 1, series.length], fill: `${line.color}22` });
        series.push(
          { width: 0, stroke: 'transparent', points: { show: false } },
          { width: 0, stroke: 'transparent', points: { show: false } },
        );
        data.push(fit(low!), fit(high!));
      } else if (weight > 0) {
        series.push({ stroke: `${line.color}40`, width: 1, spanGaps: true, points: { show: false } });
        data.push(fit(raw!));
      }
      series.push({
        label: line.name,
        stroke: line.color,
        width: 1.8,
        spanGaps: true,
        points: { show: x.length < 3, size: 5 },
        ...(line.dash?.length ? { dash: line.dash } : {}),
      });
      data.push(fit(soft[index]!));
    });
    const axis = {
      stroke: ink('--dim'),
      grid: { stroke: ink('--line'), width: 1 },
      ticks: { stroke: ink('--line'), width: 1 },
      font: '11px sans-serif',
    };
    const options: uPlot.Options = {
      width: Math.max(element.clientWidth, 120),
      height,
      series,
      bands,
      cursor: { sync: { key: 'onthejob' }, drag: { x: true, y: false }, points: { size: 5 } },
      scales: { x: { time: false }, y: useLog ? { distr: 3 } : {} },
      legend: { show: false },
      axes: [
        { ...axis, size: 30 },
        {
          ...axis,
          size: 56,
          values: (_: uPlot, values: number[]) => values.map((value) => (value === null ? '' : compact(value))),
        },
      ],
      hooks: {
        setCursor: [
          (self: uPlot) => {
            const index = self.cursor.idx;
            if (index === null || index === undefined) {
              setAt('');
              return;
            }
            const values = lines.map((line, place) => `${line.name} ${compact(soft[place]![index])}`);
            setAt(`${x[index]}: ${values.join(' · ')}`);
          },
        ],
      },
    };
    const made = new uPlot(options, data as uPlot.AlignedData, element);
    const observer = new ResizeObserver(() => made.setSize({ width: Math.max(element.clientWidth, 120), height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [lines, weight, log, height]);

  const save = (): void => {
    const canvas = box.current?.querySelector('canvas');
    if (!canvas) return;
    const copy = document.createElement('canvas');
    copy.width = canvas.width;
    copy.height = canvas.height;
    const pen = copy.getContext('2d');
    if (!pen) return;
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--panel').trim();
    pen.fillRect(0, 0, copy.width, copy.height);
    pen.drawImage(canvas, 0, 0);
    const anchor = document.createElement('a');
    anchor.download = `${title.replaceAll('/', '-')}.png`;
    anchor.href = copy.toDataURL('image/png');
    anchor.click();
  };
  const newest = lines.map((line) => `${line.name} ${compact([...line.y].reverse().find((value) => value !== null))}`).join(', ');
  return (
    <figure className="panel curve" aria-labelledby={id}>
      <div className="row spread" style={{ flexWrap: 'nowrap' }}>
        <h3 id={id} className="mono ellipsis">
          {title}
        </h3>
        <button type="button" className="quiet" onClick={save} aria-label={`Save ${title} as PNG`} title="Save as PNG">
          ⤓
        </button>
      </div>
      <div ref={box} className="plot" role="img" aria-label={`${title}. Newest values: ${newest}`} />
      <figcaption className="small dim ellipsis" title={at}>
        {at || `newest: ${newest}`}
      </figcaption>
    </figure>
  );
}
