// The state that pages share: the worlds, where the timeline stands, and how it moves.
import { create } from 'zustand';
import { get, hasToken, post, type Config, type Frames, type Seats, type WorldName } from '../api/client';
import { ACTING, FIRST_JUMP, MOMENT_PAGES, momentOf, queryOf, seqOf, whenOf, type When } from './address';
import { held, isExport } from './exported';
import { concerned } from './reasons';
import { ROLE } from './roles';
import { parse, settle } from './route';
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
  /** Since when there is no connection, and when it is tried again, in ms of the page's clock. */
  lost: { since: number; next: number } | null;
  /** When the newest turn of the live company arrived, or it began to play, in ms of the page's clock. */
  heard: number;
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
  /** The office selects who acts in the frame that is shown; else the role that was chosen stays. */
  followActor: boolean;
  /** What the keys and buttons of the timeline jump to. */
  jump: Jump;
  problem: string;
  /** A passing remark, such as that a link was copied. */
  said: string;
  /** The race that the page of races shall start: a link was followed here, not typed into the address. */
  wantsRace: boolean;
  /** An episode of a run is being played again on the server. */
  loading: boolean;
  /** The office without controls, with a caption: a picture to pass on. */
  photo: boolean;
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
  lost: null,
  heard: 0,
  canChange: hasToken(),
  seq: 0,
  follow: true,
  moving: false,
  speed: 2,
  role: 'sales',
  followActor: true,
  jump: FIRST_JUMP,
  problem: '',
  said: '',
  wantsRace: false,
  loading: false,
  photo: false,
  theme: remembered('onthejob-theme', light ? 'light' : 'dark') === 'light' ? 'light' : 'dark',
  stage: remembered('onthejob-stage', '2d') === '3d' ? '3d' : '2d',
}));

const { getState, setState } = useStore;

/** The world that office, dashboard and timeline show. */
export const current = (state: State): World | undefined => state.recorded?.world ?? state.worlds.live;

/** A role is asked in the company that is shown, and its newest moment is followed: the next turn will arrive. */
export const atWork = ({ recorded, follow, worlds: { live } }: State): boolean =>
  !recorded && follow && Boolean(live?.seats.playing) && !live?.seats.done;

/** Timeline time, in frames and fractions of them. Stages read it every animation frame, so it is no React state. */
export const clock = { t: 0 };

export function seek(seq: number, keepMoving = false): void {
  const last = (current(getState())?.frames.length ?? 1) - 1;
  const to = Math.max(0, Math.min(last, Math.round(seq)));
  awaited = null;
  clock.t = to;
  setState({ seq: to, follow: to >= last && !keepMoving, moving: keepMoving && to < last });
}

/** Go to a frame at which `kind` stops. Where it is a penalty, who pays it is selected, so that it is seen. */
export function jumpTo(seq: number, kind: Jump): void {
  note();
  seek(seq);
  const frame = current(getState())?.frames[seq];
  const charged = frame && kind === 'penalty' ? penalties(frame).map(([role]) => role) : [];
  if (charged.length && !charged.includes(getState().role)) showRole(charged[0]!);
  note(true);
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
/** Choose a role, which stays chosen when another one acts. */
export const setRole = (role: string): void => setState({ role, followActor: false });
/** Show a role until another one acts, where who acts is followed. */
export const showRole = (role: string): void => setState({ role });
export const toggleFollowActor = (): void => setState({ followActor: !getState().followActor });
/** Who is to be looked at in the frame that is shown. */
function lead(state: State): string {
  const frame = current(state)?.frames[state.seq];
  const found = frame ? concerned(frame) : '';
  return Object.hasOwn(ROLE, found) ? found : state.role;
}
/** Pages on which who acts is followed; on others a role is chosen for what is read or played there. */
const onStage = (): boolean => ['office', ''].includes(parse(location.hash).path[0] ?? '');
/** Select who acts with each new frame of the office. Returns what ends it. */
export function followAction(): () => void {
  return useStore.subscribe((state, before) => {
    if (!state.followActor || !onStage()) return;
    const moved = current(state)?.frames[state.seq] !== current(before)?.frames[before.seq];
    if ((moved || !before.followActor) && lead(state) !== state.role) setState({ role: lead(state) });
  });
}
export const setPhoto = (photo: boolean): void => setState({ photo });
export const setJump = (jump: Jump): void => setState({ jump });
export const setSpeed = (speed: number): void => {
  setState({ speed });
  const { recorded, worlds, canChange } = getState();
  if (!recorded && worlds.live && !worlds.live.seats.done && canChange)
    void act(post('reconfigure', { pace_s: Math.round(1000 / speed) / 1000 }));
};

/** Turns per second at which a company begins by itself. */
const FIRST_SPEED = 2;
/** Let the live company play, at the pace of a first visit. */
export function beginLive(): void {
  setState({ speed: FIRST_SPEED, follow: true });
  void act(post('reconfigure', { playing: true, pace_s: 1 / FIRST_SPEED }));
}

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
  const plays = part.seats.playing && !before?.seats.playing;
  if (name === 'live' && (plays || world.frames.length !== before?.frames.length)) patch.heard = performance.now();
  if (name === 'live' && !recorded) {
    const anew = before !== null && part.seats.epoch !== before.seats.epoch && part.start === 0;
    const wanted = awaited && seqOf(awaited, part.seats);
    if (wanted !== null) {
      // The address names a moment; the frames up to it arrive in parts.
      const there = wanted <= last;
      const to = Math.min(wanted, last);
      clock.t = to;
      Object.assign(patch, { seq: to, follow: false, moving: false });
      if (there || last + 1 >= part.seats.length) awaited = null;
    } else if (anew || follow) Object.assign(patch, { seq: last, follow: true, moving: false });
    else if (seq > last) Object.assign(patch, { seq: last, follow: true });
    // A reader who follows sees people walk from the last turn into this one; a leap is not walked.
    if (wanted === null && (anew || clock.t > last || (follow && last - clock.t > 3))) clock.t = Math.max(0, last - 1);
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

/** Show an episode of a run as an office, at a moment, or moving from its beginning. */
async function showRecorded(run: string, iteration: number, episode: string, when: When): Promise<void> {
  asked = `${run} ${iteration} ${episode}`;
  const mine = asked;
  setState({ loading: true });
  const part = await act(get<Frames>(`runs/${encodeURIComponent(run)}/office`, { iteration, episode }));
  if (mine !== asked) return;
  setState({ loading: false });
  const world = part && extend(null, part);
  // Where it cannot be shown, the page says why, and its address is that of what is shown instead.
  if (world) {
    setState({ recorded: { world, run, iteration, episode } });
    const to = seqOf(when, world.seats);
    seek(to ?? 0, to === null);
  }
  asked = '';
  note(false);
}

/** The episode that is being fetched, of which an answer that comes too late is known. */
let asked = '';
/** The moment of the live company that the address names, while its frames have not arrived. */
let awaited: When | null = null;

/** Show what the address says; an address that says nothing leaves everything as it is. */
function readAddress(): void {
  const { path, query } = parse(location.hash);
  const moment = momentOf(query);
  if (!MOMENT_PAGES.has(path[0] ?? '')) return;
  if (!moment) {
    note();
    return;
  }
  setState({
    jump: moment.jump ?? FIRST_JUMP,
    ...(moment.role ? { role: moment.role } : {}),
    ...(onStage() ? { followActor: !moment.role } : {}),
  });
  const { recorded, worlds } = getState();
  const { when } = moment;
  // The playground has the live company only.
  const wanted = path[0] === 'play' ? null : moment.recorded;
  if (wanted) {
    const same = recorded?.run === wanted.run && recorded.iteration === wanted.iteration && recorded.episode === wanted.episode;
    if (!same) void showRecorded(wanted.run, wanted.iteration, wanted.episode, when);
    else {
      const to = seqOf(when, recorded.world.seats);
      if (to !== null && to !== getState().seq) seek(to);
    }
    return;
  }
  asked = '';
  setState({ recorded: null, loading: false });
  const to = seqOf(when, worlds.live?.seats ?? { first: 0 });
  if (to === null) {
    // Only where another moment was left: a reader who follows, or plays, continues.
    if (recorded) seek(Infinity);
  } else if (worlds.live && to < worlds.live.frames.length) {
    if (to !== getState().seq || recorded) seek(to);
  } else {
    awaited = when;
    setState({ follow: false, moving: false });
  }
}

/**
 * Write what is shown into the address, where its page shows a moment; `anew` as in `settle`, by default where another world is
 * shown than the address says. `exact` names the newest turn too.
 */
function note(anew?: boolean, exact = false): void {
  window.clearTimeout(noting);
  noting = 0;
  const { path, query } = parse(location.hash);
  const page = path[0] ?? '';
  const state = getState();
  const frame = current(state)?.frames[state.seq];
  if (!MOMENT_PAGES.has(page) || asked || awaited || !frame) return;
  const { recorded } = state;
  const newest = !recorded && state.follow && !exact;
  const to = queryOf({
    recorded: recorded && { run: recorded.run, iteration: recorded.iteration, episode: recorded.episode },
    when: newest ? {} : whenOf(frame),
    role: onStage() && state.followActor ? ACTING : state.role,
    jump: state.jump,
  });
  const another = momentOf(query) !== null && (query.get('ep') ?? '') !== (recorded?.episode ?? '');
  settle(path, to, anew ?? another);
}
let noting = 0;
/** Browsers refuse addresses that change too often. */
const NOTE_MS = 400;

/** Keep state and address one: each follows the other. Returns what ends it. */
export function followAddress(): () => void {
  readAddress();
  window.addEventListener('hashchange', readAddress);
  const end = useStore.subscribe((state, before) => {
    const changed =
      state.seq !== before.seq ||
      state.role !== before.role ||
      state.followActor !== before.followActor ||
      state.jump !== before.jump ||
      state.follow !== before.follow ||
      state.recorded !== before.recorded;
    if (changed && !noting) noting = window.setTimeout(() => note(), NOTE_MS);
  });
  return () => {
    end();
    window.clearTimeout(noting);
    noting = 0;
    window.removeEventListener('hashchange', readAddress);
  };
}

/** Copy the address of what is shown, with its moment. */
export async function copyLink(): Promise<void> {
  note(false, true);
  try {
    await navigator.clipboard.writeText(location.href);
    setState({ said: 'The link is copied.' });
  } catch {
    setState({ said: `The browser does not let this page copy. The link: ${location.href}` });
  }
  window.clearTimeout(saying);
  saying = window.setTimeout(() => setState({ said: '' }), SAID_MS);
}
let saying = 0;
const SAID_MS = 4000;

/** Back to the company that is played now. */
export function showLive(): void {
  if (!getState().recorded) return;
  setState({ recorded: null });
  seek(Infinity);
  note();
}

/** Feeds that wait to be tried again. */
const waiting = new Set<() => void>();
/** Try to reach the server now. */
export const reconnect = (): void => [...waiting].forEach((again) => again());
const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 8000;

/** Keep one world up to date over the live feed; returns what ends it. Without a connection the last picture stays. */
export function watch(name: WorldName): () => void {
  if (isExport) {
    openExport();
    return () => undefined;
  }
  let socket: WebSocket | null = null;
  let timer = 0;
  let wait = FIRST_WAIT_MS;
  let over = false;
  /** The first message after a new connection: the server may have been started anew, with another story. */
  let anew = false;
  const open = (): void => {
    window.clearTimeout(timer);
    waiting.delete(open);
    const from = anew ? 0 : (getState().worlds[name]?.frames.length ?? 0);
    const address = new URL('./ws/live', location.href);
    address.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
    address.hash = '';
    address.search = `world=${name}&from_seq=${from}`;
    socket = new WebSocket(address);
    socket.onmessage = (message: MessageEvent<string>) => {
      wait = FIRST_WAIT_MS;
      if (!getState().connected) setState({ connected: true, lost: null });
      const part = JSON.parse(message.data) as Frames;
      if (anew && name === 'live') keepMoment(part.seats);
      anew = false;
      if (!take(name, part)) socket?.send(JSON.stringify({ from_seq: getState().worlds[name]?.frames.length ?? 0 }));
    };
    socket.onclose = () => {
      if (over) return;
      anew = true;
      const now = performance.now();
      setState({ connected: false, lost: { since: getState().lost?.since ?? now, next: now + wait } });
      waiting.add(open);
      timer = window.setTimeout(open, wait);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    };
  };
  open();
  return () => {
    over = true;
    waiting.delete(open);
    window.clearTimeout(timer);
    socket?.close();
  };
}

/** Where the same company comes back, its reader stays at the moment that was shown. */
function keepMoment(now: Seats): void {
  const { worlds, recorded, follow, seq } = getState();
  const before = worlds.live;
  const frame = before?.frames[seq];
  if (!before || !frame || recorded || follow) return;
  const same = before.seats.scenario === now.scenario && before.seats.seed === now.seed && before.seats.days === now.days;
  if (same) awaited = whenOf(frame);
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
