// What is said while the server cannot be reached: the last picture stays, and the page keeps trying.
import { useEffect, useState } from 'react';
import { reconnect, useStore } from '../lib/store';

/** A connection that is made again at once is not worth a word. */
const PATIENCE_MS = 1200;

export function Connection() {
  const lost = useStore((state) => state.lost);
  const [now, setNow] = useState(0);
  useEffect(() => {
    if (!lost) return;
    const look = (): void => setNow(performance.now());
    look();
    const timer = window.setInterval(look, 500);
    return () => window.clearInterval(timer);
  }, [lost]);
  if (!lost || now - lost.since < PATIENCE_MS) return null;
  const next = Math.ceil((lost.next - now) / 1000);
  return (
    <div className="banner" role="alert">
      <span className="grow">
        <b>The server does not answer.</b> The last picture stays. If it was stopped: start{' '}
        <code className="mono">onthejob view</code> again and open the address that it prints, which has a new token.{' '}
        <span className="nowrap">
          {Math.floor((now - lost.since) / 1000)} s without a connection, {next > 0 ? `trying again in ${next} s` : 'trying now'}
        </span>
      </span>
      <button type="button" onClick={reconnect}>
        Try now
      </button>
    </div>
  );
}

/** Seconds that a seat has been thinking before it is said that a model may be loading. */
const LOADING_S = 20;
const SHORT_S = 1;

/** Whose turn it is, and since how many seconds the company waits for it. */
export function useThinking(): { role: string; seconds: number } | null {
  const heard = useStore((state) => state.heard);
  const live = useStore((state) => state.worlds.live);
  const recorded = useStore((state) => state.recorded);
  const connected = useStore((state) => state.connected);
  const [now, setNow] = useState(0);
  const role = live?.frames.at(-1)?.waiting ?? '';
  const asked =
    connected && !recorded && Boolean(live?.seats.playing) && !live?.seats.done && role !== live?.seats.human && role !== '';
  useEffect(() => {
    if (!asked) return;
    const look = (): void => setNow(performance.now());
    const timer = window.setInterval(look, 500);
    look();
    return () => window.clearInterval(timer);
  }, [asked, heard]);
  const seconds = Math.floor((now - heard) / 1000);
  return asked && seconds >= SHORT_S ? { role, seconds } : null;
}

export const thinkingText = (seconds: number): string =>
  seconds < LOADING_S ? `thinking ${seconds} s` : `thinking ${seconds} s; a model may be loading`;
