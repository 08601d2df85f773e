// The state that pages share: the worlds, where the timeline stands, and how it moves.
import { create } from 'zustand';
import { get, hasToken, post, type Config, type Frames, type Seats, type WorldName } from '../api/client';
import { held, isExport } from './exported';
import { extend, penalties, type Jump, type World } from './world';

/** An episode of a run, shown as an office. */
export interface Recorded {
  world: World;
  run: string;
  iteration: number;
  episode: string;
}

interface State {
  config: Config | null;
  worlds: Partial<Record<WorldName, World>>;
  /** What is shown instead of the live company. */
  recorded: Recorded | null;
  connected: boolean;
  canChange: boolean;
  /** The frame that is shown. */
  seq: number;
  /** True while the newest frame is followed. */
  follow: boolean;
  /** True while the timeline moves by itself through what was recorded. */
  moving: boolean;
  /** Frames per second. */
  speed: number;
  role: string;
  problem: string;
  theme: 'dark' | 'light';
  stage: '2d' | '3d';
}

const remembered = (key: string, fallback: string): string => {
  try {
    return localStorage.getItem(key) ?? fallback;
  } catch {
    return fallback;
  }
};
const remember = (key: string, value: string): void => {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Private windows may refuse; the choice then lasts as long as the page.
  }
};
const light = typeof matchMedia === 'function' && matchMedia('(prefers-color-scheme: light)').matches;

export const useStore = create<State>(() => ({
  config: null,
  worlds: {},
  recorded: null,
  connected: false,
  canChange: hasToken(),
  seq: 0,
  follow: true,
  moving: false,
  speed: 2,
  role: 'sales',
  problem: '',
  theme: remembered('onthejob-theme', light ? 'light' : 'dark') === 'light' ? 'light' : 'dark',
  stage: remembered('onthejob-stage', '2d') === '3d' ? '3d' : '2d',
}));

const { getState, setState } = useStore;

/** The world that office, dashboard and timeline show. */
export const current = (state: State): World | undefined => state.recorded?.world ?? state.worlds.live;

/** Timeline time, in frames and fractions of them. Stages read it every animation frame, so it is no React state. */
export const clock = { t: 0 };

export function seek(seq: number, keepMoving = false): void {
  const last = (current(getState())?.frames.length ?? 1) - 1;
  const to = Math.max(0, Math.min(last, Math.round(seq)));
  clock.t = to;
  setState({ seq: to, follow: to >= last && !keepMoving, moving: keepMoving && to < last });
}

/** Go to a frame at which `kind` stops. Where it is a penalty, who pays it is selected, so that it is seen. */
export function jumpTo(seq: number, kind: Jump): void {
  seek(seq);
  const frame = current(getState())?.frames[seq];
  const charged = frame && kind === 'penalty' ? penalties(frame).map(([role]) => role) : [];
  if (charged.length && !charged.includes(getState().role)) setState({ role: charged[0]! });
}

export function togglePlay(): void {
  const { seq, moving, follow } = getState();
  const world = current(getState());
  if (!world) return;
  const atEnd = seq >= world.frames.length - 1;
  if (moving) setState({ moving: false });
  else if (!atEnd) setState({ moving: true, follow: false });
  else if (world.seats.done) {
    clock.t = 0;
    setState({ seq: 0, moving: true, follow: false });
  } else {
    if (follow && getState().canChange) void act(post('reconfigure', { playing: !world.seats.playing }));
    setState({ follow: true });
  }
}

export const setTheme = (theme: 'dark' | 'light'): void => {
  remember('onthejob-theme', theme);
  setState({ theme });
};
export const setStage = (stage: '2d' | '3d'): void => {
  remember('onthejob-stage', stage);
  setState({ stage });
};
export const setRole = (role: string): void => setState({ role });
export const setSpeed = (speed: number): void => {
  setState({ speed });
  const { recorded, worlds, canChange } = getState();
  if (!recorded && worlds.live && !worlds.live.seats.done && canChange)
    void act(post('reconfigure', { pace_s: Math.round(1000 / speed) / 1000 }));
};

/** Await a change; a refusal is shown, not thrown. */
export async function act<T>(promise: Promise<T>): Promise<T | null> {
  try {
    const value = await promise;
    setState({ problem: '' });
    return value;
  } catch (error) {
    setState({ problem: error instanceof Error ? error.message : String(error) });
    return null;
  }
}
export const clearProblem = (): void => setState({ problem: '' });

function take(name: WorldName, part: Frames): boolean {
  const before = getState().worlds[name] ?? null;
  const world = extend(before, part);
  if (!world) return false;
  const last = world.frames.length - 1;
  const { follow, seq, worlds, recorded } = getState();
  const patch: Partial<State> = { worlds: { ...worlds, [name]: world } };
  if (name === 'live' && !recorded) {
    const anew = before !== null && part.seats.epoch !== before.seats.epoch && part.start === 0;
    if (anew || follow) Object.assign(patch, { seq: last, follow: true, moving: false });
    else if (seq > last) Object.assign(patch, { seq: last, follow: true });
    // A reader who follows sees people walk from the last turn into this one; a leap is not walked.
    if (anew || clock.t > last || (follow && last - clock.t > 3)) clock.t = Math.max(0, last - 1);
  }
  setState(patch);
  return true;
}

function openExport(): void {
  if (!held) {
    setState({ problem: 'This file holds no record.' });
    return;
  }
  setState({ config: held.config, connected: true, follow: false, stage: '2d' });
  if (!held.part) return;
  take('live', held.part);
  seek(0);
}

/** Show an episode of a run as an office, from its beginning. */
export async function showRecorded(run: string, iteration: number, episode: string): Promise<boolean> {
  const part = await act(get<Frames>(`runs/${encodeURIComponent(run)}/office`, { iteration, episode }));
  const world = part && extend(null, part);
  if (!world) return false;
  setState({ recorded: { world, run, iteration, episode } });
  seek(0, true);
  return true;
}

/** Back to the company that is played now. */
export function showLive(): void {
  if (!getState().recorded) return;
  setState({ recorded: null });
  seek(Infinity);
}

/** Keep one world up to date over the live feed; returns what ends it. */
export function watch(name: WorldName): () => void {
  if (isExport) {
    openExport();
    return () => undefined;
  }
  let socket: WebSocket | null = null;
  let timer = 0;
  let wait = 300;
  let over = false;
  const open = (): void => {
    const from = getState().worlds[name]?.frames.length ?? 0;
    const address = new URL('./ws/live', location.href);
    address.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
    address.hash = '';
    address.search = `world=${name}&from_seq=${from}`;
    socket = new WebSocket(address);
    socket.onmessage = (message: MessageEvent<string>) => {
      wait = 300;
      if (!getState().connected) setState({ connected: true });
      const part = JSON.parse(message.data) as Frames;
      if (!take(name, part)) socket?.send(JSON.stringify({ from_seq: getState().worlds[name]?.frames.length ?? 0 }));
    };
    socket.onclose = () => {
      if (over) return;
      setState({ connected: false });
      timer = window.setTimeout(() => {
        // The server may have been started anew, with another story: what is kept would not fit it.
        setState({ worlds: { ...getState().worlds, [name]: undefined } });
        open();
      }, wait);
      wait = Math.min(wait * 2, 8000);
    };
  };
  open();
  return () => {
    over = true;
    window.clearTimeout(timer);
    socket?.close();
  };
}

/** The one animation loop: moves the timeline, and with it everything that walks. */
export function startClock(): () => void {
  let handle = 0;
  let before = performance.now();
  const tick = (now: number): void => {
    const passed = Math.min((now - before) / 1000, 0.25);
    before = now;
    const { moving, follow, speed, seq } = getState();
    const world = current(getState());
    const last = (world?.frames.length ?? 1) - 1;
    if (!world) {
      // A lost connection is being made again: the timeline waits where it is.
    } else if (moving) {
      clock.t = Math.min(clock.t + passed * speed, last);
      const shown = Math.floor(clock.t);
      if (shown !== seq) setState({ seq: shown });
      if (clock.t >= last) setState({ moving: false, follow: true });
    } else if (follow && clock.t < last + 0.999) {
      // The newest turn is acted out after it has arrived, faster when there is more to catch up with.
      clock.t = Math.min(clock.t + passed * Math.max(speed, last - clock.t), last + 0.999);
    } else if (!follow && clock.t < seq + 0.999) clock.t = Math.min(clock.t + passed * Math.max(speed, 1), seq + 0.999);
    handle = requestAnimationFrame(tick);
  };
  handle = requestAnimationFrame(tick);
  return () => cancelAnimationFrame(handle);
}

export async function loadConfig(): Promise<void> {
  if (isExport) return;
  const config = await act(get<Config>('config'));
  if (config) setState({ config });
}

export const seatsOf = (name: WorldName): Seats | null => getState().worlds[name]?.seats ?? null;
