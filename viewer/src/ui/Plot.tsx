// One chart of learning curves on uPlot: raw values faint, smoothed ones strong, the envelope where points were thinned.
import { useEffect, useId, useRef, useState } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { compact } from '../lib/format';
import { align, between, smooth, thin } from '../lib/curves';

export interface Line {
  name: string;
  /** What `pick` is given of it. */
  id?: string;
  color: string;
  dash?: number[];
  x: number[];
  y: (number | null)[];
}

const MOST_POINTS = 1500;
/** A second click within this time makes it a double one. */
const DOUBLE_MS = 300;

/** The y axis of values between low and high. uPlot would show a curve that is 0 throughout on an axis up to 100. */
function spread(_: uPlot, low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  const around = Math.abs(low) / 10 || 1;
  if (low === high) return [low - around, high + around];
  const [from, to] = uPlot.rangeNum(low, high, 0.1, true);
  return [from ?? low, to ?? high];
}

export function Plot({
  title,
  lines,
  weight,
  log,
  height = 190,
  pick,
}: {
  title: string;
  lines: readonly Line[];
  weight: number;
  log: boolean;
  height?: number;
  /** Called where a curve is clicked, with the place on the x axis and the id of the nearest line. */
  pick?: (x: number, id: string) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState<string>('');
  const id = useId();
  const picked = useRef(pick);
  picked.current = pick;

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const style = getComputedStyle(document.documentElement);
    const ink = (name: string): string => style.getPropertyValue(name).trim();
    const long = lines.some((line) => line.x.length > MOST_POINTS);
    const useLog = log && lines.some((line) => line.y.some((value) => value !== null && value > 0));
    const fit = (lane: (number | null)[]): (number | null)[] =>
      useLog ? lane.map((value) => (value !== null && value > 0 ? value : null)) : lane;
    let x: number[] = [];
    let soft: (number | null)[][] = [];
    /** What is drawn of the iterations in `range`; closer in, less has to be thinned. */
    const collect = (range: readonly [number, number] | null): (number | null)[][] => {
      const columns = lines.map((line) => {
        const part = between(line.x, line.y, range);
        return thin(part.x, part.y, MOST_POINTS);
      });
      const joined = align(columns.flatMap((c) => [c.y, c.low, c.high, smooth(c.y, weight)].map((y) => ({ x: c.x, y }))));
      x = joined.x;
      soft = lines.map((_, index) => joined.ys[4 * index + 3]!);
      const data: (number | null)[][] = [x];
      lines.forEach((line, index) => {
        const [raw, low, high] = joined.ys.slice(4 * index, 4 * index + 3);
        if (line.x.length > MOST_POINTS) data.push(fit(low!), fit(high!));
        else if (weight > 0) data.push(fit(raw!));
        data.push(fit(soft[index]!));
      });
      return data;
    };
    const series: uPlot.Series[] = [{}];
    const bands: uPlot.Band[] = [];
    const data = collect(null);
    lines.forEach((line) => {
      if (line.x.length > MOST_POINTS) {
        bands.push({ series: [series.length + 1, series.length], fill: `${line.color}22` });
        series.push(
          { width: 0, stroke: 'transparent', points: { show: false } },
          { width: 0, stroke: 'transparent', points: { show: false } },
        );
      } else if (weight > 0) series.push({ stroke: `${line.color}40`, width: 1, spanGaps: true, points: { show: false } });
      series.push({
        label: line.name,
        stroke: line.color,
        width: 1.8,
        spanGaps: true,
        points: { show: x.length < 3, size: 5 },
        ...(line.dash?.length ? { dash: line.dash } : {}),
      });
    });
    const axis = {
      stroke: ink('--dim'),
      grid: { stroke: ink('--line'), width: 1 },
      ticks: { stroke: ink('--line'), width: 1 },
      font: '11px sans-serif',
    };
    const first = Math.min(...lines.map((line) => line.x[0] ?? Infinity));
    const last = Math.max(...lines.map((line) => line.x.at(-1) ?? -Infinity));
    let shown: readonly [number, number] = [first, last];
    let gone = false;
    const options: uPlot.Options = {
      width: Math.max(element.clientWidth, 120),
      height,
      series,
      bands,
      cursor: {
        sync: { key: 'onthejob' },
        drag: { x: true, y: false },
        points: { size: 5 },
        // uPlot would fit the scale to the data it holds, which is only the part that is shown.
        bind: {
          dblclick: (self: uPlot) => () => {
            self.setScale('x', { min: first, max: last });
            return null;
          },
        },
      },
      scales: { x: { time: false, ...(long ? { min: first, max: last } : {}) }, y: useLog ? { distr: 3 } : { range: spread } },
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
        setScale: [
          (self: uPlot, key: string) => {
            const { min, max } = self.scales.x ?? {};
            if (!long || key !== 'x' || min === null || max === null || min === undefined || max === undefined) return;
            if (shown[0] === min && shown[1] === max) return;
            shown = [min, max];
            // Not in here: uPlot is about to forget what else is asked of its scales, and with it which of the new points are in view.
            queueMicrotask(() => {
              if (gone) return;
              self.setData(collect(shown) as uPlot.AlignedData, false);
              self.redraw();
            });
          },
        ],
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
    let pressed = 0;
    let choosing = 0;
    made.over.addEventListener('mousedown', (event) => {
      pressed = event.clientX;
    });
    made.over.addEventListener('click', (event) => {
      const index = made.cursor.idx;
      // The end of a drag, which zooms, is no click.
      if (index === null || index === undefined || !picked.current || Math.abs(event.clientX - pressed) > 3) return;
      const y = event.clientY - made.over.getBoundingClientRect().top;
      const far = (place: number): number => {
        const value = soft[place]![index];
        return value === null || value === undefined ? Infinity : Math.abs(made.valToPos(value, 'y') - y);
      };
      const nearest = lines.map((_, place) => place).sort((a, b) => far(a) - far(b))[0];
      if (nearest === undefined) return;
      const [at, of] = [x[index]!, lines[nearest]!.id ?? ''];
      // A double click shows the whole curve again, and leads nowhere.
      window.clearTimeout(choosing);
      if (event.detail < 2) choosing = window.setTimeout(() => !gone && picked.current?.(at, of), DOUBLE_MS);
    });
    const observer = new ResizeObserver(() => made.setSize({ width: Math.max(element.clientWidth, 120), height }));
    observer.observe(element);
    return () => {
      gone = true;
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
    <figure className={`panel curve ${pick ? 'pick' : ''}`} aria-labelledby={id}>
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
