// The frame around all pages: navigation, theme, keyboard, the live feed and the clock.
import { lazy, Suspense, useEffect, useRef, useState } from 'react';
import { Dashboard } from './pages/Dashboard';
import { go, link, useRoute } from './lib/route';
import { ROLES, titleOf } from './lib/roles';
import { held, isExport } from './lib/exported';
import {
  clearProblem,
  copyLink,
  current,
  followAction,
  followAddress,
  jumpTo,
  loadConfig,
  seek,
  setPhoto,
  setRole,
  setStage,
  setTheme,
  startClock,
  toggleFollowActor,
  togglePlay,
  useStore,
  watch,
} from './lib/store';
import { FRAMES_PER_DAY, stops } from './lib/world';
import { Connection, useThinking } from './ui/Connection';
import { Timeline } from './ui/Timeline';

const Office = lazy(() => import('./pages/Office'));
/** An export holds one episode or run; the code of pages that need a server stays out of it. */
const absent = (): Promise<never> => Promise.reject(new Error('This page is not part of an export.'));
const Playground = lazy(() => (import.meta.env.VITE_REPLAY ? absent() : import('./pages/Playground')));
const Play = lazy(() => (import.meta.env.VITE_REPLAY ? absent() : import('./pages/Play')));
const Runs = lazy(() => import('./pages/Runs'));
const Run = lazy(() => import('./pages/Run'));
const Group = lazy(() => import('./pages/Group'));
const Episode = lazy(() => import('./pages/Episode'));
const Matched = lazy(() => (import.meta.env.VITE_REPLAY ? absent() : import('./pages/Matched')));
const Report = lazy(() => (import.meta.env.VITE_REPLAY ? import('./pages/Report') : absent()));
const Race = lazy(() => (import.meta.env.VITE_REPLAY ? absent() : import('./pages/Race')));

const TABS = [
  ['office', 'Office'],
  ['dashboard', 'Dashboard'],
  ['play', 'Playground'],
  ['race', 'Race'],
  ['runs', 'Training'],
] as const;
/** Of a viewer that plays an environment of the user's own: the office's pages do not belong there. */
const OWN_TABS = [
  ['env', 'Play'],
  ['runs', 'Training'],
] as const;
const REPORT = [['report', 'Report'], ...TABS] as const;
const WITH_TIMELINE = new Set(['office', 'dashboard', 'play']);

const KEYS: readonly (readonly [string, string])[] = [
  ['Space', 'play or pause'],
  ['← →', 'turn before, turn after'],
  ['Shift ← →', 'a day back, a day on'],
  ['Home End', 'day 0, newest turn'],
  ['[ ]', 'jump to the previous or next stop of the chosen kind'],
  ['1 – 7', 'choose a role, which stays chosen'],
  ['f', 'in the office: follow who acts, or stay'],
  ['m', 'office in 2D or 3D'],
  ['p', 'in the office: a picture to pass on, without controls; Esc or p ends it'],
  ['t', 'dark or light'],
  ['y', 'copy the link to what is shown'],
  ['j k Enter', 'next or previous row of a list or thing of a kind; open it'],
  ['g o, g d, g p, g r, g t', 'office, dashboard, playground, race, training'],
  ['?', 'this list'],
];

const OWN_KEYS: readonly (readonly [string, string])[] = [
  ['t', 'dark or light'],
  ['y', 'copy the link to what is shown'],
  ['j k Enter', 'next or previous row of a list or thing of a kind; open it'],
  ['g p, g t', 'play, training'],
  ['?', 'this list'],
];

/** Move to the next or previous row of a list; a page of one thing leads to the next or previous thing. */
function walk(by: 1 | -1): void {
  const rows = [...document.querySelectorAll<HTMLElement>('[data-row]')];
  if (!rows.length) {
    document.querySelector<HTMLElement>(by > 0 ? 'a[rel=next]' : 'a[rel=prev]')?.click();
    return;
  }
  const at = rows.indexOf(document.activeElement as HTMLElement);
  const to = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))]!;
  to.focus();
  to.scrollIntoView({ block: 'nearest' });
  // A row that shows itself next to the list is chosen at once.
  if (to instanceof HTMLButtonElement) to.click();
}

function useKeyboard(showHelp: () => void): void {
  const pending = useRef('');
  useEffect(() => {
    const handle = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      const typing = target.closest('input:not([type=range]):not([type=checkbox]), textarea, select, dialog');
      if (event.ctrlKey || event.metaKey || event.altKey || typing) return;
      // A focused button keeps its own space and enter.
      if (event.key === ' ' && target.closest('button, a, [role=button], summary')) return;
      const { seq, theme, stage, photo, jump: kind } = useStore.getState();
      const frames = current(useStore.getState())?.frames ?? [];
      const marks = '[]'.includes(event.key) ? stops(frames, kind) : [];
      const jump = (mark: number | undefined): void => {
        if (mark !== undefined) jumpTo(mark, kind);
      };
      const far = event.shiftKey ? FRAMES_PER_DAY : 1;
      if (pending.current === 'g') {
        pending.current = '';
        const own = Boolean(useStore.getState().config?.env);
        const pages = own ? { p: 'env', t: 'runs' } : { o: 'office', d: 'dashboard', p: 'play', r: 'race', t: 'runs' };
        const page = (pages as Record<string, string>)[event.key];
        if (page) {
          go([page]);
          event.preventDefault();
          return;
        }
      }
      const actions: Record<string, () => void> = {
        ' ': togglePlay,
        ArrowLeft: () => seek(seq - far),
        ArrowRight: () => seek(seq + far),
        Home: () => seek(0),
        End: () => seek(frames.length - 1),
        '[': () => jump([...marks].reverse().find((mark) => mark < seq)),
        ']': () => jump(marks.find((mark) => mark > seq)),
        f: toggleFollowActor,
        p: () => setPhoto(!photo && document.querySelector('.stage') !== null),
        ...(photo ? { Escape: () => setPhoto(false) } : {}),
        m: () => setStage(stage === '2d' ? '3d' : '2d'),
        t: () => setTheme(theme === 'dark' ? 'light' : 'dark'),
        y: () => void copyLink(),
        j: () => walk(1),
        k: () => walk(-1),
        '?': showHelp,
        g: () => {
          pending.current = 'g';
        },
      };
      const role = ROLES[Number(event.key) - 1];
      const action = actions[event.key] ?? (role ? () => setRole(role.id) : undefined);
      const moves = ['ArrowLeft', 'ArrowRight', 'Home', 'End', ' ', '[', ']'].includes(event.key);
      if (!action || (moves && !document.querySelector('.timeline'))) return;
      // Scrolling regions keep their arrows up and down; left, right and space belong to the timeline.
      event.preventDefault();
      action();
    };
    window.addEventListener('keydown', handle);
    return () => window.removeEventListener('keydown', handle);
  }, [showHelp]);
}

export function App() {
  const route = useRoute();
  const theme = useStore((state) => state.theme);
  const connected = useStore((state) => state.connected);
  const canChange = useStore((state) => state.canChange);
  const problem = useStore((state) => state.problem);
  const thinking = useThinking();
  const said = useStore((state) => state.said);
  const playing = useStore((state) => state.worlds.live?.seats.playing ?? false);
  const failed = useStore((state) => state.worlds.live?.seats.error ?? '');
  const openRun = useStore((state) => state.config?.open_run ?? '');
  const help = useRef<HTMLDialogElement>(null);
  const [showHelp] = useState(() => () => help.current?.showModal());
  useKeyboard(showHelp);

  useEffect(() => {
    void loadConfig();
    const stops = [watch('live'), startClock(), followAction(), followAddress()];
    return () => stops.forEach((stop) => stop());
  }, []);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  useEffect(() => {
    if (openRun && !held?.report && (!isExport || held?.run) && !location.hash.replace(/^#\/?/, '')) go(['runs', openRun]);
  }, [openRun]);

  const config = useStore((state) => state.config);
  const tabs = config?.env ? OWN_TABS : held?.report ? REPORT : TABS;
  const first = tabs[0][0];
  // Which page is the first one is known when the server has answered.
  const page = route.path[0] ?? (config || isExport ? first : '');
  const tab = [...tabs, ...TABS].find(([id]) => id === (page === 'comparisons' ? 'runs' : page));
  const watching = useStore((state) => current(state) !== undefined);
  // An export shows what it holds; the rest needs a server.
  const exported: Record<string, boolean> = {
    office: watching,
    dashboard: watching,
    runs: Boolean(held?.run),
    report: Boolean(held?.report),
  };
  useEffect(() => {
    document.title = tab ? `${tab[1]} · onthejob` : 'onthejob';
  }, [tab]);
  const [, run, part] = route.path;
  const photo = useStore((state) => state.photo) && page === 'office';
  return (
    <div className="app" data-photo={photo}>
      <div>
        <header className="top">
          <a className="brand" href={link([first])}>
            <svg viewBox="0 0 16 16" shapeRendering="crispEdges" aria-hidden="true">
              <path fill="#3a3550" d="M3 1h10v14H3z" />
              <path fill="#f2b84b" d="M4 2h8v3H4z" />
              <path fill="#f6d3b3" d="M4 5h8v5H4z" />
              <path fill="#1d1a2b" d="M5 6h2v2H5zm4 0h2v2H9z" />
              <path fill="#58c4a7" d="M4 10h8v4H4z" />
            </svg>
            onthejob
          </a>
          <nav className="tabs" aria-label="Pages">
            {tabs
              .filter(([id]) => !isExport || exported[id])
              .map(([id, name]) => (
                <a key={id} href={link([id])} aria-current={tab?.[0] === id ? 'page' : undefined}>
                  {name}
                </a>
              ))}
          </nav>
          <div className="tools">
            {!canChange && !isExport && (
              <span className="pill" title="Open the address that `onthejob view` printed to change something.">
                read-only
              </span>
            )}
            <span className={`pill ${connected ? 'live' : 'off'}`} role="status">
              <i className="dot" />{' '}
              {isExport
                ? 'saved'
                : !connected
                  ? 'no connection'
                  : thinking
                    ? `${titleOf(thinking.role)} · ${thinking.seconds} s`
                    : playing
                      ? 'playing'
                      : 'paused'}
            </span>
            <button
              type="button"
              className="quiet"
              onClick={() => setTheme(theme === 'dark' ? 'light' : 'dark')}
              aria-label={`Use the ${theme === 'dark' ? 'light' : 'dark'} theme`}
              title="Dark or light (t)"
            >
              {theme === 'dark' ? '☀' : '☾'}
            </button>
            {!isExport && (
              <button
                type="button"
                className="quiet"
                onClick={() => void copyLink()}
                aria-label="Copy the link to what is shown"
                title="Copy the link to what is shown (y)"
              >
                <svg
                  viewBox="0 0 16 16"
                  width="14"
                  height="14"
                  aria-hidden="true"
                  fill="none"
                  stroke="currentColor"
                  strokeWidth="1.6"
                >
                  <path d="M6.5 9.5l3-3M7.5 4.5l1.6-1.6a2.8 2.8 0 0 1 4 4L11.5 8.5M8.5 11.5l-1.6 1.6a2.8 2.8 0 0 1-4-4L4.5 7.5" />
                </svg>
              </button>
            )}
            <button
              type="button"
              className="quiet"
              onClick={showHelp}
              aria-label="Keyboard shortcuts"
              title="Keyboard shortcuts (?)"
            >
              ?
            </button>
          </div>
        </header>
        <Connection />
      </div>
      <main className={`page ${page === 'office' ? 'full' : ''}`} id="main">
        <Suspense fallback={<p className="empty">Loading…</p>}>
          {page === 'office' && <Office />}
          {page === 'dashboard' && <Dashboard />}
          {page === 'play' && <Playground />}
          {page === 'race' && <Race query={route.query} />}
          {page === 'env' && <Play query={route.query} />}
          {page === 'runs' && !run && <Runs query={route.query} />}
          {page === 'runs' && run && !part && <Run name={run} query={route.query} />}
          {page === 'runs' && run && part === 'group' && <Group name={run} query={route.query} />}
          {page === 'runs' && run && part === 'episode' && <Episode name={run} query={route.query} />}
          {page === 'report' && <Report query={route.query} />}
          {page === 'comparisons' && run && <Matched name={run} query={route.query} />}
          {!page && <p className="empty">Loading…</p>}
          {page && page !== 'env' && !tab && (
            <p className="empty">
              There is no such page. <a href={link([first])}>{config?.env ? 'To the first one' : 'To the office'}</a>
            </p>
          )}
        </Suspense>
      </main>
      {WITH_TIMELINE.has(page) ? <Timeline /> : <span />}
      {(problem || failed) && (
        <div className="problem" role="alert">
          <span className="grow">{problem || `The company stopped: ${failed}`}</span>
          {problem && (
            <button type="button" onClick={clearProblem} aria-label="Close the message">
              ✕
            </button>
          )}
        </div>
      )}
      <div className="said-now" role="status">
        {said}
      </div>
      <dialog ref={help} aria-labelledby="help-title">
        <div className="row spread">
          <h2 id="help-title">Keyboard</h2>
          <button type="button" onClick={() => help.current?.close()}>
            Close
          </button>
        </div>
        <table>
          <tbody>
            {(config?.env ? OWN_KEYS : KEYS).map(([keys, what]) => (
              <tr key={keys}>
                <td>
                  <kbd>{keys}</kbd>
                </td>
                <td>{what}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </dialog>
    </div>
  );
}
