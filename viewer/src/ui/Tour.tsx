// Four captions under the stage for those who are here for the first time, while the company plays by itself.
import { useEffect, useState } from 'react';
import { get, type PlayerInfo } from '../api/client';
import { isExport } from '../lib/exported';
import { beginLive, useStore } from '../lib/store';
import { CAPTIONS, keepStep, keptStep, namesMoment, untouched } from '../lib/tour';

export function Tour() {
  const recorded = useStore((state) => state.recorded !== null);
  const [step, setStep] = useState<number | null>(() => (isExport ? null : keptStep()));
  const show = (to: number | null): void => {
    keepStep(to);
    setStep(to);
  };

  useEffect(() => {
    if (step !== -1) return;
    let gone = false;
    void get<PlayerInfo[]>('models').then(
      (players) => {
        const { worlds, recorded: other, canChange } = useStore.getState();
        const live = worlds.live;
        if (gone || !live) return;
        if (other || namesMoment(location.hash) || !untouched(live.seats, live.frames.length, players)) {
          // They came for something, and have seen an office now.
          show(null);
          return;
        }
        show(0);
        if (canChange && !matchMedia('(prefers-reduced-motion: reduce)').matches) beginLive();
      },
      // Who sits there is not known: nothing begins.
      () => undefined,
    );
    return () => {
      gone = true;
    };
  }, []);

  if (step === null || step < 0 || recorded) return null;
  const last = step === CAPTIONS.length - 1;
  return (
    <section className="tour" aria-label="First steps">
      <p aria-live="polite">
        <small>
          {step + 1} of {CAPTIONS.length}
        </small>
        {CAPTIONS[step]}
      </p>
      {!last && (
        <button type="button" className="quiet" onClick={() => show(null)}>
          Skip
        </button>
      )}
      <button type="button" onClick={() => show(last ? null : step + 1)}>
        {last ? 'Done' : 'Next'}
      </button>
    </section>
  );
}
